// SPDX-License-Identifier: Apache-2.0
//
// SHA-256 (FIPS 180-4), for the checksums of schema files: the only hash this
// program needs, so that it does not have to link a crypto library for it.

#ifndef PGKIN_LIB_SHA256_H
#define PGKIN_LIB_SHA256_H

#include <stddef.h>

#define SHA256_HEX_SIZE 65 // 64 digits and a NUL

// Lower-case hexadecimal digits, NUL-terminated.
void sha256_hex(const void *data, size_t size, char out[SHA256_HEX_SIZE]);

#endif
