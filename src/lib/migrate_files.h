// SPDX-License-Identifier: Apache-2.0
//
// The schema files that travel in the binary, read and checked.

#ifndef PGKIN_LIB_MIGRATE_FILES_H
#define PGKIN_LIB_MIGRATE_FILES_H

#include <stdbool.h>
#include <stddef.h>

#include "core/asset.h"
#include "core/err.h"
#include "lib/sha256.h"

struct migrate_file {
    const struct asset *asset; // borrowed
    char *name;                // "0001_schemas"
    int version;               // the number it begins with
    char checksum[SHA256_HEX_SIZE];
};

struct migrate_files {
    struct migrate_file *migrations; // in number order
    size_t migration_count;
    struct migrate_file *functions; // in name order
    size_t function_count;
};

// Picks sql/migrations/ and sql/functions/ from assets sorted by name. Fails
// for a file that is wrongly named, for a number used twice, and for files
// with statements that do not belong there: transaction control, since all
// of them run in one transaction, and COPY. Cleared by migrate_files_clear()
// in any case.
bool migrate_files_load(struct migrate_files *f, const struct asset *assets, size_t count,
                        struct err *e);
void migrate_files_clear(struct migrate_files *f);

// The last migration's number; 0 when there is none.
int migrate_files_version(const struct migrate_files *f);

const struct migrate_file *migrate_files_find_migration(const struct migrate_files *f,
                                                        int version);
const struct migrate_file *migrate_files_find_function(const struct migrate_files *f,
                                                       const char *name);

#endif
