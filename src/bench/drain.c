// SPDX-License-Identifier: Apache-2.0
//
// How fast tasks that are all there are claimed and finished: no-op handlers,
// batches, one completion row per task. Loading is not part of the time.

#include <inttypes.h>
#include <math.h>
#include <stdlib.h>

#include "bench/baseline.h"
#include "bench/holder.h"
#include "bench/load.h"
#include "bench/meter.h"
#include "bench/pool.h"
#include "bench/samples.h"
#include "bench/scenarios.h"
#include "core/buf.h"

#define LIMIT_MS (3600 * 1000)

// One drain of freshly loaded tasks. Their ids are in (first, last].
struct drain {
    struct bench *b;
    int64_t first;
    int64_t last;
    unsigned char *seen; // one for each id
    int64_t claimed;
    int64_t finished;
    int64_t strange; // handed out twice, or nothing that was loaded

    int64_t start_us;
    // When the first tenth was finished, when the last began, and the end.
    struct {
        int64_t us;
        int64_t finished;
    } tenth, nine_tenths, end;
};

struct rounds {
    struct meter meter;
    struct meter baseline_meter;
    struct samples rate;
    struct samples first_rate;
    struct samples last_rate;
    struct samples baseline_rate;
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
}

static void on_finished(void *arg, size_t n)
{
    struct drain *d = arg;
    int64_t tasks = d->b->opt.tasks;
    d->finished += (int64_t)n;
    d->b->done = d->finished;
    d->end.us = bench_now_us();
    d->end.finished = d->finished;
    if (d->tenth.us == 0 && d->finished >= tasks / 10)
        d->tenth = d->end;
    if (d->nine_tenths.us == 0 && d->finished >= tasks - tasks / 10)
        d->nine_tenths = d->end;
}

static bool is_drained(void *arg)
{
    const struct drain *d = arg;
    return d->finished >= d->b->opt.tasks;
}

static double rate(int64_t tasks, int64_t us)
{
    return tasks > 0 && us > 0 ? (double)tasks * 1e6 / (double)us : NAN;
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
    int64_t loaded = bench_result_int64(res, 0);
    int64_t completed = bench_result_int64(res, 2);
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
    if (!load_last_task(b, &d->first, e) || !load_tasks(b, LOAD_QUEUE, b->opt.tasks, e) ||
        !load_last_task(b, &d->last, e))
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
    d->start_us = m->start.us;
    pool_start(&pool);
    ok = bench_wait(b, is_drained, d, LIMIT_MS, "draining", e) && meter_stop(m, e) &&
         pool_stop(&pool, e);
out:
    meter_forget(m);
    pool_close(&pool);
    return ok;
}

static bool run_ours(struct bench *b, struct rounds *r, struct err *e)
{
    struct drain d = {.b = b};
    PGconn *holder;
    bool ok = holder_begin(b, &holder, e) && load(&d, e) && run_drain(&d, &r->meter, e);
    ok = holder_end(b, holder, ok, e) && verify(&d, e);
    free(d.seen);
    if (!ok)
        return false;
    samples_add(&r->rate, rate(b->opt.tasks, d.end.us - d.start_us));
    samples_add(&r->first_rate, rate(d.tenth.finished, d.tenth.us - d.start_us));
    samples_add(&r->last_rate, rate(d.end.finished - d.nine_tenths.finished,
                                    d.end.us - d.nine_tenths.us));
    return true;
}

static bool run_round(struct bench *b, struct rounds *r, struct err *e)
{
    if (!run_ours(b, r, e))
        return false;
    if (!b->opt.baseline)
        return true;
    if (!baseline_drain(b, &r->baseline_meter, e))
        return false;
    samples_add(&r->baseline_rate, b->opt.tasks / r->baseline_meter.last_seconds);
    return true;
}

static void report_baseline(struct bench *b, struct rounds *rounds, struct report *r)
{
    const struct meter_reading *sum = &rounds->baseline_meter.sum;
    double tasks = (double)b->opt.tasks * b->opt.rounds;
    double theirs = samples_median(&rounds->baseline_rate);
    report_add_number(r, "baseline_tasks_per_s", theirs);
    report_add_ratio(r, "baseline_server_us_per_task", sum->server_us, tasks);
    report_add_ratio(r, "baseline_wal_bytes_per_task", sum->wal_bytes, tasks);
    report_add_ratio(r, "ratio", samples_median(&rounds->rate), theirs);
}

static void report(struct bench *b, struct rounds *rounds, struct report *r)
{
    meter_report(&rounds->meter, (int64_t)b->opt.tasks * b->opt.rounds,
                 samples_median(&rounds->rate), r);
    report_add_number(r, "first_tasks_per_s", samples_median(&rounds->first_rate));
    report_add_number(r, "last_tasks_per_s", samples_median(&rounds->last_rate));
    if (b->opt.baseline)
        report_baseline(b, rounds, r);
    report_add_text(r, "enqueued", b->opt.single ? "single" : "bulk");
    report_add_text(r, "holder", bench_holder_name(b->opt.holder));
    report_add_text(r, "synchronous_commit", b->opt.sync == SYNC_OFF ? "off" : "on");
    report_add_int(r, "batch", b->opt.batch);
    report_add_int(r, "connections", b->opt.connections);
    report_add_int(r, "rounds", b->opt.rounds);
}

bool bench_drain(struct bench *b, struct report *r, struct err *e)
{
    struct rounds rounds = {0};
    bool ok = true;
    for (int i = 0; ok && i < b->opt.rounds; i++)
        ok = run_round(b, &rounds, e);
    if (ok)
        report(b, &rounds, r);
    samples_clear(&rounds.rate);
    samples_clear(&rounds.first_rate);
    samples_clear(&rounds.last_rate);
    samples_clear(&rounds.baseline_rate);
    return ok;
}
