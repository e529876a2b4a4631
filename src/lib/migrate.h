// SPDX-License-Identifier: Apache-2.0
//
// The schema inside the database: installs it, upgrades it, says where it is.
//
// Two kinds of files travel in the binary. sql/migrations/NNNN_name.sql change
// the shape of data; each is applied once, in number order, and never changes
// after a release. sql/functions/NN_name.sql hold what can be replaced at any
// time; since they may depend on each other, all of them are applied again in
// name order as soon as one differs from what the database has recorded.
//
// Everything happens in one transaction under an advisory lock, so a run
// leaves either the whole new schema or the old one, and of two runs at once
// the second waits and then finds nothing to do.

#ifndef PGKIN_LIB_MIGRATE_H
#define PGKIN_LIB_MIGRATE_H

#include <libpq-fe.h>
#include <stdbool.h>
#include <stddef.h>

#include "core/asset.h"
#include "core/buf.h"
#include "core/err.h"

// The oldest server that is supported, as PQserverVersion() counts.
#define MIGRATE_MIN_SERVER 140000

struct migrate_options {
    bool dry_run;             // find out what would be done; change nothing
    const char *lock_timeout; // for locks on tables, "10s"; NULL: that
    // Called once if another migration holds the lock for longer than a moment.
    void (*on_wait)(void *arg);
    void *arg;
    // Files to apply instead of those in the binary (for tests). Sorted by
    // name, borrowed. NULL: the binary's own.
    const struct asset *assets;
    size_t asset_count;
};

struct migrate_warning {
    char *text;
    char *hint; // NULL when the server gave none
};

// What was done, or with dry_run would be done. Owned by the caller, who
// initialises it with MIGRATE_REPORT_INIT and clears it in any case: the
// warnings are there after a failure too.
struct migrate_report {
    int from_version;  // 0: the schema was not installed
    int to_version;    // the last migration's number
    char **migrations; // names applied, in order: "0001_schemas"
    size_t migration_count;
    char **functions; // names of function files applied, in order
    size_t function_count;
    char **changed; // those of them that made it necessary: new or different
    size_t changed_count;
    char **removed; // recorded function files that no longer exist
    size_t removed_count;
    struct migrate_warning *warnings;
    size_t warning_count;
};

#define MIGRATE_REPORT_INIT ((struct migrate_report){0})

void migrate_report_clear(struct migrate_report *rep);

// Brings the database to this binary's schema. `conn` must be connected and
// outside a transaction; it is outside one again afterwards. Its notice
// receiver is replaced for the time, and afterwards the one before with a null
// argument. On failure the database is unchanged.
bool migrate_run(PGconn *conn, const struct migrate_options *opt,
                 struct migrate_report *rep, struct err *e);

// For every command that needs the schema: true when it is installed and of
// the version that this binary knows. `db_version` may be NULL; else it gets
// the database's version (0: not installed) whenever that could be read.
bool migrate_check(PGconn *conn, int *db_version, struct err *e);

// The whole schema as one script for psql, for an empty database. Leaves the
// same schema and records as migrate_run().
bool migrate_dump(struct buf *out, struct err *e);

// The version that this binary installs.
int migrate_known_version(void);

// False with a clear message for a server that is too old. `server_version`
// as from PQserverVersion().
bool migrate_server_supported(int server_version, struct err *e);

#endif
