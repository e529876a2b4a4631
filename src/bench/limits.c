// SPDX-License-Identifier: Apache-2.0
//
// What limits cost: the same tasks drained by the same sessions in batches of the
// same size, with and without a limit. A limit of 10 lets no more than 10 tasks be
// in hand, so the batches are small enough for that in the drain without one, too;
// else it would be the size of a batch that is measured.

#include "bench/queue_drain.h"
#include "bench/scenarios.h"

#define LIMITED_COMMAND "bench_limit_1"

struct shape {
    int commands;
    int limited; // how many of them have the limit
    int limit;
};

// One side of a comparison.
struct side {
    struct meter meter;
    struct samples rate;
    struct samples first_rate;
    struct samples last_rate;
    struct samples call_ms;
    int64_t apart;
};

static void side_clear(struct side *s)
{
    samples_clear(&s->rate);
    samples_clear(&s->first_rate);
    samples_clear(&s->last_rate);
    samples_clear(&s->call_ms);
}

static bool make_commands(struct bench *b, const struct shape *shape, bool limited,
                          struct err *e)
{
    b->own_lanes = true;
    struct conn_params p = CONN_PARAMS_INIT;
    conn_params_add_int64(&p, shape->commands);
    conn_params_add_int64(&p, limited ? shape->limited : 0);
    conn_params_add_int64(&p, shape->limit);
    if (bench_script(b, b->control, "bench_limit_forget", e))
        return bench_sql(b, "bench_limit_commands", &p, NULL, e);
    conn_params_clear(&p);
    return false;
}

static bool is_mixed(const struct shape *shape)
{
    return shape->limited > 0 && shape->limited < shape->commands;
}

// Where only some commands are limited, the tasks of the others count.
static bool run_side(struct bench *b, const struct shape *shape, bool limited,
                     struct side *side, struct err *e)
{
    bool mixed = is_mixed(shape);
    const struct queue_drain_options o = {.into = LOAD_COMMANDS,
                                          .apart = mixed ? LIMITED_COMMAND : NULL,
                                          .calls = &side->call_ms};
    struct queue_drain_rates rates;
    if (!make_commands(b, shape, limited, e) ||
        !queue_drain_run(b, &o, &side->meter, &rates, e))
        return false;
    samples_add(&side->rate, mixed ? rates.others : rates.all);
    samples_add(&side->first_rate, rates.first);
    samples_add(&side->last_rate, rates.last);
    side->apart += rates.apart;
    return true;
}

static void report(struct bench *b, const struct shape *shape, struct side *ours,
                   struct side *theirs, struct report *r)
{
    int64_t tasks = (int64_t)b->opt.tasks * b->opt.rounds;
    double rate = samples_median(&ours->rate);
    meter_report(&ours->meter, tasks, rate, r);
    report_add_number(r, "p50_ms", samples_percentile(&ours->call_ms, 50));
    report_add_number(r, "p95_ms", samples_percentile(&ours->call_ms, 95));
    report_add_number(r, "p99_ms", samples_percentile(&ours->call_ms, 99));
    report_add_number(r, "max_ms", samples_percentile(&ours->call_ms, 100));
    report_add_number(r, "first_tasks_per_s", samples_median(&ours->first_rate));
    report_add_number(r, "last_tasks_per_s", samples_median(&ours->last_rate));
    if (theirs->rate.count > 0) {
        report_add_number(r, "baseline_tasks_per_s", samples_median(&theirs->rate));
        report_add_ratio(r, "baseline_server_us_per_task", theirs->meter.sum.server_us,
                         (double)tasks);
        report_add_number(r, "baseline_p50_ms", samples_percentile(&theirs->call_ms, 50));
        report_add_number(r, "baseline_p99_ms", samples_percentile(&theirs->call_ms, 99));
        report_add_ratio(r, "ratio", rate, samples_median(&theirs->rate));
    }
    report_add_int(r, "commands", shape->commands);
    report_add_int(r, "limited_commands", shape->limited);
    report_add_int(r, "limit", shape->limit);
    if (is_mixed(shape))
        report_add_int(r, "limited_tasks", ours->apart);
    report_add_text(r, "enqueued", b->opt.single ? "single" : "bulk");
    report_add_text(r, "holder", bench_holder_name(b->opt.holder));
    report_add_text(r, "synchronous_commit", b->opt.sync == SYNC_OFF ? "off" : "on");
    report_add_int(r, "batch", b->opt.batch);
    report_add_int(r, "connections", b->opt.connections);
    report_add_int(r, "rounds", b->opt.rounds);
}

// The two sides take turns.
static bool run(struct bench *b, const struct shape *shape, struct report *r,
                struct err *e)
{
    struct side ours = {0}, theirs = {0};
    bool compare = b->opt.baseline && shape->limited > 0;
    bool ok = true;
    for (int i = 0; ok && i < b->opt.rounds; i++)
        ok = run_side(b, shape, true, &ours, e) &&
             (!compare || run_side(b, shape, false, &theirs, e));
    if (ok)
        report(b, shape, &ours, &theirs, r);
    side_clear(&ours);
    side_clear(&theirs);
    return ok;
}

bool bench_concurrency_baseline(struct bench *b, struct report *r, struct err *e)
{
    return run(b, &(struct shape){.commands = 1}, r, e);
}

bool bench_concurrency_enabled(struct bench *b, struct report *r, struct err *e)
{
    return run(b, &(struct shape){.commands = 1, .limited = 1, .limit = 10}, r, e);
}

bool bench_concurrency_mixed(struct bench *b, struct report *r, struct err *e)
{
    return run(b, &(struct shape){.commands = 100, .limited = 1, .limit = 10}, r, e);
}

bool bench_concurrency_high(struct bench *b, struct report *r, struct err *e)
{
    return run(b, &(struct shape){.commands = 1, .limited = 1, .limit = 500}, r, e);
}
