// SPDX-License-Identifier: Apache-2.0
//
// The exchange: tells the server how tasks ended and brings the next ones, in
// one round trip and one commit (lib/exchange.h). While one is under way, ends
// gather for the next: the busier the worker, the larger the batches.
//
// Nothing that a handler has done is forgotten: ends are kept until the server
// has answered, and sent again when it did not. An end that the server cannot
// take (a result it calls malformed) is found by sending its batch one by one,
// and becomes a failure that says why. Where not even that is taken, the lease is
// given up, so that this task alone is held up.

#include <inttypes.h>
#include <string.h>
#include <unistd.h>

#include "daemon/impl.h"

#define BATCH_MOST 500 // tasks per exchange
#define FLUSH_MS   2   // how long an end may wait for others
#define ANSWER_MS  60000

static void on_answer(struct conn *conn, PGresult *res, const struct err *e, void *arg);

// ---------------------------------------------------------------------- send

static void send_carrier(struct carrier *c)
{
    struct daemon *d = c->d;
    struct err e = ERR_INIT;
    const struct exchange_call call = {
        .queue = c->queue != NULL ? c->queue->name : "",
        .want = c->queue != NULL ? c->want : 0,
        .worker_id = d->control.worker_id,
        .pid = (int)getpid(),
        .lanes = c->queue != NULL ? c->queue->lanes : NULL,
        .lane_count = c->queue != NULL ? c->queue->lane_count : 0,
    };
    c->busy = true;
    if (c->queue != NULL)
        c->queue->asked += c->want;
    if (!exchange_send(&c->ends, c->conn, &call, ANSWER_MS, on_answer, c, &e))
        BUG("an exchange was refused: %s", e.msg);
}

// The queue whose turn it is to claim, or NULL.
static struct queue *next_queue(struct daemon *d, int *want)
{
    if (!daemon_may_claim(d))
        return NULL;
    for (size_t n = 0; n < d->queue_count; n++) {
        size_t i = (d->pump.next_queue + n) % d->queue_count;
        struct queue *q = d->queues[i];
        *want = queue_room(q);
        if (*want > BATCH_MOST)
            *want = BATCH_MOST;
        if (*want > 0) {
            d->pump.next_queue = i + 1;
            return q;
        }
    }
    return NULL;
}

// Are there quick tasks here whose ends could go along?
static bool more_to_come(const struct daemon *d)
{
    for (size_t i = 0; i < d->queue_count; i++) {
        const struct queue *q = d->queues[i];
        if (q->mean_us < FLUSH_MS * 1000 && q->waiting.count + q->running.count > 0)
            return true;
    }
    return false;
}

static void on_flush(evutil_socket_t fd, short what, void *arg)
{
    (void)fd;
    (void)what;
    struct daemon *d = arg;
    d->pump.flush_armed = false;
    d->pump.flush_due = true;
    pump_go_on(d);
}

// Sends one exchange on a free connection, if there is anything to send.
static bool send_next(struct daemon *d, struct carrier *c)
{
    struct pump *p = &d->pump;
    int want = 0;
    if (c->ends.count > 0) { // again, or one by one
        c->queue = NULL;
        send_carrier(c);
        return true;
    }
    c->queue = next_queue(d, &want);
    c->want = want;
    if (p->flush_due || !more_to_come(d)) {
        struct exchange none = c->ends;
        c->ends = p->ends;
        p->ends = none;
        p->flush_due = false;
    } else if (p->ends.count >= BATCH_MOST || c->queue != NULL) {
        // What is left of a lease is still running, and will be done in no time:
        // then all of it goes as one number.
        exchange_take_whole(&p->ends, &c->ends);
    }
    if (p->ends.count > 0 && !p->flush_armed) {
        p->flush_armed = true;
        loop_timer_start(p->flush, FLUSH_MS);
    }
    if (c->queue == NULL && c->ends.count == 0)
        return false;
    c->again = false;
    send_carrier(c);
    return true;
}

static bool carrier_is_free(const struct carrier *c)
{
    return !c->busy && !event_pending(c->rest, EV_TIMEOUT, NULL);
}

// The second connection is only for those who can use it: tasks that take longer
// than an exchange do not wait for one.
static bool is_quick(const struct daemon *d)
{
    for (size_t i = 0; i < d->queue_count; i++)
        if (d->queues[i]->mean_us > 0 && d->queues[i]->mean_us < FLUSH_MS * 1000)
            return true;
    return false;
}

void pump_go_on(struct daemon *d)
{
    struct pump *p = &d->pump;
    if (d->control.worker_id == 0)
        return; // not registered (any more): nothing can be claimed or ended
    for (size_t i = 0; i < PUMP_CARRIERS; i++) {
        struct carrier *c = &p->carriers[i];
        if (!carrier_is_free(c))
            continue;
        if (conn_get_state(c->conn) == CONN_CLOSED) {
            struct err e = ERR_INIT;
            if (!p->full || !is_quick(d) || !conn_open(c->conn, &e))
                continue;
        }
        if (!send_next(d, c))
            return;
    }
}

void pump_end(struct daemon *d, const struct attempt_private *a,
              const struct exchange_end *end)
{
    exchange_end_task(&d->pump.ends, &a->pub.task, end);
}

bool pump_is_empty(const struct daemon *d)
{
    const struct pump *p = &d->pump;
    bool empty = p->ends.count == 0;
    for (size_t i = 0; i < PUMP_CARRIERS; i++)
        empty = empty && !p->carriers[i].busy && p->carriers[i].ends.count == 0;
    return empty;
}

// -------------------------------------------------------------------- answer

static void log_refusals(struct carrier *c, const struct exchange_answer *answer)
{
    for (size_t i = 0; i < answer->refusal_count; i++) {
        const struct exchange_refusal *r = &answer->refusals[i];
        // After an answer that never came, what was recorded then is refused now.
        LOG_WRITE(c->d->log, c->again ? LOG_DEBUG : LOG_WARN,
                  "end refused: the lease is not in force any more",
                  LOG_I("lease", r->lease_id), LOG_I("task", r->task_id));
    }
}

static void rest(struct carrier *c)
{
    loop_timer_start(c->rest, backoff_next_ms(&c->backoff));
}

static void on_rested(evutil_socket_t fd, short what, void *arg)
{
    (void)fd;
    (void)what;
    pump_go_on(((struct carrier *)arg)->d);
}

// The claim that went along is given up, for now.
static struct queue *drop_claim(struct carrier *c)
{
    struct queue *q = c->queue;
    c->queue = NULL;
    if (q != NULL)
        q->asked -= c->want;
    return q;
}

// Is it what was sent that the server cannot take? It is where the same again
// would be refused again; all other errors may pass.
static bool blames_data(const char *sqlstate)
{
    static const char *const classes[] = {
        "21",       // a row too many
        "22",       // no JSON, out of range
        "23",       // against a constraint
        "38", "39", // a function
        "54",       // nested too deep, too long
        "P0",       // raised
    };
    for (size_t i = 0; i < sizeof classes / sizeof classes[0]; i++)
        if (strncmp(sqlstate, classes[i], 2) == 0)
            return true;
    return false;
}

// The server took nothing of it. What kind of thing was wrong?
static void refused(struct carrier *c, bool claimed, const PGresult *res,
                    const struct err *e)
{
    struct daemon *d = c->d;
    const char *state = conn_sqlstate(res);
    log_warn(d->log, "exchange failed", LOG_S("error", e->msg), LOG_S("sqlstate", state));
    if (strcmp(state, "25006") == 0) { // read-only: this is not the primary any more
        conn_drop(c->conn, "the server is read-only");
    } else if (blames_data(state) && c->ends.count > 0 && claimed) {
        return; // the ends go again by themselves: it may have been the claim
    } else if (blames_data(state) && c->ends.spoiled) {
        control_lose_leases(d, &c->ends);
        exchange_reset(&c->ends);
        return;
    } else if (blames_data(state) && c->ends.count == 1) {
        exchange_spoil(&c->ends, e->msg);
        return;
    } else if (blames_data(state) && c->ends.count > 1) {
        // Somewhere in it is a value that the server cannot take.
        exchange_split(&c->ends, &d->pump.ends);
        d->pump.flush_due = true;
        return;
    }
    rest(c);
}

static void on_answer(struct conn *conn, PGresult *res, const struct err *e, void *arg)
{
    struct carrier *c = arg;
    struct daemon *d = c->d;
    struct queue *q = drop_claim(c);
    struct exchange_answer answer = {0};
    struct arena arena = {0};
    struct err bad = ERR_INIT;
    c->busy = false;
    if (e != NULL && res == NULL) {
        // No answer. The ends go again; what was claimed, if it was, is found
        // by control.c.
        c->again = true;
        if (conn_outcome_unknown(conn))
            control_expect_unknown(d);
        if (conn_get_state(conn) == CONN_CLOSED)
            return;
        rest(c);
    } else if (e != NULL) {
        refused(c, q != NULL, res, e);
    } else if (!exchange_parse(res, &arena, &answer, &bad)) {
        log_err(d->log, LOG_ERROR, "exchange", &bad);
        rest(c);
    } else {
        backoff_reset(&c->backoff);
        log_refusals(c, &answer);
        exchange_reset(&c->ends);
        c->again = false;
        if (q != NULL) {
            d->pump.full =
                answer.task_count >= 100 && answer.task_count == (size_t)c->want;
            size_t got = answer.task_count;
            attempts_take(d, q, &answer, &arena);
            queue_claimed(q, got, c->want, answer.held_back);
        }
    }
    arena_clear(&arena);
    if (q != NULL)
        queue_go_on(q);
    pump_go_on(d);
    daemon_check(d);
}

// ---------------------------------------------------------------------- life

static void on_down(struct conn *conn, const struct err *why, void *arg)
{
    struct carrier *c = arg;
    log_warn(c->d->log, "connection lost", LOG_S("connection", conn_name(conn)),
             LOG_S("error", why->msg));
    if (c == &c->d->pump.carriers[0])
        listen_down(c->d);
}

static void on_up(struct conn *conn, void *arg)
{
    (void)conn;
    struct carrier *c = arg;
    if (c == &c->d->pump.carriers[0])
        listen_up(c->d);
}

static void on_notify(struct conn *conn, const char *channel, const char *payload,
                      int pid, void *arg)
{
    (void)conn;
    (void)pid;
    struct carrier *c = arg;
    listen_notified(c->d, channel, payload);
}

bool pump_open(struct daemon *d, struct err *e)
{
    static const char *const names[PUMP_CARRIERS] = {"exchange", "exchange 2"};
    d->pump.flush = loop_event_new(d->base, -1, 0, on_flush, d);
    for (size_t i = 0; i < PUMP_CARRIERS; i++) {
        struct carrier *c = &d->pump.carriers[i];
        c->d = d;
        c->backoff = (struct backoff){.min_ms = 50, .max_ms = 5000};
        c->rest = loop_event_new(d->base, -1, 0, on_rested, c);
        c->conn = daemon_new_conn(d, names[i], on_up, on_down, i == 0 ? on_notify : NULL,
                                  c, false, e);
        if (c->conn == NULL)
            return false;
    }
    return conn_open(d->pump.carriers[0].conn, e);
}

void pump_close(struct daemon *d)
{
    for (size_t i = 0; i < PUMP_CARRIERS; i++) {
        struct carrier *c = &d->pump.carriers[i];
        if (c->conn != NULL)
            conn_close(c->conn);
        conn_free(c->conn);
        c->conn = NULL;
        exchange_clear(&c->ends);
        loop_event_clear(&c->rest);
    }
    exchange_clear(&d->pump.ends);
    loop_event_clear(&d->pump.flush);
}

struct conn *pump_conn(struct daemon *d)
{
    return d->pump.carriers[0].conn;
}
