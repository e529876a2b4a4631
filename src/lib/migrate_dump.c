// SPDX-License-Identifier: Apache-2.0
//
// The schema as a script for psql: the same files in the same order as
// migrate_run() applies them, and the same statements for the records, which
// become prepared statements here because they have parameters.

#include "lib/migrate.h"

#include <ctype.h>
#include <stdlib.h>

#include "lib/migrate_files.h"
#include "pgkin.h"

static void add_statement(struct buf *out, const char *data, size_t size)
{
    while (size > 0 && isspace((unsigned char)data[size - 1]))
        size--;
    buf_add(out, data, size);
    buf_adds(out, size > 0 && data[size - 1] == ';' ? "\n\n" : ";\n\n");
}

static void add_query(struct buf *out, const char *name)
{
    const struct asset *a = asset_find(name);
    if (a == NULL)
        BUG("no asset %s", name);
    add_statement(out, a->data, a->size);
}

static void add_file(struct buf *out, const struct migrate_file *f)
{
    buf_addf(out, "-- %s\n\n", f->asset->name);
    add_statement(out, f->asset->data, f->asset->size);
}

bool migrate_dump(struct buf *out, struct err *e)
{
    struct migrate_files files;
    bool ok = migrate_files_load(&files, pgkin_assets, pgkin_asset_count, e);
    if (!ok)
        goto out;

    const struct asset *begin = asset_find("sql/queries/migrate_dump_begin.sql");
    if (begin == NULL)
        BUG("no asset migrate_dump_begin");
    buf_add(out, begin->data, begin->size); // commands of psql: no semicolon
    buf_addc(out, '\n');
    add_query(out, "sql/queries/migrate_begin.sql");
    add_query(out, "sql/queries/migrate_lock.sql");
    add_query(out, "sql/queries/migrate_bootstrap.sql");
    buf_adds(out, "prepare pgkin_record_migration as\n");
    add_query(out, "sql/queries/migrate_record_migration.sql");
    buf_adds(out, "prepare pgkin_record_function as\n");
    add_query(out, "sql/queries/migrate_record_function.sql");

    // Names and checksums need no quoting: migrate_files_load() saw to that.
    for (size_t i = 0; i < files.migration_count; i++) {
        const struct migrate_file *f = &files.migrations[i];
        add_file(out, f);
        buf_addf(out, "execute pgkin_record_migration (%d, '%s', '%s', '%s');\n\n",
                 f->version, f->name, f->checksum, PGKIN_VERSION);
    }
    for (size_t i = 0; i < files.function_count; i++) {
        const struct migrate_file *f = &files.functions[i];
        add_file(out, f);
        buf_addf(out, "execute pgkin_record_function ('%s', '%s');\n\n", f->name,
                 f->checksum);
    }

    add_query(out, "sql/queries/migrate_roles.sql");
    buf_adds(out, "deallocate pgkin_record_migration;\n");
    buf_adds(out, "deallocate pgkin_record_function;\n\n");
    add_query(out, "sql/queries/migrate_commit.sql");
out:
    migrate_files_clear(&files);
    return ok;
}
