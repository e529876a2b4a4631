// SPDX-License-Identifier: Apache-2.0

#include "cli/db.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "core/conninfo.h"
#include "embed/cluster.h"

static const char *get_env(const char *name)
{
    const char *value = getenv(name);
    return value != NULL && value[0] != '\0' ? value : NULL;
}

enum db_source db_find_source(const char *flag)
{
    static const char *const pg_variables[] = {"PGHOST",     "PGHOSTADDR", "PGPORT",
                                               "PGDATABASE", "PGUSER",     "PGSERVICE"};
    if (flag != NULL)
        return DB_FLAG;
    if (get_env("DATABASE_URL") != NULL)
        return DB_ENV_URL;
    for (size_t i = 0; i < sizeof pg_variables / sizeof pg_variables[0]; i++)
        if (get_env(pg_variables[i]) != NULL)
            return DB_ENV_PG;
    return DB_PRIVATE;
}

// What psql takes for a connection string, and not for a database's name.
static bool is_conninfo(const char *s)
{
    return strncmp(s, "postgresql://", 13) == 0 || strncmp(s, "postgres://", 11) == 0 ||
           strchr(s, '=') != NULL;
}

static bool add_url(const char *url, const char *what, struct buf *out, struct err *e)
{
    // libpq would take "mysql://…" for the name of a database.
    if (!is_conninfo(url) && strstr(url, "://") != NULL) {
        err_usage(e, "%s: not a connection string of PostgreSQL", what);
        return err_hint(e, "it looks like postgresql://USER@HOST:PORT/DATABASE");
    }
    if (!is_conninfo(url)) {
        const struct conninfo_param name = {"dbname", url, true};
        return conninfo_with_params("", &name, 1, out, e);
    }
    if (!conninfo_check(url, e)) {
        e->code = ERR_USAGE;
        return err_wrap(e, "%s", what);
    }
    buf_adds(out, url);
    return true;
}

static bool add_private(const char *data_dir, struct buf *out, struct err *e)
{
    struct buf dir = BUF_INIT;
    bool ok = true;
    if (data_dir != NULL)
        buf_adds(&dir, data_dir);
    else
        ok = cluster_default_dir(&dir, e);
    ok = ok && cluster_conninfo(buf_str(&dir), out, e);
    buf_clear(&dir);
    return ok;
}

bool db_conninfo_in(const char *flag, const char *data_dir, struct buf *out,
                    struct err *e)
{
    const char *url = get_env("DATABASE_URL");
    switch (db_find_source(flag)) {
    case DB_FLAG:
        // The option parser hands on what the environment says.
        return add_url(flag,
                       url != NULL && strcmp(url, flag) == 0 ? "DATABASE_URL"
                                                             : "the database's URL",
                       out, e);
    case DB_ENV_URL: return add_url(url, "DATABASE_URL", out, e);
    case DB_ENV_PG: return true;
    case DB_PRIVATE: return add_private(data_dir, out, e);
    }
    BUG("no such source");
}

bool db_conninfo(const char *flag, struct buf *out, struct err *e)
{
    return db_conninfo_in(flag, NULL, out, e);
}

// ---------------------------------------------------------------- connecting

// What to do about a connection that failed. There is no SQLSTATE to go by:
// libpq 15 keeps only the text of a failed connection. A server that speaks
// another language gets no hint.
static const struct {
    const char *text;
    const char *also; // may be NULL
    const char *hint;
} failures[] = {
    {"database \"", "does not exist",
     "create it with createdb, or name another with -d URL"},
    {"role \"", "does not exist", "create it with createuser, or name another user"},
    {"authentication failed", NULL,
     "check the user and the password; it may come from PGPASSWORD or ~/.pgpass"},
    {"no password supplied", NULL, "give the password in PGPASSWORD or ~/.pgpass"},
    {"no pg_hba.conf entry", NULL,
     "the server's pg_hba.conf does not allow this connection"},
    {"Connection refused", NULL, "is the server running, and is this its host and port?"},
    {"No such file or directory", "socket",
     "is the server running, and is this its socket?"},
    {"could not translate host name", NULL, "check the name of the host"},
    {"timeout expired", NULL,
     "is this the right host, and does a firewall let us through?"},
    {"starting up", NULL, "try again in a moment"},
    {"shutting down", NULL, "try again when the server is running"},
    {"too many c", NULL,
     "the server has no free connection: try again, or raise its limit"},
    {"remaining connection slots", NULL,
     "the server has no free connection: try again, or raise its limit"},
};

// One line out of libpq's several: without its advice, which it indents, and
// without the severity, which is clear.
static void add_reason(const char *text, struct buf *out)
{
    while (*text != '\0') {
        size_t len = strcspn(text, "\n");
        const char *fatal = memmem(text, len, "FATAL:  ", 8);
        if (text[0] != '\t' && len > 0) {
            if (out->len > 0)
                buf_adds(out, "; ");
            size_t before = fatal != NULL ? (size_t)(fatal - text) : len;
            buf_add(out, text, before);
            if (fatal != NULL)
                buf_add(out, fatal + 8, len - before - 8);
        }
        text += len + (text[len] == '\n');
    }
}

static bool set_connect_error(PGconn *conn, struct err *e)
{
    struct buf reason = BUF_INIT;
    add_reason(PQerrorMessage(conn), &reason);
    const char *text = buf_str(&reason);
    err_set(e, "cannot connect: %s", text);
    for (size_t i = 0; i < sizeof failures / sizeof failures[0]; i++) {
        if (strstr(text, failures[i].text) == NULL ||
            (failures[i].also != NULL && strstr(text, failures[i].also) == NULL))
            continue;
        err_hint(e, "%s", failures[i].hint);
        break;
    }
    buf_clear(&reason);
    return false;
}

static void print_warning(void *arg, const PGresult *res)
{
    (void)arg;
    const char *severity = PQresultErrorField(res, PG_DIAG_SEVERITY_NONLOCALIZED);
    const char *text = PQresultErrorField(res, PG_DIAG_MESSAGE_PRIMARY);
    if (severity != NULL && strcmp(severity, "WARNING") == 0 && text != NULL)
        fprintf(stderr, "pgkin: warning: %s\n", text);
}

PGconn *db_open(const char *conninfo, struct err *e)
{
    static const struct conninfo_param params[] = {
        {"connect_timeout", "10", false},
        {"application_name", "pgkin", false},
        {"client_encoding", "UTF8", true},
    };
    struct buf ours = BUF_INIT;
    struct buf full = BUF_INIT;
    PGconn *conn = NULL;
    if (!conninfo_with_params(conninfo, params, sizeof params / sizeof params[0], &ours,
                              e) ||
        !conninfo_with_defaults(buf_str(&ours), &full, e))
        goto out;
    conn = PQconnectdb(buf_str(&full));
    if (conn == NULL)
        BUG("out of memory");
    if (PQstatus(conn) != CONNECTION_OK) {
        set_connect_error(conn, e);
        PQfinish(conn);
        conn = NULL;
        goto out;
    }
    PQsetNoticeReceiver(conn, print_warning, NULL);
out:
    buf_clear(&ours);
    buf_clear(&full);
    return conn;
}

PGconn *db_connect_in(const char *flag, const char *data_dir, struct err *e)
{
    struct buf conninfo = BUF_INIT;
    PGconn *conn = NULL;
    if (db_conninfo_in(flag, data_dir, &conninfo, e))
        conn = db_open(buf_str(&conninfo), e);
    if (conn == NULL && db_find_source(flag) == DB_PRIVATE && conninfo.len > 0 &&
        PQping(buf_str(&conninfo)) == PQPING_NO_RESPONSE) {
        err_set(e, "the private cluster does not run");
        err_hint(e, "start it with: pgkin start");
    }
    buf_clear(&conninfo);
    return conn;
}

PGconn *db_connect(const char *flag, struct err *e)
{
    return db_connect_in(flag, NULL, e);
}
