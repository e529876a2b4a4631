// SPDX-License-Identifier: Apache-2.0

#include "cli/doctor.h"

#include <math.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>

#include "cli/client.h"
#include "core/buf.h"
#include "lib/migrate_files.h"

// From here on a clock that differs is told of.
#define SKEW_WARN_S 1.0
#define SKEW_FAIL_S 60.0

static const char *const level_names[] = {
    [DOCTOR_OK] = "ok", [DOCTOR_WARN] = "warn", [DOCTOR_FAIL] = "fail"};

const char *doctor_level_name(enum doctor_level level)
{
    return level_names[level];
}

// `text` is copied, and `hint` (may be NULL) unless all is well.
static void add_finding(struct doctor_report *rep, const char *check,
                        enum doctor_level level, const char *text, const char *hint)
{
    rep->findings = xrealloc(rep->findings, (rep->count + 1) * sizeof *rep->findings);
    rep->findings[rep->count++] = (struct doctor_finding){
        .check = check,
        .level = level,
        .text = xstrdup(text),
        .hint =
            level != DOCTOR_OK && hint != NULL && hint[0] != '\0' ? xstrdup(hint) : NULL,
    };
    if (level > rep->worst)
        rep->worst = level;
}

void doctor_report_clear(struct doctor_report *rep)
{
    for (size_t i = 0; i < rep->count; i++) {
        free(rep->findings[i].text);
        free(rep->findings[i].hint);
    }
    free(rep->findings);
    *rep = (struct doctor_report){0};
}

static void add_unknown(struct doctor_report *rep, const char *check, const struct err *e)
{
    char *text = xasprintf("cannot be checked: %s", e->msg);
    add_finding(rep, check, DOCTOR_WARN, text, e->hint);
    free(text);
}

// ---------------------------------------------------------------- the checks

static enum doctor_level parse_level(const char *name)
{
    for (int i = DOCTOR_OK; i <= DOCTOR_FAIL; i++)
        if (strcmp(name, level_names[i]) == 0)
            return (enum doctor_level)i;
    BUG("a check said \"%s\"", name);
}

static void check_query(PGconn *conn, const char *check, const char *query,
                        struct doctor_report *rep)
{
    struct err e = ERR_INIT;
    PGresult *res = client_query(conn, query, 0, NULL, &e);
    if (res == NULL)
        add_unknown(rep, check, &e);
    for (int i = 0; i < PQntuples(res); i++)
        add_finding(rep, check, parse_level(PQgetvalue(res, i, 0)), PQgetvalue(res, i, 1),
                    client_value(res, i, 2));
    PQclear(res);
}

// False when there is nothing below that further checks could look at.
static bool check_schema(PGconn *conn, struct doctor_report *rep)
{
    struct err e = ERR_INIT;
    int version = 0;
    if (!client_check(conn, &version, &e)) {
        add_finding(rep, "schema", DOCTOR_FAIL, e.msg, e.hint);
        return false;
    }
    char *text = xasprintf("version %d, as this pgkin needs it", version);
    add_finding(rep, "schema", DOCTOR_OK, text, NULL);
    free(text);
    return true;
}

// Appends the names of those function files that differ between the database and
// this binary. Returns how many.
static size_t differing_functions(const PGresult *res, const struct migrate_files *files,
                                  struct buf *names)
{
    size_t differing = 0, known = 0;
    for (int i = 0; i < PQntuples(res); i++) {
        const char *name = PQgetvalue(res, i, 0);
        const struct migrate_file *f = migrate_files_find_function(files, name);
        known += f != NULL;
        if (f != NULL && strcmp(f->checksum, PQgetvalue(res, i, 1)) == 0)
            continue;
        buf_addf(names, "%s%s", differing++ > 0 ? ", " : "", name);
    }
    if (known < files->function_count) {
        size_t missing = files->function_count - known;
        buf_addf(names, "%s%zu missing", differing > 0 ? ", " : "", missing);
        differing += missing;
    }
    return differing;
}

static void check_functions(PGconn *conn, const char *check, struct doctor_report *rep)
{
    struct err e = ERR_INIT;
    struct migrate_files files;
    struct buf names = BUF_INIT;
    PGresult *res = client_query(conn, "migrate_recorded_functions", 0, NULL, &e);
    if (res == NULL) {
        add_unknown(rep, check, &e);
        return;
    }
    if (!migrate_files_load(&files, pgkin_assets, pgkin_asset_count, &e))
        BUG("%s", e.msg);
    if (differing_functions(res, &files, &names) == 0) {
        add_finding(rep, check, DOCTOR_OK, "those of this pgkin", NULL);
    } else {
        char *text = xasprintf("of another build of pgkin: %s", buf_str(&names));
        add_finding(rep, check, DOCTOR_WARN, text,
                    "pgkin migrate of the newer build brings the database up to date");
        free(text);
    }
    migrate_files_clear(&files);
    buf_clear(&names);
    PQclear(res);
}

static double read_clock(clockid_t clock)
{
    struct timespec ts;
    clock_gettime(clock, &ts);
    return (double)ts.tv_sec + (double)ts.tv_nsec / 1e9;
}

// The server looked at its clock at some time between our asking and its answer.
static void check_clock(PGconn *conn, const char *check, struct doctor_report *rep)
{
    struct err e = ERR_INIT;
    double before = read_clock(CLOCK_REALTIME);
    PGresult *res = client_query(conn, "cli_doctor_clock", 0, NULL, &e);
    double after = read_clock(CLOCK_REALTIME);
    if (res == NULL) {
        add_unknown(rep, check, &e);
        return;
    }
    double server = strtod(PQgetvalue(res, 0, 0), NULL);
    double skew = server < before ? server - before : server > after ? server - after : 0;
    PQclear(res);
    enum doctor_level level = fabs(skew) >= SKEW_FAIL_S   ? DOCTOR_FAIL
                              : fabs(skew) >= SKEW_WARN_S ? DOCTOR_WARN
                                                          : DOCTOR_OK;
    char *text = level == DOCTOR_OK
                     ? xstrdup("this machine and the server agree")
                     : xasprintf("the server is %.1f s %s this machine", fabs(skew),
                                 skew > 0 ? "ahead of" : "behind");
    add_finding(rep, check, level, text,
                "set the clocks by NTP; the server's is the one that counts");
    free(text);
}

// Where the schema has no limits nothing can leak.
static void check_slots(PGconn *conn, const char *check, struct doctor_report *rep)
{
    struct err e = ERR_INIT;
    PGresult *res = client_query(conn, "cli_doctor_has_slots", 0, NULL, &e);
    if (res == NULL)
        add_unknown(rep, check, &e);
    else if (client_true(res, 0, 0))
        check_query(conn, check, "cli_doctor_slots", rep);
    PQclear(res);
}

static const struct {
    const char *name;
    bool in_schema;    // needs it
    const char *query; // or
    void (*run)(PGconn *conn, const char *check, struct doctor_report *rep);
} checks[] = {
    {"functions", true, NULL, check_functions},
    {"roles", true, "cli_doctor_roles", NULL},
    {"grants", true, "cli_doctor_grants", NULL},
    {"workers", true, "cli_doctor_workers", NULL},
    {"leases", true, "cli_doctor_leases", NULL},
    {"parents", true, "cli_doctor_parents", NULL},
    {"slots", true, NULL, check_slots},
    {"snapshot", false, "cli_doctor_snapshot", NULL},
    {"dead-rows", true, "cli_doctor_dead_rows", NULL},
    {"autovacuum", false, "cli_doctor_autovacuum", NULL},
    {"notifications", false, "cli_doctor_notify", NULL},
    {"clock", false, NULL, check_clock},
};

void doctor_examine(PGconn *conn, struct doctor_report *rep)
{
    *rep = (struct doctor_report){0};
    bool schema = check_schema(conn, rep);
    for (size_t i = 0; i < sizeof checks / sizeof checks[0]; i++) {
        if (checks[i].in_schema && !schema)
            continue;
        if (checks[i].run != NULL)
            checks[i].run(conn, checks[i].name, rep);
        else
            check_query(conn, checks[i].name, checks[i].query, rep);
    }
}
