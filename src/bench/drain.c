// SPDX-License-Identifier: Apache-2.0
//
// How fast tasks that are all there are claimed and finished: no-op handlers,
// batches, one completion row per task. Loading is not part of the time.

#include "bench/baseline.h"
#include "bench/queue_drain.h"
#include "bench/scenarios.h"

struct rounds {
    struct meter meter;
    struct meter baseline_meter;
    struct samples rate;
    struct samples first_rate;
    struct samples last_rate;
    struct samples baseline_rate;
};

static bool run_ours(struct bench *b, struct rounds *r, struct err *e)
{
    const struct queue_drain_options o = {.into = LOAD_QUEUE};
    struct queue_drain_rates rates;
    if (!queue_drain_run(b, &o, &r->meter, &rates, e))
        return false;
    samples_add(&r->rate, rates.all);
    samples_add(&r->first_rate, rates.first);
    samples_add(&r->last_rate, rates.last);
    return true;
}

static bool run_round(struct bench *b, struct rounds *r, struct err *e)
{
    if (!run_ours(b, r, e))
        return false;
    if (!b->opt.baseline)
        return true;
    double rate;
    if (!baseline_drain(b, &r->baseline_meter, &rate, e))
        return false;
    samples_add(&r->baseline_rate, rate);
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
