// SPDX-License-Identifier: Apache-2.0

#include "cli/client.h"

#include <errno.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "cli/db.h"
#include "core/asset.h"
#include "lib/migrate.h"

#define ROLES_HINT                                                                       \
    "roles give rights: worker_monitor to look, worker_enqueuer to enqueue, "            \
    "worker_admin for all"

// What an error of the server means for whoever typed the command, by SQLSTATE.
static const struct {
    const char *sqlstate;
    enum err_code code;
    const char *hint; // NULL: none but the server's own
} known_errors[] = {
    {"42501", ERR_FAILED, ROLES_HINT},
    {"42883", ERR_FAILED,
     "the functions in the database are of another build: pgkin migrate brings this "
     "one's"},
    {"22P02", ERR_USAGE, NULL}, // not JSON, not a number
    {"22007", ERR_USAGE, "times look like 2026-11-15T18:00:00Z, +10s, +5m or +2h"},
    {"22008", ERR_USAGE, "there is no such day or hour"},
};

static bool set_error(PGconn *conn, const PGresult *res, struct err *e)
{
    const char *message = PQresultErrorField(res, PG_DIAG_MESSAGE_PRIMARY);
    const char *detail = PQresultErrorField(res, PG_DIAG_MESSAGE_DETAIL);
    const char *hint = PQresultErrorField(res, PG_DIAG_MESSAGE_HINT);
    const char *sqlstate = PQresultErrorField(res, PG_DIAG_SQLSTATE);
    if (e == NULL)
        return false;
    if (message == NULL || sqlstate == NULL)
        return err_set(e, "%s", PQerrorMessage(conn));
    if (detail != NULL)
        err_set(e, "%s (%s)", message, detail);
    else
        err_set(e, "%s", message);
    for (size_t i = 0; i < sizeof known_errors / sizeof known_errors[0]; i++) {
        if (strcmp(sqlstate, known_errors[i].sqlstate) != 0)
            continue;
        e->code = known_errors[i].code;
        if (known_errors[i].hint != NULL)
            hint = known_errors[i].hint;
    }
    if (hint != NULL)
        err_hint(e, "%s", hint);
    return false;
}

PGresult *client_query(PGconn *conn, const char *name, int n, const char *const *params,
                       struct err *e)
{
    char path[128];
    snprintf(path, sizeof path, "sql/queries/%s.sql", name);
    const struct asset *a = asset_find(path);
    if (a == NULL)
        BUG("no asset %s", path);
    PGresult *res = PQexecParams(conn, a->data, n, NULL, params, NULL, NULL, 0);
    ExecStatusType status = PQresultStatus(res);
    if (status == PGRES_TUPLES_OK || status == PGRES_COMMAND_OK)
        return res;
    set_error(conn, res, e);
    PQclear(res);
    return NULL;
}

bool client_begin_look(PGconn *conn, struct err *e)
{
    PGresult *begun = client_query(conn, "cli_begin", 0, NULL, e);
    PGresult *pinned = begun != NULL ? client_query(conn, "cli_pin", 0, NULL, e) : NULL;
    bool ok = pinned != NULL;
    PQclear(begun);
    PQclear(pinned);
    return ok;
}

// A failure shows in the next statement.
void client_end_look(PGconn *conn)
{
    PQclear(client_query(conn, "cli_end", 0, NULL, NULL));
}

const char *client_value(const PGresult *res, int row, int column)
{
    return PQgetisnull(res, row, column) ? NULL : PQgetvalue(res, row, column);
}

bool client_true(const PGresult *res, int row, int column)
{
    return strcmp(PQgetvalue(res, row, column), "t") == 0;
}

// A stranger cannot even read the schema's version.
static void explain_stranger(PGconn *conn, struct err *e)
{
    PGresult *res = client_query(conn, "cli_stranger", 0, NULL, NULL);
    if (res != NULL && client_true(res, 0, 0)) {
        err_set(e, "user \"%s\" has no rights in the schema", PQuser(conn));
        err_hint(e, "%s", ROLES_HINT);
    }
    PQclear(res);
}

bool client_check(PGconn *conn, int *version, struct err *e)
{
    if (migrate_check(conn, version, e))
        return true;
    explain_stranger(conn, e);
    return false;
}

PGconn *client_open(const struct cli_common *common, struct err *e)
{
    PGconn *conn = db_connect_in(common->database, common->data_dir, e);
    if (conn == NULL)
        return NULL;
    if (!client_check(conn, NULL, e)) {
        PQfinish(conn);
        return NULL;
    }
    return conn;
}

bool client_id_operand(int argc, char **argv, int first, const char **id, struct err *e)
{
    if (first == argc) {
        err_usage(e, "which task? its id is missing");
        return err_hint(e, "see pgkin %s --help", argv[0]);
    }
    const char *text = argv[first];
    char *end;
    errno = 0;
    long long n = strtoll(text, &end, 10);
    if (text[0] < '0' || text[0] > '9' || *end != '\0' || errno != 0 || n <= 0) {
        err_usage(e, "\"%s\" is not the id of a task", text);
        return err_hint(e, "see pgkin %s --help", argv[0]);
    }
    *id = text;
    return true;
}

bool client_no_task(const char *id, struct err *e)
{
    err_set(e, "there is no task %s", id);
    return err_hint(e, "it was never enqueued, or retention has removed it");
}

void client_add_array(const PGresult *res, int column, struct buf *out)
{
    buf_addc(out, '[');
    for (int i = 0; i < PQntuples(res); i++)
        buf_addf(out, "%s%s", i == 0 ? "" : ",", PQgetvalue(res, i, column));
    buf_addc(out, ']');
}
