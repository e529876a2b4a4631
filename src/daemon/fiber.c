// SPDX-License-Identifier: Apache-2.0
//
// A fiber: one connection that runs handlers in SQL. It makes one long call
// after the other (worker.run_fiber), each of which leases tasks, runs them and
// commits their effects together with their ends, until nothing is left or its
// time is up.
//
//   closed ──> busy <──> idle
//               └─> resting ──> idle ──> closed      after an error; after a while

#include <stdlib.h>
#include <string.h>

#include "daemon/impl.h"

#define CALL_MS 500 // after which it comes back to hear whether to stop

static const char *const state_names[] = {
    [FIBER_CLOSED] = "closed",
    [FIBER_IDLE] = "idle",
    [FIBER_BUSY] = "busy",
    [FIBER_RESTING] = "resting",
};

static const struct machine_transition transitions[] = {
    {FIBER_CLOSED, FIBER_BUSY, "first call, connects"},
    {FIBER_CLOSED, FIBER_RESTING, "cannot connect"},
    {FIBER_IDLE, FIBER_BUSY, "called"},
    {FIBER_BUSY, FIBER_IDLE, "the call returned"},
    {FIBER_BUSY, FIBER_RESTING, "the call failed or the session was lost"},
    {FIBER_RESTING, FIBER_IDLE, "rested"},
    {FIBER_IDLE, FIBER_CLOSED, "not needed for a while"},
};

static const struct machine machine = {
    .name = "fiber",
    .states = state_names,
    .state_count = sizeof state_names / sizeof state_names[0],
    .transitions = transitions,
    .transition_count = sizeof transitions / sizeof transitions[0],
};

const struct machine *fiber_machine(void)
{
    return &machine;
}

static void set_state(struct fiber *f, enum fiber_state to)
{
    machine_step(&machine, (int)f->state, (int)to);
    f->state = to;
}

static void on_rested(evutil_socket_t fd, short what, void *arg)
{
    (void)fd;
    (void)what;
    struct fiber *f = arg;
    set_state(f, FIBER_IDLE);
    queue_fiber_rested(f->queue);
}

static void rest(struct fiber *f)
{
    set_state(f, FIBER_RESTING);
    loop_timer_start(f->rest, backoff_next_ms(&f->backoff));
}

// Which lines hold something: {0,3,16} as the server writes it.
static void read_lanes(const struct daemon *d, const char *text, bool *children,
                       bool *others)
{
    *children = *others = false;
    for (const char *p = text; *p != '\0'; p++) {
        if (*p < '0' || *p > '9')
            continue;
        char *end;
        long lane = strtol(p, &end, 10);
        bool sql = registry_lane_is_sql(d->registry, (int)lane);
        *children = *children || (sql && lane % 2 == 1);
        *others = *others || !sql;
        p = end - 1;
    }
}

static void on_called(struct conn *conn, PGresult *res, const struct err *e, void *arg)
{
    (void)conn;
    struct fiber *f = arg;
    struct queue *q = f->queue;
    bool children, others;
    if (e != NULL) {
        log_warn(q->d->log, "fiber failed", LOG_S("queue", q->name),
                 LOG_S("error", e->msg),
                 LOG_S("sqlstate", res != NULL ? conn_sqlstate(res) : NULL));
        if (res != NULL && conn_sqlstate_is(res, "25006"))
            conn_drop(f->conn, "the server is read-only");
        rest(f);
        queue_fiber_failed(q);
        daemon_check(q->d);
        return;
    }
    backoff_reset(&f->backoff);
    set_state(f, FIBER_IDLE);
    int ran = (int)conn_result_int64(res, 0, 0);
    if (ran > 0)
        f->used_ms = loop_now_ms();
    atomic_fetch_add(&q->d->completed, (uint64_t)ran);
    read_lanes(q->d, PQgetvalue(res, 0, 1), &children, &others);
    bool held_back = strcmp(PQgetvalue(res, 0, 2), "t") == 0;
    queue_fiber_done(q, f, ran, children, others, held_back);
    daemon_check(q->d);
}

static void on_up(struct conn *conn, void *arg)
{
    (void)conn;
    ((struct fiber *)arg)->used_ms = loop_now_ms();
}

static void on_down(struct conn *conn, const struct err *why, void *arg)
{
    struct fiber *f = arg;
    log_warn(f->queue->d->log, "connection lost", LOG_S("connection", conn_name(conn)),
             LOG_S("error", why->msg));
}

void fiber_call(struct fiber *f)
{
    static const char *const modes[] = {
        [FIBER_ANY] = NULL, [FIBER_TOP] = "top", [FIBER_CHILD] = "child"};
    struct daemon *d = f->queue->d;
    struct conn_params p = CONN_PARAMS_INIT;
    struct err e = ERR_INIT;
    if (f->conn == NULL) {
        f->conn = daemon_new_conn(d, "fiber", on_up, on_down, NULL, f, true, &e);
        if (f->conn == NULL || !conn_open(f->conn, &e)) {
            log_err(d->log, LOG_ERROR, "fiber", &e);
            rest(f);
            return;
        }
    }
    conn_params_add_int64(&p, d->control.worker_id);
    conn_params_add_text(&p, f->queue->name);
    conn_params_add_text(&p, modes[f->mode]);
    conn_params_add_int64(&p, CALL_MS);
    set_state(f, FIBER_BUSY);
    f->called_ms = loop_now_ms();
    if (!conn_request(
            f->conn,
            &(struct conn_request){
                .query = "fiber_run", .params = &p, .done = on_called, .arg = f},
            &e))
        BUG("a fiber's call was refused: %s", e.msg);
}

void fiber_close(struct fiber *f)
{
    conn_free(f->conn);
    f->conn = NULL;
    set_state(f, FIBER_CLOSED);
}

bool fiber_is_free(const struct fiber *f)
{
    return f->state == FIBER_IDLE || f->state == FIBER_CLOSED;
}

void fiber_init(struct fiber *f, struct queue *q, enum fiber_mode mode)
{
    *f = (struct fiber){.queue = q, .mode = mode, .state = FIBER_CLOSED};
    f->backoff = (struct backoff){.min_ms = 100, .max_ms = 5000};
    f->rest = loop_event_new(q->d->base, -1, 0, on_rested, f);
}

void fiber_clear(struct fiber *f)
{
    conn_free(f->conn); // answers the call, if there is one
    f->conn = NULL;
    loop_event_clear(&f->rest);
}
