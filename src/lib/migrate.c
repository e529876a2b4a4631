// SPDX-License-Identifier: Apache-2.0

#include "lib/migrate.h"

#include <poll.h>
#include <stdlib.h>
#include <string.h>

#include "lib/migrate_files.h"
#include "lib/migrate_scan.h"
#include "pgkin.h"

// How long the lock may take before the caller is told that we wait.
#define WAIT_NOTICE_MS 500

struct run {
    PGconn *conn;
    const struct migrate_options *opt;
    struct migrate_report *rep;
    struct migrate_files files;
    bool installed;
    PGresult *migrations; // recorded: version, name, checksum; NULL when not installed
    PGresult *functions;  // recorded: name, checksum
};

// ---------------------------------------------------------------- statements

static const char *query_text(const char *query)
{
    char name[128];
    snprintf(name, sizeof name, "sql/queries/%s.sql", query);
    const struct asset *a = asset_find(name);
    if (a == NULL)
        BUG("no asset %s", name);
    return a->data;
}

// What the reader can do about a failure of the server, by SQLSTATE.
static const struct {
    const char *sqlstate;
    const char *message; // NULL: the server's own
    const char *hint;
} known_errors[] = {
    {"42501", NULL,
     "run it as the owner of the database, or as the role that installed the schema"},
    {"42P06", NULL, "pgkin needs the schemas worker, queues and internal for itself"},
    {"55P03", "a lock was not granted in time",
     "another session uses the table: see pg_stat_activity, and run it again later"},
    {"40P01", NULL, "nothing was changed; run it again"},
    {"25006", NULL, "connect to the primary server, with a session that may write"},
};

static bool set_error(PGconn *conn, const PGresult *res, struct err *e)
{
    const char *message = PQresultErrorField(res, PG_DIAG_MESSAGE_PRIMARY);
    const char *detail = PQresultErrorField(res, PG_DIAG_MESSAGE_DETAIL);
    const char *hint = PQresultErrorField(res, PG_DIAG_MESSAGE_HINT);
    const char *sqlstate = PQresultErrorField(res, PG_DIAG_SQLSTATE);
    if (message == NULL || sqlstate == NULL)
        return err_set(e, "%s", PQerrorMessage(conn));

    for (size_t i = 0; i < sizeof known_errors / sizeof known_errors[0]; i++) {
        if (strcmp(sqlstate, known_errors[i].sqlstate) != 0)
            continue;
        if (known_errors[i].message != NULL)
            message = known_errors[i].message;
        if (hint == NULL)
            hint = known_errors[i].hint;
    }
    if (detail != NULL)
        err_set(e, "%s (%s)", message, detail);
    else
        err_set(e, "%s", message);
    if (hint != NULL)
        err_hint(e, "%s", hint);
    return false;
}

// One statement. NULL with `e` filled on failure; else the caller clears.
static PGresult *exec_query(PGconn *conn, const char *query, int n,
                            const char *const *params, struct err *e)
{
    PGresult *res = PQexecParams(conn, query_text(query), n, NULL, params, NULL, NULL, 0);
    ExecStatusType status = PQresultStatus(res);
    if (status == PGRES_TUPLES_OK || status == PGRES_COMMAND_OK)
        return res;
    set_error(conn, res, e);
    PQclear(res);
    return NULL;
}

static bool exec_command(PGconn *conn, const char *query, int n,
                         const char *const *params, struct err *e)
{
    PGresult *res = exec_query(conn, query, n, params, e);
    PQclear(res);
    return res != NULL;
}

// Reads the results of a text of several statements that was sent. NULL when
// all went well; else the failed one's result, which the caller clears, and in
// `done` how many statements succeeded before it.
static PGresult *read_results(PGconn *conn, int *done)
{
    PGresult *failed = NULL;
    *done = 0;
    for (PGresult *res; (res = PQgetResult(conn)) != NULL;) {
        ExecStatusType status = PQresultStatus(res);
        bool ok = status == PGRES_TUPLES_OK || status == PGRES_COMMAND_OK ||
                  status == PGRES_EMPTY_QUERY;
        if (failed == NULL && !ok) {
            failed = res;
            continue;
        }
        if (failed == NULL)
            (*done)++;
        PQclear(res);
    }
    return failed;
}

static bool exec_script(PGconn *conn, const char *query, struct err *e)
{
    int done;
    if (!PQsendQuery(conn, query_text(query)))
        return err_set(e, "%s", PQerrorMessage(conn));
    PGresult *failed = read_results(conn, &done);
    if (failed == NULL)
        return true;
    set_error(conn, failed, e);
    PQclear(failed);
    return false;
}

static int get_int(const PGresult *res, int row, int column)
{
    return (int)strtol(PQgetvalue(res, row, column), NULL, 10);
}

// ---------------------------------------------------------------- the report

static void list_add(char ***list, size_t *count, const char *s)
{
    *list = xrealloc(*list, (*count + 1) * sizeof **list);
    (*list)[(*count)++] = xstrdup(s);
}

static void list_clear(char **list, size_t count)
{
    for (size_t i = 0; i < count; i++)
        free(list[i]);
    free(list);
}

void migrate_report_clear(struct migrate_report *rep)
{
    list_clear(rep->migrations, rep->migration_count);
    list_clear(rep->functions, rep->function_count);
    list_clear(rep->changed, rep->changed_count);
    list_clear(rep->removed, rep->removed_count);
    for (size_t i = 0; i < rep->warning_count; i++) {
        free(rep->warnings[i].text);
        free(rep->warnings[i].hint);
    }
    free(rep->warnings);
    *rep = MIGRATE_REPORT_INIT;
}

static void keep_warning(void *arg, const PGresult *res)
{
    struct migrate_report *rep = arg;
    const char *severity = PQresultErrorField(res, PG_DIAG_SEVERITY_NONLOCALIZED);
    const char *text = PQresultErrorField(res, PG_DIAG_MESSAGE_PRIMARY);
    const char *hint = PQresultErrorField(res, PG_DIAG_MESSAGE_HINT);
    if (severity == NULL || strcmp(severity, "WARNING") != 0 || text == NULL)
        return;
    rep->warnings =
        xrealloc(rep->warnings, (rep->warning_count + 1) * sizeof rep->warnings[0]);
    rep->warnings[rep->warning_count++] = (struct migrate_warning){
        .text = xstrdup(text), .hint = hint != NULL ? xstrdup(hint) : NULL};
}

// ---------------------------------------------------------------- what is there

static bool read_installed(PGconn *conn, bool *installed, struct err *e)
{
    PGresult *res = exec_query(conn, "migrate_installed", 0, NULL, e);
    if (res == NULL)
        return false;
    *installed = strcmp(PQgetvalue(res, 0, 0), "t") == 0;
    PQclear(res);
    return true;
}

static bool set_newer(int version, const char *name, int known, struct err *e)
{
    err_set(e, "the database has schema version %d (%s), this pgkin knows %d", version,
            name, known);
    return err_hint(e, "upgrade pgkin: this is %s", PGKIN_VERSION);
}

// The records against the files: a database that is newer, or went another
// way than these files, is left alone.
static bool check_recorded(const struct run *r, struct err *e)
{
    int rows = PQntuples(r->migrations);
    int known = migrate_files_version(&r->files);
    int last = rows != 0 ? get_int(r->migrations, rows - 1, 0) : 0;
    if (last > known)
        return set_newer(last, PQgetvalue(r->migrations, rows - 1, 1), known, e);

    for (int i = 0; i < rows; i++) {
        const char *name = PQgetvalue(r->migrations, i, 1);
        const struct migrate_file *f =
            migrate_files_find_migration(&r->files, get_int(r->migrations, i, 0));
        if (f == NULL || strcmp(f->name, name) != 0) {
            err_set(e, "the database has migration %s, which this pgkin does not have",
                    name);
            return err_hint(e,
                            "use the pgkin that installed this schema, or a later one");
        }
        if (strcmp(f->checksum, PQgetvalue(r->migrations, i, 2)) != 0) {
            err_set(
                e,
                "migration %s is not the one that was applied: checksum %s, recorded %s",
                name, f->checksum, PQgetvalue(r->migrations, i, 2));
            return err_hint(
                e, "a migration never changes once applied; use a released pgkin");
        }
    }

    // Rows are a part of the files now; fewer of them up to `last` is a gap.
    int row = 0;
    for (size_t i = 0; i < r->files.migration_count && row < rows; i++) {
        const struct migrate_file *f = &r->files.migrations[i];
        if (get_int(r->migrations, row, 0) != f->version)
            return err_set(e, "migration %s was never applied, but later ones were",
                           f->name);
        row++;
    }
    return true;
}

static bool read_recorded(struct run *r, struct err *e)
{
    if (!read_installed(r->conn, &r->installed, e))
        return false;
    if (!r->installed)
        return true;
    r->migrations = exec_query(r->conn, "migrate_recorded_migrations", 0, NULL, e);
    if (r->migrations == NULL)
        return err_wrap(e, "cannot read the schema's records");
    r->functions = exec_query(r->conn, "migrate_recorded_functions", 0, NULL, e);
    if (r->functions == NULL)
        return err_wrap(e, "cannot read the schema's records");
    return check_recorded(r, e);
}

// ---------------------------------------------------------------- what to do

static const char *recorded_checksum(const struct run *r, const char *function)
{
    for (int i = 0; i < PQntuples(r->functions); i++)
        if (strcmp(PQgetvalue(r->functions, i, 0), function) == 0)
            return PQgetvalue(r->functions, i, 1);
    return "";
}

static void make_plan(struct run *r)
{
    struct migrate_report *rep = r->rep;
    int rows = PQntuples(r->migrations);
    rep->from_version = rows != 0 ? get_int(r->migrations, rows - 1, 0) : 0;
    rep->to_version = migrate_files_version(&r->files);

    for (size_t i = 0; i < r->files.migration_count; i++)
        if (r->files.migrations[i].version > rep->from_version)
            list_add(&rep->migrations, &rep->migration_count,
                     r->files.migrations[i].name);

    for (size_t i = 0; i < r->files.function_count; i++) {
        const struct migrate_file *f = &r->files.functions[i];
        if (strcmp(recorded_checksum(r, f->name), f->checksum) != 0)
            list_add(&rep->changed, &rep->changed_count, f->name);
    }
    // All or none: they may depend on each other, and on the shape of data.
    if (rep->changed_count != 0 || rep->migration_count != 0)
        for (size_t i = 0; i < r->files.function_count; i++)
            list_add(&rep->functions, &rep->function_count, r->files.functions[i].name);

    // The record of a file that this binary does not have is dropped; what the
    // file once made is for a migration to drop.
    for (int i = 0; i < PQntuples(r->functions); i++) {
        const char *name = PQgetvalue(r->functions, i, 0);
        if (migrate_files_find_function(&r->files, name) == NULL)
            list_add(&rep->removed, &rep->removed_count, name);
    }
}

// ---------------------------------------------------------------- doing it

// Where in the file a statement failed: where the server says, else at the
// beginning of the statement that did not succeed.
static int failed_line(const struct asset *a, const PGresult *failed, int done)
{
    const char *position = PQresultErrorField(failed, PG_DIAG_STATEMENT_POSITION);
    if (position != NULL)
        return sql_line_at(
            a->data, a->size,
            sql_offset_of_position(a->data, a->size, (int)strtol(position, NULL, 10)));
    struct sql_scan scan = {a->data, a->size, 0};
    struct sql_statement st = {0};
    for (int i = 0; i <= done && sql_scan_next(&scan, &st); i++)
        ;
    return sql_line_at(a->data, a->size, st.start);
}

static bool apply_file(struct run *r, const struct migrate_file *f, struct err *e)
{
    int done;
    if (!PQsendQuery(r->conn, f->asset->data))
        return err_set(e, "%s", PQerrorMessage(r->conn));
    PGresult *failed = read_results(r->conn, &done);
    if (failed == NULL)
        return true;
    int line = failed_line(f->asset, failed, done);
    set_error(r->conn, failed, e);
    PQclear(failed);
    return err_wrap(e, "%s:%d", f->asset->name, line);
}

static bool apply_migrations(struct run *r, struct err *e)
{
    for (size_t i = 0; i < r->files.migration_count; i++) {
        const struct migrate_file *f = &r->files.migrations[i];
        char version[16];
        if (f->version <= r->rep->from_version)
            continue;
        snprintf(version, sizeof version, "%d", f->version);
        const char *params[] = {version, f->name, f->checksum, PGKIN_VERSION};
        if (!apply_file(r, f, e) ||
            !exec_command(r->conn, "migrate_record_migration", 4, params, e))
            return false;
    }
    return true;
}

static bool apply_functions(struct run *r, struct err *e)
{
    for (size_t i = 0; i < r->rep->function_count; i++) {
        const struct migrate_file *f = &r->files.functions[i];
        const char *params[] = {f->name, f->checksum};
        if (!apply_file(r, f, e) ||
            !exec_command(r->conn, "migrate_record_function", 2, params, e))
            return false;
    }
    for (size_t i = 0; i < r->rep->removed_count; i++) {
        const char *params[] = {r->rep->removed[i]};
        if (!exec_command(r->conn, "migrate_forget_function", 1, params, e))
            return false;
    }
    return true;
}

static bool apply_plan(struct run *r, struct err *e)
{
    if (!r->installed && !exec_script(r->conn, "migrate_bootstrap", e))
        return err_wrap(e, "cannot install the schema");
    if (!apply_migrations(r, e) || !apply_functions(r, e))
        return false;
    // Roles that could not be made the last time may be there by now.
    if (!exec_script(r->conn, "migrate_roles", e))
        return err_wrap(e, "cannot set up the roles");
    return exec_script(r->conn, "migrate_commit", e);
}

// ---------------------------------------------------------------- the frame

static bool take_lock(struct run *r, struct err *e)
{
    int done;
    if (!PQsendQuery(r->conn, query_text("migrate_lock")))
        return err_set(e, "%s", PQerrorMessage(r->conn));
    struct pollfd fd = {.fd = PQsocket(r->conn), .events = POLLIN};
    if (r->opt->on_wait != NULL && poll(&fd, 1, WAIT_NOTICE_MS) == 0)
        r->opt->on_wait(r->opt->arg);
    PGresult *failed = read_results(r->conn, &done);
    if (failed != NULL) {
        set_error(r->conn, failed, e);
        PQclear(failed);
        return false;
    }
    if (r->opt->lock_timeout == NULL)
        return true;
    const char *params[] = {r->opt->lock_timeout};
    if (exec_command(r->conn, "migrate_lock_timeout", 1, params, e))
        return true;
    if (e != NULL && PQstatus(r->conn) == CONNECTION_OK)
        e->code = ERR_USAGE;
    return false;
}

static bool run_in_transaction(struct run *r, struct err *e)
{
    bool dry_run = r->opt->dry_run;
    const char *standby = PQparameterStatus(r->conn, "in_hot_standby");
    if (!dry_run && standby != NULL && strcmp(standby, "on") == 0) {
        err_set(e, "the server is a standby, which cannot be written to");
        return err_hint(e, "connect to the primary server");
    }
    if (!exec_script(r->conn, dry_run ? "migrate_begin_dry_run" : "migrate_begin", e) ||
        (!dry_run && !take_lock(r, e)) || !read_recorded(r, e))
        return false;
    make_plan(r);
    return dry_run || apply_plan(r, e);
}

bool migrate_run(PGconn *conn, const struct migrate_options *opt,
                 struct migrate_report *rep, struct err *e)
{
    static const struct migrate_options defaults = {0};
    struct run r = {.conn = conn, .opt = opt != NULL ? opt : &defaults, .rep = rep};
    const struct asset *assets = r.opt->assets != NULL ? r.opt->assets : pgkin_assets;
    size_t count = r.opt->assets != NULL ? r.opt->asset_count : pgkin_asset_count;
    if (PQstatus(conn) != CONNECTION_OK)
        return err_set(e, "%s", PQerrorMessage(conn));
    if (PQtransactionStatus(conn) != PQTRANS_IDLE)
        BUG("migrate_run in a transaction");
    PQnoticeReceiver before = PQsetNoticeReceiver(conn, keep_warning, rep);

    bool ok = migrate_files_load(&r.files, assets, count, e) &&
              migrate_server_supported(PQserverVersion(conn), e) &&
              run_in_transaction(&r, e);

    if (PQstatus(conn) == CONNECTION_OK && PQtransactionStatus(conn) != PQTRANS_IDLE)
        exec_script(conn, "migrate_rollback", NULL);
    PQsetNoticeReceiver(conn, before, NULL);
    PQclear(r.migrations);
    PQclear(r.functions);
    migrate_files_clear(&r.files);
    return ok;
}

bool migrate_check(PGconn *conn, int *db_version, struct err *e)
{
    bool installed;
    int version = 0;
    int known = migrate_known_version();
    if (!migrate_server_supported(PQserverVersion(conn), e) ||
        !read_installed(conn, &installed, e))
        return false;
    if (db_version != NULL)
        *db_version = 0;
    if (!installed) {
        err_set(e, "the schema is not installed in database \"%s\"", PQdb(conn));
        return err_hint(e, "run pgkin migrate");
    }

    PGresult *res = exec_query(conn, "migrate_version", 0, NULL, e);
    if (res == NULL)
        return err_wrap(e, "cannot read the schema's version");
    bool ok = true;
    if (PQntuples(res) != 0)
        version = get_int(res, 0, 0);
    if (db_version != NULL)
        *db_version = version;
    if (version > known) {
        ok = set_newer(version, PQgetvalue(res, 0, 1), known, e);
    } else if (version < known) {
        err_set(e, "the database has schema version %d, this pgkin needs %d", version,
                known);
        ok = err_hint(e, "run pgkin migrate");
    }
    PQclear(res);
    return ok;
}

int migrate_known_version(void)
{
    struct migrate_files files;
    struct err e = ERR_INIT;
    if (!migrate_files_load(&files, pgkin_assets, pgkin_asset_count, &e))
        BUG("%s", e.msg);
    int version = migrate_files_version(&files);
    migrate_files_clear(&files);
    return version;
}

bool migrate_server_supported(int server_version, struct err *e)
{
    if (server_version >= MIGRATE_MIN_SERVER)
        return true;
    // Before 10 the major version had two parts.
    if (server_version < 100000)
        err_set(e, "PostgreSQL %d.%d is too old", server_version / 10000,
                server_version / 100 % 100);
    else
        err_set(e, "PostgreSQL %d is too old", server_version / 10000);
    return err_hint(e, "pgkin needs PostgreSQL %d or later", MIGRATE_MIN_SERVER / 10000);
}
