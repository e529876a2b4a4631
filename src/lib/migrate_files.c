// SPDX-License-Identifier: Apache-2.0

#include "lib/migrate_files.h"

#include <ctype.h>
#include <stdlib.h>
#include <string.h>
#include <strings.h>

#include "core/buf.h"
#include "lib/migrate_scan.h"

#define MIGRATION_DIR "sql/migrations/"
#define FUNCTION_DIR  "sql/functions/"

static bool starts_with(const char *s, const char *prefix)
{
    return strncmp(s, prefix, strlen(prefix)) == 0;
}

// Takes "0001_schemas.sql" apart. The strict form lets names stand in messages
// and in the dump as they are.
static bool parse_name(const char *base, int digits, struct migrate_file *out)
{
    const char *p = base;
    int number = 0;
    for (; isdigit((unsigned char)*p) && p - base < digits; p++)
        number = number * 10 + (*p - '0');
    if (p - base != digits || number == 0 || *p != '_')
        return false;
    const char *word = ++p;
    while (islower((unsigned char)*p) || isdigit((unsigned char)*p) || *p == '_')
        p++;
    if (p == word || strcmp(p, ".sql") != 0)
        return false;
    out->version = number;
    out->name = xasprintf("%.*s", (int)(p - base), base);
    return true;
}

static bool check_statements(const struct asset *a, struct err *e)
{
    static const char *const refused[] = {"abort", "begin",   "commit",   "copy",
                                          "end",   "prepare", "rollback", "savepoint",
                                          "start", "release"};
    struct sql_scan scan = {a->data, a->size, 0};
    struct sql_statement st;
    if (memchr(a->data, '\0', a->size) != NULL)
        return err_set(e, "%s: the file has a null byte", a->name);
    while (sql_scan_next(&scan, &st)) {
        for (size_t i = 0; i < sizeof refused / sizeof refused[0]; i++) {
            size_t len = strlen(refused[i]);
            if (st.end - st.start < len ||
                strncasecmp(a->data + st.start, refused[i], len) != 0 ||
                (st.end - st.start > len &&
                 (isalnum((unsigned char)a->data[st.start + len]) ||
                  a->data[st.start + len] == '_')))
                continue;
            return err_set(e, "%s:%d: \"%s\" has no place in a schema file", a->name,
                           sql_line_at(a->data, a->size, st.start), refused[i]);
        }
    }
    return true;
}

static bool add_file(struct migrate_file **list, size_t *count, const struct asset *a,
                     const char *base, int digits, struct err *e)
{
    struct migrate_file f = {.asset = a};
    if (!parse_name(base, digits, &f))
        return err_set(e, "%s: the name is not of the form %.*s_name.sql", a->name,
                       digits, "NNNN");
    sha256_hex(a->data, a->size, f.checksum);
    *list = xrealloc(*list, (*count + 1) * sizeof **list);
    (*list)[(*count)++] = f;
    return check_statements(a, e);
}

bool migrate_files_load(struct migrate_files *f, const struct asset *assets, size_t count,
                        struct err *e)
{
    *f = (struct migrate_files){0};
    for (size_t i = 0; i < count; i++) {
        const struct asset *a = &assets[i];
        bool ok = true;
        if (starts_with(a->name, MIGRATION_DIR))
            ok = add_file(&f->migrations, &f->migration_count, a,
                          a->name + strlen(MIGRATION_DIR), 4, e);
        else if (starts_with(a->name, FUNCTION_DIR))
            ok = add_file(&f->functions, &f->function_count, a,
                          a->name + strlen(FUNCTION_DIR), 2, e);
        if (!ok)
            return false;
    }
    // Sorted by name is sorted by number: all numbers have four digits.
    for (size_t i = 1; i < f->migration_count; i++)
        if (f->migrations[i - 1].version >= f->migrations[i].version)
            return err_set(e, "migrations %s and %s have the same number",
                           f->migrations[i - 1].name, f->migrations[i].name);
    return true;
}

static void clear_list(struct migrate_file *list, size_t count)
{
    for (size_t i = 0; i < count; i++)
        free(list[i].name);
    free(list);
}

void migrate_files_clear(struct migrate_files *f)
{
    clear_list(f->migrations, f->migration_count);
    clear_list(f->functions, f->function_count);
    *f = (struct migrate_files){0};
}

int migrate_files_version(const struct migrate_files *f)
{
    return f->migration_count != 0 ? f->migrations[f->migration_count - 1].version : 0;
}

const struct migrate_file *migrate_files_find_migration(const struct migrate_files *f,
                                                        int version)
{
    for (size_t i = 0; i < f->migration_count; i++)
        if (f->migrations[i].version == version)
            return &f->migrations[i];
    return NULL;
}

const struct migrate_file *migrate_files_find_function(const struct migrate_files *f,
                                                       const char *name)
{
    for (size_t i = 0; i < f->function_count; i++)
        if (strcmp(f->functions[i].name, name) == 0)
            return &f->functions[i];
    return NULL;
}
