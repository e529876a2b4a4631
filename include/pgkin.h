// SPDX-License-Identifier: Apache-2.0
//
// libpgkin: background work that lives in PostgreSQL.
//
// The only public header. Handles are opaque; the library keeps no global
// state, never prints and never exits.

#ifndef PGKIN_H
#define PGKIN_H

#ifdef __cplusplus
extern "C" {
#endif

#define PGKIN_VERSION "0.1.0"

#if defined(__GNUC__)
#define PGKIN_API __attribute__((visibility("default")))
#else
#define PGKIN_API
#endif

// The version of the library that is linked, "MAJOR.MINOR.PATCH". Static
// storage: not to be freed.
PGKIN_API const char *pgkin_version(void);

#ifdef __cplusplus
}
#endif

#endif
