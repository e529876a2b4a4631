// SPDX-License-Identifier: Apache-2.0

#include <stdio.h>
#include <string.h>

#include "cli/cli.h"
#include "cli/db.h"
#include "cli/options.h"
#include "core/json.h"
#include "lib/migrate.h"

struct values {
    bool dry_run;
    bool dump;
    bool json;
    const char *lock_timeout;
};

static const struct cli_option options[] = {
    {"dry-run", 0, CLI_FLAG, offsetof(struct values, dry_run), NULL,
     "show what would be done; change nothing"},
    {"dump", 0, CLI_FLAG, offsetof(struct values, dump), NULL,
     "print the schema as a script for psql; no database is needed"},
    {"lock-timeout", 0, CLI_STRING, offsetof(struct values, lock_timeout), "TIME",
     "give up when a table stays locked for so long (10s)"},
    {"json", 0, CLI_FLAG, offsetof(struct values, json), NULL,
     "report as one JSON object"},
    {0},
};

static void print_report(const struct migrate_report *rep, bool dry_run)
{
    const char *verb = dry_run ? "would apply" : "applied";
    for (size_t i = 0; i < rep->migration_count; i++)
        printf("%s migration %s\n", verb, rep->migrations[i]);
    if (rep->function_count != 0) {
        printf("%s functions, %zu file%s", verb, rep->function_count,
               rep->function_count != 1 ? "s" : "");
        // At an upgrade of the functions alone it is of interest which.
        for (size_t i = 0; rep->migration_count == 0 && i < rep->changed_count; i++)
            printf("%s%s", i == 0 ? ", changed: " : ", ", rep->changed[i]);
        putchar('\n');
    }
    for (size_t i = 0; i < rep->removed_count; i++)
        printf("%s the record of functions %s\n", dry_run ? "would remove" : "removed",
               rep->removed[i]);
    if (!dry_run)
        printf("schema is at version %d\n", rep->to_version);
    else if (rep->from_version == 0)
        printf("schema is not installed, would be at version %d\n", rep->to_version);
    else if (rep->from_version != rep->to_version)
        printf("schema is at version %d, would be at version %d\n", rep->from_version,
               rep->to_version);
    else
        printf("schema is at version %d\n", rep->from_version);
}

static void add_names(struct json *j, const char *key, char *const *names, size_t count)
{
    json_add_key(j, key);
    json_begin_array(j);
    for (size_t i = 0; i < count; i++)
        json_add_string(j, names[i]);
    json_end_array(j);
}

static void print_json(const struct migrate_report *rep, bool dry_run)
{
    struct buf text = BUF_INIT;
    struct json j;
    json_init(&j, &text);
    json_begin_object(&j);
    json_add_key(&j, "dry_run");
    json_add_bool(&j, dry_run);
    json_add_key(&j, "from_version");
    json_add_int(&j, rep->from_version);
    json_add_key(&j, "version");
    json_add_int(&j, rep->to_version);
    add_names(&j, "migrations", rep->migrations, rep->migration_count);
    add_names(&j, "functions", rep->functions, rep->function_count);
    add_names(&j, "changed", rep->changed, rep->changed_count);
    add_names(&j, "removed", rep->removed, rep->removed_count);
    json_add_key(&j, "warnings");
    json_begin_array(&j);
    for (size_t i = 0; i < rep->warning_count; i++)
        json_add_string(&j, rep->warnings[i].text);
    json_end_array(&j);
    json_end_object(&j);
    json_finish(&j);
    puts(buf_str(&text));
    buf_clear(&text);
}

// A hint that several warnings share is shown once, after them.
static void print_warnings(const struct migrate_report *rep)
{
    for (size_t i = 0; i < rep->warning_count; i++) {
        const struct migrate_warning *w = &rep->warnings[i];
        bool last = i + 1 == rep->warning_count;
        const char *next = last ? NULL : rep->warnings[i + 1].hint;
        fprintf(stderr, "pgkin: warning: %s\n", w->text);
        if (w->hint != NULL && (next == NULL || strcmp(w->hint, next) != 0))
            fprintf(stderr, "hint: %s\n", w->hint);
    }
}

static void say_waiting(void *arg)
{
    (void)arg;
    fputs("pgkin: another migration is running; waiting for it\n", stderr);
}

static bool dump(struct err *e)
{
    struct buf script = BUF_INIT;
    bool ok = migrate_dump(&script, e);
    if (ok)
        fwrite(script.data, 1, script.len, stdout);
    buf_clear(&script);
    return ok;
}

static bool migrate(const struct values *v, const struct cli_common *common,
                    struct err *e)
{
    const struct migrate_options opt = {
        .dry_run = v->dry_run, .lock_timeout = v->lock_timeout, .on_wait = say_waiting};
    struct migrate_report rep = MIGRATE_REPORT_INIT;
    PGconn *conn = db_connect_in(common->database, common->data_dir, e);
    if (conn == NULL)
        return false;
    bool ok = migrate_run(conn, &opt, &rep, e);
    print_warnings(&rep);
    if (ok && v->json)
        print_json(&rep, v->dry_run);
    else if (ok)
        print_report(&rep, v->dry_run);
    migrate_report_clear(&rep);
    PQfinish(conn);
    return ok;
}

static bool run(int argc, char **argv, struct err *e);

const struct cli_command cmd_migrate = {
    .name = "migrate",
    .args = "[--dry-run] [--dump] [--json]",
    .summary = "install or upgrade the schema",
    .help = "Everything is done in one transaction, or not at all. It is safe to run it\n"
            "twice, and by two at once: the second waits and finds nothing to do.\n"
            "\n"
            "examples:\n"
            "  pgkin migrate -d postgresql://app@db.example.net/app\n"
            "  pgkin migrate --dump | psql -d app\n",
    .options = options,
    .run = run,
};

static bool run(int argc, char **argv, struct err *e)
{
    struct values v = {0};
    struct cli_common common;
    if (!cli_parse(&cmd_migrate, argc, argv, &v, &common, NULL, e))
        return false;
    bool ok;
    if (v.dump && (v.dry_run || v.json))
        ok = err_usage(e, "--dump cannot be combined with %s",
                       v.dry_run ? "--dry-run" : "--json");
    else
        ok = v.dump ? dump(e) : migrate(&v, &common, e);
    cli_common_clear(&common);
    return ok;
}
