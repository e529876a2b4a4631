// SPDX-License-Identifier: Apache-2.0
//
// One request: how it is sent, how the results that libpq returns for it
// become one answer, and how it ends.
//
// On the wire a request is [Parse] Parse/Bind/Execute Sync, and the answer is
// complete at the ReadyForQuery that follows the Sync: the server commits
// there, and a deferred constraint fails there, after it has already said that
// the statement went well.

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "core/conn_impl.h"

#define STATEMENT_NAME_SIZE 64 // NAMEDATALEN: the server keeps no more

struct request *request_new(struct conn *c, const struct conn_request *r)
{
    struct request *q = xcalloc(1, sizeof *q);
    q->conn = c;
    q->sql = r->sql != NULL ? xstrdup(r->sql) : NULL;
    q->binary = r->binary;
    q->resets_session = r->resets_session;
    q->deadline_ms = r->deadline_ms;
    q->done = r->done;
    q->arg = r->arg;
    return q;
}

// ------------------------------------------------------ prepared statements

static struct prepared *prepared_of(struct conn *c, const struct request *r)
{
    return &c->prepared[r->asset - pgkin_assets];
}

void request_forget_prepared(struct conn *c)
{
    for (size_t i = 0; i < pgkin_asset_count; i++)
        c->prepared[i] = (struct prepared){.state = PREPARED_NO};
}

// The number comes first because the server cuts a long name.
static void statement_name(const struct request *r, char name[STATEMENT_NAME_SIZE])
{
    const char *base = strrchr(r->asset->name, '/');
    snprintf(name, STATEMENT_NAME_SIZE, "pgkin_%u_%.40s", r->serial,
             base != NULL ? base + 1 : r->asset->name);
}

// A request whose statement is being prepared by an earlier one that is not
// answered yet goes as plain text: if that Parse fails, this one must fail for
// the same reason, not for want of the statement.
static void choose_prepare(struct conn *c, struct request *r)
{
    r->prepare = REQUEST_PLAIN;
    if (r->asset == NULL || c->opt.unprepared)
        return;
    struct prepared *p = prepared_of(c, r);
    switch (p->state) {
    case PREPARED_NO:
        p->state = PREPARED_ASKED;
        p->serial = ++c->next_serial;
        r->prepare = REQUEST_PREPARES;
        break;
    case PREPARED_ASKED: return;
    case PREPARED_YES: r->prepare = REQUEST_PREPARED; break;
    }
    r->serial = p->serial;
}

static void set_prepared(struct conn *c, const struct request *r, bool yes)
{
    struct prepared *p = prepared_of(c, r);
    if (p->serial == r->serial)
        p->state = yes ? PREPARED_YES : PREPARED_NO;
}

#define LOST_STATEMENTS_MOST 2

// --------------------------------------------------------------------- send

static bool send_statement(struct conn *c, struct request *r)
{
    const struct conn_params *p = &r->params;
    const char *sql = r->asset != NULL ? r->asset->data : r->sql;
    const char *const *values = (const char *const *)p->values;
    char name[STATEMENT_NAME_SIZE];

    choose_prepare(c, r);
    if (r->prepare == REQUEST_PLAIN)
        return PQsendQueryParams(c->pg, sql, p->count, NULL, values, p->lengths,
                                 p->formats, r->binary) == 1;
    statement_name(r, name);
    if (r->prepare == REQUEST_PREPARES && PQsendPrepare(c->pg, name, sql, 0, NULL) != 1)
        return false;
    return PQsendQueryPrepared(c->pg, name, p->count, values, p->lengths, p->formats,
                               r->binary) == 1;
}

bool request_send(struct conn *c, struct request *r, struct err *e)
{
    r->sent = true;
    if (!send_statement(c, r) || PQpipelineSync(c->pg) != 1) {
        conn_libpq_error(c->pg, e);
        return false;
    }
    if (r->resets_session)
        request_forget_prepared(c);
    conn_params_clear(&r->params); // libpq has its own copy now
    return true;
}

// ------------------------------------------------------------------- answer

static bool is_error(const PGresult *res)
{
    return res != NULL && !conn_result_check(res, NULL);
}

static void keep_result(struct request *r, PGresult *res)
{
    PQclear(r->res);
    r->res = res;
}

// Behind a pooler that changes sessions between transactions.
static void stop_preparing(struct conn *c)
{
    if (!c->opt.unprepared)
        log_info(c->opt.log, "statements do not stay prepared: doing without",
                 LOG_S("conn", c->opt.name));
    c->opt.unprepared = true;
}

// The first error is the reason; what follows it is its consequence.
static void take_error(struct conn *c, struct request *r, PGresult *res)
{
    conn_note_fatal(c, res);
    if (r->prepare == REQUEST_PREPARES) {
        set_prepared(c, r, false);
        if (conn_sqlstate_is(res, "42P05"))
            stop_preparing(c); // the session has another's statements
    } else if (r->prepare == REQUEST_PREPARED &&
               (conn_sqlstate_is(res, "26000") || conn_sqlstate_is(res, "0A000"))) {
        // Somebody deallocated it, or the tables changed so that its result
        // has other types now: the next use prepares it anew.
        set_prepared(c, r, false);
        if (conn_sqlstate_is(res, "26000") && ++c->lost_statements > LOST_STATEMENTS_MOST)
            stop_preparing(c); // what we prepare is in somebody else's session
    }
    if (is_error(r->res))
        PQclear(res);
    else
        keep_result(r, res);
}

static void complete(struct conn *c, struct request *r)
{
    struct err e = ERR_INIT;
    TAILQ_REMOVE(&c->sent, r, link);
    if (r->res == NULL)
        BUG("connection %s: a synced request without a result", c->opt.name);
    bool ok = conn_result_check(r->res, &e);
    request_finish(c, r, ok ? NULL : &e);
}

void request_take_result(struct conn *c, struct request *r, PGresult *res)
{
    struct err e = ERR_INIT;
    switch (PQresultStatus(res)) {
    case PGRES_PIPELINE_SYNC:
        PQclear(res);
        complete(c, r);
        break;
    case PGRES_PIPELINE_ABORTED: PQclear(res); break;
    case PGRES_COPY_IN:
    case PGRES_COPY_OUT:
    case PGRES_COPY_BOTH:
        PQclear(res);
        err_set(&e, "copy is not possible on this connection");
        conn_fail(c, &e);
        break;
    case PGRES_BAD_RESPONSE:
    case PGRES_NONFATAL_ERROR:
    case PGRES_FATAL_ERROR: take_error(c, r, res); break;
    default:
        if (r->prepare == REQUEST_PREPARES) {
            PQclear(res); // of the Parse
            r->prepare = REQUEST_PREPARED;
            set_prepared(c, r, true);
        } else if (is_error(r->res)) {
            PQclear(res);
        } else {
            keep_result(r, res);
        }
    }
}

void request_finish(struct conn *c, struct request *r, const struct err *e)
{
    struct request *outer = c->answering;
    loop_event_clear(&r->deadline);
    if (!r->internal)
        c->pending--;
    c->answering = r;
    if (r->done != NULL)
        r->done(c, r->res, e, r->arg);
    else if (e != NULL)
        log_err(c->opt.log, LOG_WARN, "request failed", e);
    c->answering = outer;
    PQclear(r->res);
    conn_params_clear(&r->params);
    free(r->sql);
    free(r);
}

void request_answer_lost(struct conn *c, const char *why)
{
    struct request *r;
    while ((r = TAILQ_FIRST(&c->dead)) != NULL) {
        struct err e = ERR_INIT;
        TAILQ_REMOVE(&c->dead, r, link);
        if (r->expired && r->sent)
            err_set(&e, "no answer within %d ms; the connection was dropped",
                    r->deadline_ms);
        else if (r->expired)
            err_set(&e, "not sent within %d ms", r->deadline_ms);
        else if (r->sent)
            err_set(&e, "connection lost before the answer came: %s", why);
        else
            err_set(&e, "not sent: %s", why);
        keep_result(r, NULL);
        request_finish(c, r, &e);
    }
}
