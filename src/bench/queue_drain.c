// SPDX-License-Identifier: Apache-2.0

#include "bench/queue_drain.h"

#include <inttypes.h>
#include <stdlib.h>
#include <string.h>

#include "bench/holder.h"
#include "bench/pace.h"
#include "bench/pool.h"
#include "core/buf.h"

#define LIMIT_MS (3600 * 1000)

// One drain of freshly loaded tasks. Their ids are in (first, last].
struct drain {
    struct bench *b;
    const struct queue_drain_options *opt;
    int64_t first;
    int64_t last;
    unsigned char *seen; // one for each id
    int64_t claimed;
    int64_t finished;
    int64_t strange; // handed out twice, or nothing that was loaded
    int64_t apart;
    int64_t last_other_us; // when the last of the others was in hand

    struct pace pace;
};

static void on_task(void *arg, const struct exchange_task *t)
{
    struct drain *d = arg;
    bool known = t->task_id > d->first && t->task_id <= d->last;
    if (known && !d->seen[t->task_id - d->first - 1] &&
        load_read_payload(t->payload) >= 0)
        d->seen[t->task_id - d->first - 1] = 1;
    else
        d->strange++;
    d->claimed++;
    if (d->opt->apart != NULL && strcmp(t->command, d->opt->apart) == 0)
        d->apart++;
    else
        d->last_other_us = bench_now_us();
}

static void on_finished(void *arg, size_t n)
{
    struct drain *d = arg;
    d->finished += (int64_t)n;
    d->b->done = d->finished;
    pace_note(&d->pace, d->finished);
}

static bool is_drained(void *arg)
{
    const struct drain *d = arg;
    return d->finished >= d->b->opt.tasks;
}

static bool verify(const struct drain *d, struct err *e)
{
    struct conn_params p = CONN_PARAMS_INIT;
    PGresult *res;
    int64_t tasks = d->b->opt.tasks;
    if (d->strange > 0)
        return err_set(e, "%" PRId64 " tasks were handed out twice, or never enqueued",
                       d->strange);
    conn_params_add_int64(&p, d->first + 1);
    conn_params_add_int64(&p, d->last);
    if (!bench_sql(d->b, "bench_verify", &p, &res, e))
        return false;
    int64_t loaded = conn_result_int64(res, 0, 0);
    int64_t completed = conn_result_int64(res, 0, 2);
    PQclear(res);
    if (loaded == tasks && completed == tasks && d->claimed == tasks &&
        d->finished == tasks)
        return true;
    return err_set(e,
                   "%d tasks wanted, %" PRId64 " loaded, %" PRId64 " handed out, %" PRId64
                   " completed",
                   d->b->opt.tasks, loaded, d->claimed, completed);
}

static bool load(struct drain *d, struct err *e)
{
    struct bench *b = d->b;
    if (!load_last_task(b, &d->first, e) ||
        !load_tasks(b, d->opt->into, b->opt.tasks, e) || !load_last_task(b, &d->last, e))
        return false;
    d->seen = xcalloc((size_t)(d->last - d->first), 1);
    return true;
}

static bool run_drain(struct drain *d, struct meter *m, struct err *e)
{
    struct bench *b = d->b;
    const struct pool_options o = {.connections = b->opt.connections,
                                   .batch = b->opt.batch,
                                   .sync = b->opt.sync,
                                   .calls = d->opt->calls,
                                   .on_task = on_task,
                                   .on_finished = on_finished,
                                   .arg = d};
    struct pool pool;
    bool ok = false;
    if (!pool_open(&pool, b, &o, e))
        goto out;
    meter_watch(m, b, &pool.clients);
    meter_watch(m, b, &pool.control);
    bench_progress(b, "draining", b->opt.tasks);
    if (!meter_start(m, e))
        goto out;
    d->pace.start_us = m->start.us;
    pool_start(&pool);
    ok = bench_wait(b, is_drained, d, LIMIT_MS, "draining", e) && meter_stop(m, e) &&
         pool_stop(&pool, e);
out:
    meter_forget(m);
    pool_close(&pool);
    return ok;
}

bool queue_drain_run(struct bench *b, const struct queue_drain_options *o,
                     struct meter *m, struct queue_drain_rates *out, struct err *e)
{
    struct drain d = {.b = b, .opt = o, .pace.tasks = b->opt.tasks};
    PGconn *holder;
    bool ok = holder_begin(b, &holder, e) && load(&d, e) && run_drain(&d, m, e);
    ok = holder_end(b, holder, ok, e) && verify(&d, e);
    free(d.seen);
    if (!ok)
        return false;
    *out = (struct queue_drain_rates){
        .all = pace_rate(&d.pace),
        .first = pace_first(&d.pace),
        .last = pace_last(&d.pace),
        .others = pace_of(b->opt.tasks - d.apart, d.last_other_us - d.pace.start_us),
        .apart = d.apart,
    };
    return true;
}
