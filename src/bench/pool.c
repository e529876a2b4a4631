// SPDX-License-Identifier: Apache-2.0

#include "bench/pool.h"

#include <inttypes.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "core/buf.h"
#include "core/loop.h"
#include "core/machine.h"

#define CHANNEL       "worker_tasks"
#define BEAT_MS       1000
#define POLL_MS       1
#define STOP_LIMIT_MS 30000

// A producer that looked at the cell just before it was set, and commits just
// after the last look, notifies nobody: so the first look comes early.
#define FIRST_LOOK_MS 20
#define LOOK_MS       1000

static const char *const state_names[] = {
    [POOL_STOPPED] = "stopped",
    [POOL_RUNNING] = "running",
    [POOL_ARMING] = "arming",
    [POOL_ASLEEP] = "asleep",
};

static const struct machine_transition transitions[] = {
    {POOL_STOPPED, POOL_RUNNING, "started"},
    {POOL_RUNNING, POOL_ARMING, "nothing to claim"},
    {POOL_ARMING, POOL_RUNNING, "found some, or was notified"},
    {POOL_ARMING, POOL_ASLEEP, "still nothing"},
    {POOL_ASLEEP, POOL_RUNNING, "notified"},
    {POOL_ASLEEP, POOL_ARMING, "time to look again"},
    {POOL_RUNNING, POOL_STOPPED, "stopped"},
    {POOL_ARMING, POOL_STOPPED, "stopped"},
    {POOL_ASLEEP, POOL_STOPPED, "stopped"},
};

static const struct machine machine = {
    .name = "pool",
    .states = state_names,
    .state_count = sizeof state_names / sizeof state_names[0],
    .transitions = transitions,
    .transition_count = sizeof transitions / sizeof transitions[0],
};

static void set_state(struct pool *p, enum pool_state to)
{
    const char *why = machine_step(&machine, (int)p->state, (int)to);
    log_debug(p->b->opt.log, "pool state", LOG_S("from", state_names[p->state]),
              LOG_S("to", state_names[to]), LOG_S("why", why));
    p->state = to;
}

// ------------------------------------------------------------------ exchange

static void set_wake(struct pool *p, struct client *c, int value)
{
    struct conn_params params = CONN_PARAMS_INIT;
    conn_params_add_int64(&params, p->b->queue_id);
    conn_params_add_int64(&params, value);
    client_request(c, "publish_loop", &params, NULL, NULL);
}

static void on_exchange(struct conn *conn, PGresult *res, const struct err *e, void *arg);

static void run_exchange(struct consumer *c)
{
    struct err e = ERR_INIT;
    const struct exchange_call call = {
        .queue = BENCH_QUEUE,
        .want = c->pool->state == POOL_STOPPED ? 0 : c->pool->opt.batch,
        .worker_id = c->pool->worker_id,
        .pid = (int)getpid(),
        .lanes = c->pool->b->own_lanes ? NULL : bench_lanes,
        .lane_count = BENCH_LANE_COUNT,
    };
    c->busy = true;
    c->sent_us = bench_now_us();
    if (!exchange_send(&c->ends, c->client->conn, &call, 0, on_exchange, c, &e))
        bench_fail(c->pool->b, &e);
}

static struct consumer *find_parked(struct pool *p)
{
    for (int i = 0; i < p->opt.connections; i++)
        if (!p->consumers[i].busy)
            return &p->consumers[i];
    return NULL;
}

static bool all_parked(void *arg)
{
    const struct pool *p = arg;
    for (int i = 0; i < p->opt.connections; i++)
        if (p->consumers[i].busy)
            return false;
    return true;
}

// More than one may have to do: one that found a whole batch calls the next.
static void found_some(struct pool *p, struct consumer *c, size_t n)
{
    if (p->state == POOL_ARMING) {
        set_state(p, POOL_RUNNING);
        p->looks = 0;
        set_wake(p, c->client, 0);
    }
    run_exchange(c);
    struct consumer *next = n == (size_t)p->opt.batch ? find_parked(p) : NULL;
    if (next != NULL)
        run_exchange(next);
}

static void found_nothing(struct pool *p, struct consumer *c)
{
    if (!p->opt.sleeps) {
        loop_timer_start(p->look, POLL_MS);
    } else if (!all_parked(p)) {
        return; // the others go on looking
    } else if (p->state == POOL_RUNNING) {
        set_state(p, POOL_ARMING);
        p->notified = false;
        set_wake(p, c->client, 1);
        run_exchange(c);
    } else if (p->state == POOL_ARMING && p->notified) {
        p->notified = false;
        run_exchange(c);
    } else if (p->state == POOL_ARMING) {
        set_state(p, POOL_ASLEEP);
        loop_timer_start(p->look, p->looks++ == 0 ? FIRST_LOOK_MS : LOOK_MS);
    }
}

static bool take_answer(struct consumer *c, const PGresult *res,
                        struct exchange_answer *answer, struct err *e)
{
    arena_reset(&c->arena);
    if (!exchange_parse(res, &c->arena, answer, e))
        return false;
    if (answer->refusal_count == 0)
        return true;
    return err_set(e, "lease %" PRId64 " was taken away from a worker that lives",
                   answer->refusals[0].lease_id);
}

static void on_exchange(struct conn *conn, PGresult *res, const struct err *failed,
                        void *arg)
{
    (void)conn;
    struct consumer *c = arg;
    struct pool *p = c->pool;
    struct exchange_answer answer;
    struct err e = ERR_INIT;
    c->busy = false;
    if (!client_answered(c->client, failed))
        return;
    if (!take_answer(c, res, &answer, &e)) {
        bench_fail(p->b, &e);
        return;
    }
    if (p->opt.calls != NULL && (c->ends.count > 0 || answer.task_count > 0))
        samples_add(p->opt.calls, (double)(bench_now_us() - c->sent_us) / 1000);
    if (c->ends.count > 0)
        p->opt.on_finished(p->opt.arg, c->ends.count);
    exchange_reset(&c->ends);
    for (size_t i = 0; i < answer.task_count; i++) {
        p->opt.on_task(p->opt.arg, &answer.tasks[i]);
        exchange_end_task(&c->ends, &answer.tasks[i], NULL);
    }
    if (answer.task_count > 0)
        found_some(p, c, answer.task_count);
    else if (p->state != POOL_STOPPED)
        found_nothing(p, c);
}

// --------------------------------------------------------------------- sleep

static void wake_up(struct pool *p)
{
    struct consumer *c = &p->consumers[0];
    event_del(p->look);
    p->looks = 0;
    set_state(p, POOL_RUNNING);
    set_wake(p, c->client, 0);
    run_exchange(c);
}

static void on_notify(struct client *c, const char *payload, void *arg)
{
    (void)c;
    struct pool *p = arg;
    if (strcmp(payload, BENCH_QUEUE) != 0)
        return;
    if (p->state == POOL_ASLEEP)
        wake_up(p);
    else
        p->notified = true;
}

static void on_look(evutil_socket_t fd, short what, void *arg)
{
    (void)fd;
    (void)what;
    struct pool *p = arg;
    struct consumer *c;
    if (p->state == POOL_ASLEEP) {
        set_state(p, POOL_ARMING);
        run_exchange(&p->consumers[0]);
    } else if (p->state == POOL_RUNNING && !p->opt.sleeps) {
        while ((c = find_parked(p)) != NULL)
            run_exchange(c);
    }
}

// ---------------------------------------------------------------------- beat

static void on_beaten(struct client *c, PGresult *res, void *arg)
{
    (void)arg;
    struct err e = ERR_INIT;
    if (PQgetvalue(res, 0, 0)[0] == 't')
        return;
    err_set(&e, "the server has given up a worker that lives");
    bench_fail(c->b, &e);
}

// What every worker does once a second.
static void on_beat(evutil_socket_t fd, short what, void *arg)
{
    (void)fd;
    (void)what;
    struct pool *p = arg;
    struct client *c = &p->control.list[0];
    struct conn_params beat = CONN_PARAMS_INIT, maintain = CONN_PARAMS_INIT;
    if (conn_pending(c->conn) > 0)
        return;
    conn_params_add_int64(&beat, p->worker_id);
    client_request(c, "worker_beat", &beat, on_beaten, NULL);
    conn_params_add_text(&maintain, BENCH_QUEUE);
    client_request(c, "queue_maintain", &maintain, NULL, NULL);
}

// ---------------------------------------------------------------------- life

bool pool_register_worker(struct bench *b, int64_t *worker_id, struct err *e)
{
    struct conn_params params = CONN_PARAMS_INIT;
    PGresult *res;
    conn_params_add_text(&params, "pgkin bench");
    conn_params_add_null(&params);
    conn_params_add_int64(&params, getpid());
    if (!bench_sql(b, "worker_register", &params, &res, e))
        return false;
    *worker_id = conn_result_int64(res, 0, 0);
    PQclear(res);
    return true;
}

bool pool_release_worker(struct bench *b, int64_t worker_id, struct err *e)
{
    struct conn_params params = CONN_PARAMS_INIT;
    conn_params_add_int64(&params, worker_id);
    return bench_sql(b, "worker_stop", &params, NULL, e);
}

bool pool_open(struct pool *p, struct bench *b, const struct pool_options *o,
               struct err *e)
{
    *p = (struct pool){.b = b, .opt = *o};
    p->look = loop_event_new(b->base, -1, 0, on_look, p);
    p->beat = loop_event_new(b->base, -1, EV_PERSIST, on_beat, p);
    if (!clients_open(&p->clients, b, "consumer", o->connections, o->sync, e) ||
        !clients_open(&p->control, b, "control", 1, SYNC_OFF, e) ||
        !pool_register_worker(b, &p->worker_id, e))
        return false;
    p->consumers = xcalloc((size_t)o->connections, sizeof p->consumers[0]);
    for (int i = 0; i < o->connections; i++) {
        p->consumers[i].pool = p;
        p->consumers[i].client = &p->clients.list[i];
    }
    struct client *control = &p->control.list[0];
    control->on_notify = on_notify;
    control->arg = p;
    if (o->sleeps)
        conn_listen(control->conn, CHANNEL);
    loop_event_add(p->beat, &(struct timeval){.tv_sec = BEAT_MS / 1000});
    on_beat(-1, 0, p); // its answer comes after that to the LISTEN
    return clients_settle(&p->control, STOP_LIMIT_MS, e);
}

void pool_start(struct pool *p)
{
    set_state(p, POOL_RUNNING);
    for (int i = 0; i < p->opt.connections; i++)
        run_exchange(&p->consumers[i]);
}

bool pool_stop(struct pool *p, struct err *e)
{
    set_state(p, POOL_STOPPED);
    event_del(p->look);
    event_del(p->beat);
    return bench_wait(p->b, all_parked, p, STOP_LIMIT_MS, "stopping", e) &&
           clients_settle(&p->clients, STOP_LIMIT_MS, e) &&
           clients_settle(&p->control, STOP_LIMIT_MS, e) &&
           pool_release_worker(p->b, p->worker_id, e);
}

void pool_close(struct pool *p)
{
    loop_event_clear(&p->look);
    loop_event_clear(&p->beat);
    clients_close(&p->clients);
    clients_close(&p->control);
    for (int i = 0; p->consumers != NULL && i < p->opt.connections; i++) {
        exchange_clear(&p->consumers[i].ends);
        arena_clear(&p->consumers[i].arena);
    }
    free(p->consumers);
    *p = (struct pool){0};
}
