// SPDX-License-Identifier: Apache-2.0
//
// Which database a command works on, and a plain blocking connection to it.
//
// The first of these that is given: the URL on the command line, DATABASE_URL
// (or database.url of the configuration file, which the option parser puts
// into cli_common.database), any of libpq's own PG* variables, and else the
// private cluster.
//
// No message made here shows a password, also not the part of a malformed
// connection string that libpq would quote.

#ifndef PGKIN_CLI_DB_H
#define PGKIN_CLI_DB_H

#include <libpq-fe.h>
#include <stdbool.h>

#include "core/buf.h"
#include "core/err.h"

enum db_source {
    DB_FLAG,    // given by the caller
    DB_ENV_URL, // DATABASE_URL
    DB_ENV_PG,  // PGHOST and the like
    DB_PRIVATE, // the private cluster
};

// Where db_conninfo() would look.
enum db_source db_find_source(const char *flag);

// Appends a connection string (a URI or key=value pairs; a bare database name
// comes out as dbname='…'). It is empty for DB_ENV_PG: libpq reads the
// environment itself. It may hold a password: not for printing.
bool db_conninfo(const char *flag, struct buf *out, struct err *e);

// The same, with the private cluster's directory given (the setting data.dir)
// instead of the default one. NULL: the default one.
bool db_conninfo_in(const char *flag, const char *data_dir, struct buf *out,
                    struct err *e);

// Connects and waits for it: at most 10 s unless the connection string says
// otherwise. application_name is pgkin, the encoding is UTF-8, warnings go to
// standard error, one line each, and lesser notices nowhere. NULL with `e`
// filled on failure; else the caller ends it with PQfinish().
PGconn *db_connect(const char *flag, struct err *e);
PGconn *db_connect_in(const char *flag, const char *data_dir, struct err *e);

// The same for a connection string that is known already.
PGconn *db_open(const char *conninfo, struct err *e);

#endif
