// SPDX-License-Identifier: Apache-2.0
//
// pgkin_open() and pgkin_enqueue(): adding tasks from C.

#include <libpq-fe.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "core/asset.h"
#include "core/buf.h"
#include "core/conn.h"
#include "core/conn_param.h"
#include "core/conninfo.h"
#include "lib/public.h"

struct pgkin {
    PGconn *conn;
    char *conninfo;
};

bool public_error(struct pgkin_error *out, const struct err *e)
{
    if (out != NULL) {
        snprintf(out->message, sizeof out->message, "%s", e->msg);
        snprintf(out->hint, sizeof out->hint, "%s", e->hint);
    }
    return false;
}

static bool connect_client(pgkin *c, struct err *e)
{
    PQfinish(c->conn);
    c->conn = PQconnectdb(c->conninfo);
    if (PQstatus(c->conn) == CONNECTION_OK && PQsetClientEncoding(c->conn, "UTF8") == 0)
        return true;
    return err_set(e, "cannot connect: %s", PQerrorMessage(c->conn));
}

pgkin *pgkin_open(const char *conninfo, struct pgkin_error *out)
{
    struct err e = ERR_INIT;
    struct buf full = BUF_INIT;
    pgkin *c = xcalloc(1, sizeof *c);
    bool ok = conninfo_check(conninfo != NULL ? conninfo : "", &e) &&
              conninfo_with_defaults(conninfo != NULL ? conninfo : "", &full, &e);
    if (ok) {
        c->conninfo = buf_detach(&full);
        ok = connect_client(c, &e);
    }
    buf_clear(&full);
    if (ok)
        return c;
    public_error(out, &e);
    pgkin_close(c);
    return NULL;
}

void pgkin_close(pgkin *c)
{
    if (c == NULL)
        return;
    PQfinish(c->conn);
    free(c->conninfo);
    free(c);
}

static int64_t enqueue(PGconn *conn, const char *command, const char *payload,
                       const struct pgkin_enqueue_options *o, struct err *e)
{
    static const struct pgkin_enqueue_options none = {0};
    struct conn_params p = CONN_PARAMS_INIT;
    const struct asset *sql = asset_find("sql/queries/client_enqueue.sql");
    int64_t id = 0;
    if (o == NULL)
        o = &none;
    if (sql == NULL)
        BUG("the statement of pgkin_enqueue() is missing");
    conn_params_add_text(&p, command);
    conn_params_add_text(&p, payload != NULL ? payload : "{}");
    if (o->has_priority)
        conn_params_add_int64(&p, o->priority);
    else
        conn_params_add_null(&p);
    conn_params_add_text(&p, o->scheduled_at);
    conn_params_add_text(&p, o->dedup_key);
    conn_params_add_text(&p, o->merge);
    conn_params_add_text(&p, o->group_key);
    conn_params_add_text(&p, o->order_key);
    conn_params_add_text(&p, o->context);
    conn_params_add_text(&p, o->headers);
    PGresult *res = PQexecParams(conn, sql->data, p.count, NULL,
                                 (const char *const *)p.values, p.lengths, p.formats, 0);
    if (conn_result_check(res, e)) {
        if (PQntuples(res) == 1)
            id = strtoll(PQgetvalue(res, 0, 0), NULL, 10);
        else
            err_set(e, "no answer: %s", PQerrorMessage(conn));
    }
    PQclear(res);
    conn_params_clear(&p);
    return id;
}

int64_t pgkin_enqueue_on(struct pg_conn *conn, const char *command, const char *payload,
                         const struct pgkin_enqueue_options *o, struct pgkin_error *out)
{
    struct err e = ERR_INIT;
    int64_t id = enqueue(conn, command, payload, o, &e);
    if (id == 0)
        public_error(out, &e);
    return id;
}

int64_t pgkin_enqueue(pgkin *c, const char *command, const char *payload,
                      const struct pgkin_enqueue_options *o, struct pgkin_error *out)
{
    struct err e = ERR_INIT;
    int64_t id = 0;
    if (PQstatus(c->conn) == CONNECTION_OK || connect_client(c, &e))
        id = enqueue(c->conn, command, payload, o, &e);
    if (id == 0)
        public_error(out, &e);
    return id;
}
