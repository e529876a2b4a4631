// SPDX-License-Identifier: Apache-2.0

#include "bench/client.h"

#include <stdlib.h>

#include "core/buf.h"

#define CONNECT_LIMIT_MS 20000

struct request {
    struct client *client;
    void (*done)(struct client *c, PGresult *res, void *arg);
    void *arg;
};

bool client_answered(struct client *c, const struct err *e)
{
    if (e == NULL)
        c->commits++;
    else if (!c->closing)
        bench_fail(c->b, e);
    return e == NULL;
}

static void on_answer(struct conn *conn, PGresult *res, const struct err *e, void *arg)
{
    (void)conn;
    struct request *r = arg;
    if (client_answered(r->client, e) && r->done != NULL)
        r->done(r->client, res, r->arg);
    free(r);
}

void client_request(struct client *c, const char *query, struct conn_params *params,
                    void (*done)(struct client *c, PGresult *res, void *arg), void *arg)
{
    struct err e = ERR_INIT;
    struct request *r = xmalloc(sizeof *r);
    *r = (struct request){.client = c, .done = done, .arg = arg};
    if (!conn_request(c->conn,
                      &(struct conn_request){
                          .query = query, .params = params, .done = on_answer, .arg = r},
                      &e)) {
        bench_fail(c->b, &e);
        free(r);
    }
}

// ---------------------------------------------------------------------- life

static void on_down(struct conn *conn, const struct err *why, void *arg)
{
    (void)conn;
    struct client *c = arg;
    struct err e = *why;
    if (c->closing)
        return;
    err_wrap(&e, c->ready ? "a session was lost" : "cannot connect");
    bench_fail(c->b, &e);
}

static void on_notify(struct conn *conn, const char *channel, const char *payload,
                      int pid, void *arg)
{
    (void)conn;
    (void)channel;
    (void)pid;
    struct client *c = arg;
    if (c->on_notify != NULL)
        c->on_notify(c, payload, c->arg);
}

static void on_session(struct client *c, PGresult *res, void *arg)
{
    (void)res;
    (void)arg;
    c->pid = conn_backend_pid(c->conn);
    c->commits = 0;
    c->ready = true;
}

static bool open_client(struct client *c, struct bench *b, const char *name,
                        enum bench_sync sync, struct err *e)
{
    struct conn_params p = CONN_PARAMS_INIT;
    const struct conn_options o = {
        .name = name,
        .conninfo = b->conninfo,
        .app_name = "pgkin bench",
        .log = b->opt.log,
        .on_down = on_down,
        .on_notify = on_notify,
        .arg = c,
    };
    *c = (struct client){.b = b};
    c->conn = conn_new(b->base, &o, e);
    if (c->conn == NULL || !conn_open(c->conn, e))
        return false;
    conn_params_add_text(&p, sync == SYNC_OFF ? "off" : "on");
    client_request(c, "bench_session", &p, on_session, NULL);
    return true;
}

static bool all_ready(void *arg)
{
    const struct clients *set = arg;
    for (size_t i = 0; i < set->count; i++)
        if (!set->list[i].ready)
            return false;
    return true;
}

bool clients_open(struct clients *set, struct bench *b, const char *name, int n,
                  enum bench_sync sync, struct err *e)
{
    // The list must not move: the connections point into it.
    *set = (struct clients){.list = xcalloc((size_t)n, sizeof set->list[0])};
    for (int i = 0; i < n; i++) {
        set->count++;
        if (!open_client(&set->list[i], b, name, sync, e))
            return false;
    }
    return bench_wait(b, all_ready, set, CONNECT_LIMIT_MS, "connecting", e);
}

void clients_close(struct clients *set)
{
    for (size_t i = 0; i < set->count; i++) {
        set->list[i].closing = true;
        conn_free(set->list[i].conn);
    }
    free(set->list);
    *set = (struct clients){0};
}

static bool all_settled(void *arg)
{
    const struct clients *set = arg;
    for (size_t i = 0; i < set->count; i++)
        if (conn_pending(set->list[i].conn) > 0)
            return false;
    return true;
}

bool clients_settle(struct clients *set, int64_t limit_ms, struct err *e)
{
    return set->count == 0 || bench_wait(set->list[0].b, all_settled, set, limit_ms,
                                         "waiting for the last answers", e);
}
