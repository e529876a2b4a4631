// SPDX-License-Identifier: Apache-2.0
//
// Where PostgreSQL's programs are. Distributions keep the server's out of the
// PATH, in one directory per major version.

#ifndef PGKIN_EMBED_BINDIR_H
#define PGKIN_EMBED_BINDIR_H

#include <stdbool.h>

#include "core/buf.h"
#include "core/err.h"

struct bindir_search {
    const char *given;     // the only place to look, if not NULL
    const char *root;      // NULL: /usr/lib/postgresql, with ROOT/MAJOR/bin in it
    const char *pg_config; // NULL: pg_config, from the PATH
    int major;             // only this one will do; 0: the newest
};

// PGKIN_BINDIR, or NULL when it is not set.
const char *bindir_setting(void);

// Appends a directory that has both postgres and initdb. For a `major` that
// is not there, the error names it, what is there, and what to install.
bool bindir_find_server(const struct bindir_search *s, struct buf *out, struct err *e);

// Appends the path of a client program such as psql: from PGKIN_BINDIR, the
// newest version, else just `name`, for the PATH.
void bindir_find_client(const char *name, struct buf *out);

// The major version of a data directory. False without an error in `e` when
// there is no data.
bool bindir_data_major(const char *data, int *major, struct err *e);

#endif
