// SPDX-License-Identifier: Apache-2.0
//
// What one claim costs, and whether that depends on what lies in the tables:
// pending tasks, tasks for later (backlog), ended ones (history). One session
// exchanges batch after batch, first of the size asked for and then of one
// task, and each call is measured by itself. What an exchange costs is the
// mean of the server's CPU, or the median of the time where that is not known.

#include <inttypes.h>
#include <math.h>
#include <string.h>
#include <unistd.h>

#include "bench/load.h"
#include "bench/meter.h"
#include "bench/pool.h"
#include "bench/samples.h"
#include "bench/scenarios.h"
#include "lib/exchange.h"

#define CALLS       300 // of each size
#define WARM_UP     10  // before them
#define CHUNK       500000
#define LIMIT_MS    60000
#define SECOND_SIZE 1

struct cost {
    double us; // the server's CPU per call; NaN: not known
    double ms;
};

// The calls of one size, one after the other.
struct calls {
    struct bench *b;
    struct client *client;
    int64_t worker_id;
    struct exchange ends;
    struct arena arena;
    int batch;
    int done;
    bool short_batch; // there was not enough to claim
    int64_t sent_us;
    double sent_cpu;
    struct samples us;
    struct samples ms;
};

static void on_exchange(struct conn *conn, PGresult *res, const struct err *e, void *arg);

// With `want` 0 it only hands in the last batch.
static void call(struct calls *c, int want)
{
    struct err e = ERR_INIT;
    const struct exchange_call x = {.queue = BENCH_QUEUE,
                                    .want = want,
                                    .worker_id = c->worker_id,
                                    .pid = (int)getpid(),
                                    .lanes = bench_lanes,
                                    .lane_count = BENCH_LANE_COUNT};
    c->sent_cpu = c->b->local ? meter_read_cpu(c->client->pid) : NAN;
    c->sent_us = bench_now_us();
    if (!exchange_send(&c->ends, c->client->conn, &x, 0, on_exchange, c, &e))
        bench_fail(c->b, &e);
}

static void note(struct calls *c)
{
    int64_t now = bench_now_us();
    if (c->done < WARM_UP || c->done >= WARM_UP + CALLS)
        return;
    samples_add(&c->ms, (double)(now - c->sent_us) / 1000);
    samples_add(&c->us, c->b->local ? meter_read_cpu(c->client->pid) - c->sent_cpu : NAN);
}

static void on_exchange(struct conn *conn, PGresult *res, const struct err *failed,
                        void *arg)
{
    (void)conn;
    struct calls *c = arg;
    struct exchange_answer answer;
    struct err e = ERR_INIT;
    if (!client_answered(c->client, failed))
        return;
    note(c);
    arena_reset(&c->arena);
    if (!exchange_parse(res, &c->arena, &answer, &e)) {
        bench_fail(c->b, &e);
        return;
    }
    exchange_reset(&c->ends);
    for (size_t i = 0; i < answer.task_count; i++)
        exchange_end_task(&c->ends, &answer.tasks[i], NULL);
    c->done++;
    if (c->done <= WARM_UP + CALLS && answer.task_count < (size_t)c->batch)
        c->short_batch = true;
    if (c->done < WARM_UP + CALLS)
        call(c, c->batch);
    else if (c->done == WARM_UP + CALLS)
        call(c, 0);
}

static bool is_over(void *arg)
{
    const struct calls *c = arg;
    return c->done > WARM_UP + CALLS;
}

static bool run_calls(struct bench *b, struct client *client, int batch, struct cost *out,
                      struct err *e)
{
    struct calls c = {.b = b, .client = client, .batch = batch};
    bool ok = pool_register_worker(b, &c.worker_id, e);
    if (ok)
        call(&c, batch);
    ok = ok && bench_wait(b, is_over, &c, LIMIT_MS, "claiming", e) &&
         pool_release_worker(b, c.worker_id, e);
    if (ok && c.short_batch)
        ok = err_set(e, "a claim found fewer tasks than there are");
    *out = (struct cost){.us = samples_mean(&c.us), .ms = samples_median(&c.ms)};
    samples_clear(&c.us);
    samples_clear(&c.ms);
    exchange_clear(&c.ends);
    arena_clear(&c.arena);
    return ok;
}

// -------------------------------------------------------------------- states

// How many tasks one measurement takes out of the queue.
static int64_t eaten(const struct bench *b)
{
    return (int64_t)(WARM_UP + CALLS) * (b->opt.batch + SECOND_SIZE);
}

struct costs {
    struct cost batch;
    struct cost one;
};

// Before each measurement alike: as autovacuum would have left the tables, and
// with nothing left to write back of what was loaded (who may not do that has
// to live with the noise).
static bool calm_down(struct bench *b, struct err *e)
{
    const char *super = PQparameterStatus(b->control, "is_superuser");
    bench_progress(b, "vacuum and checkpoint", 0);
    return bench_script(b, b->control, "bench_vacuum", e) &&
           (super == NULL || strcmp(super, "on") != 0 ||
            bench_script(b, b->control, "bench_checkpoint", e));
}

// In a fresh session: so that a plan made for other tables is not measured.
static bool measure(struct bench *b, struct costs *out, struct err *e)
{
    struct clients clients = {0};
    bool ok = calm_down(b, e);
    bench_progress(b, "claiming", 0);
    ok = ok && clients_open(&clients, b, "consumer", 1, b->opt.sync, e) &&
         run_calls(b, &clients.list[0], b->opt.batch, &out->batch, e) &&
         run_calls(b, &clients.list[0], SECOND_SIZE, &out->one, e);
    clients_close(&clients);
    return ok;
}

// The first of all: what is only slow because nobody has been there before,
// such as files that have to grow, is no part of it.
static bool measure_first(struct bench *b, struct costs *out, struct err *e)
{
    return load_tasks(b, LOAD_QUEUE, eaten(b), e) && measure(b, out, e) &&
           load_tasks(b, LOAD_QUEUE, eaten(b), e) && measure(b, out, e);
}

static double cost_of(const struct cost *c)
{
    return isnan(c->us) ? c->ms : c->us;
}

struct cost_keys {
    const char *us, *ms, *one_us, *one_ms, *ratio, *one_ratio;
};

static void report_costs(struct report *r, const struct cost_keys *k,
                         const struct costs *c, const struct costs *base)
{
    report_add_number(r, k->us, c->batch.us);
    report_add_number(r, k->ms, c->batch.ms);
    report_add_number(r, k->one_us, c->one.us);
    report_add_number(r, k->one_ms, c->one.ms);
    if (base == NULL)
        return;
    report_add_ratio(r, k->ratio, cost_of(&c->batch), cost_of(&base->batch));
    report_add_ratio(r, k->one_ratio, cost_of(&c->one), cost_of(&base->one));
}

// ------------------------------------------------------------------- backlog

static const struct cost_keys few_keys = {"few_us_per_claim",
                                          "few_ms_per_claim",
                                          "few_us_per_single",
                                          "few_ms_per_single",
                                          NULL,
                                          NULL};
static const struct cost_keys scheduled_keys = {
    "scheduled_us_per_claim",  "scheduled_ms_per_claim", "scheduled_us_per_single",
    "scheduled_ms_per_single", "scheduled_ratio",        "scheduled_single_ratio"};
static const struct cost_keys pending_keys = {
    "pending_us_per_claim",  "pending_ms_per_claim", "pending_us_per_single",
    "pending_ms_per_single", "pending_ratio",        "pending_single_ratio"};

bool bench_backlog(struct bench *b, struct report *r, struct err *e)
{
    struct costs few, scheduled, pending;
    int64_t most = b->opt.tasks;
    int64_t least = most / 100 > 0 ? most / 100 : 1;
    int64_t start = bench_now_us();
    // After each measurement there is again what was there before it.
    if (!load_tasks(b, LOAD_QUEUE, least, e) || !measure_first(b, &few, e) ||
        !load_bulk(b, "bench_enqueue_later", most, e) ||
        !load_tasks(b, LOAD_QUEUE, eaten(b), e) || !measure(b, &scheduled, e) ||
        !load_tasks(b, LOAD_QUEUE, most - least + eaten(b), e) ||
        !measure(b, &pending, e))
        return false;
    report_add_int(r, "tasks", 4 * eaten(b));
    report_add_number(r, "seconds", (double)(bench_now_us() - start) / 1e6);
    report_add_int(r, "few", least);
    report_add_int(r, "many", most);
    report_add_int(r, "batch", b->opt.batch);
    report_costs(r, &few_keys, &few, NULL);
    report_costs(r, &scheduled_keys, &scheduled, &few);
    report_costs(r, &pending_keys, &pending, &few);
    return true;
}

// ------------------------------------------------------------------- history

static const struct cost_keys empty_keys = {"empty_us_per_claim",
                                            "empty_ms_per_claim",
                                            "empty_us_per_single",
                                            "empty_ms_per_single",
                                            NULL,
                                            NULL};
static const struct cost_keys history_keys = {
    "history_us_per_claim",  "history_ms_per_claim", "history_us_per_single",
    "history_ms_per_single", "history_ratio",        "history_single_ratio"};

static bool make_history(struct bench *b, struct err *e)
{
    bool ok = bench_set_sync(b, SYNC_OFF, e);
    bench_progress(b, "making a history", b->opt.tasks);
    while (ok && b->done < b->opt.tasks) {
        int64_t n = b->opt.tasks - b->done < CHUNK ? b->opt.tasks - b->done : CHUNK;
        struct conn_params p = CONN_PARAMS_INIT;
        conn_params_add_int64(&p, b->queue_id);
        conn_params_add_int64(&p, n);
        ok = bench_sql(b, "bench_history", &p, NULL, e);
        b->done += n;
    }
    return ok && bench_set_sync(b, b->opt.sync, e);
}

bool bench_history(struct bench *b, struct report *r, struct err *e)
{
    struct costs empty, history;
    int64_t start = bench_now_us();
    if (!measure_first(b, &empty, e) || !make_history(b, e) ||
        !load_tasks(b, LOAD_QUEUE, eaten(b), e) || !measure(b, &history, e))
        return false;
    report_add_int(r, "tasks", 3 * eaten(b));
    report_add_number(r, "seconds", (double)(bench_now_us() - start) / 1e6);
    report_add_int(r, "history", b->opt.tasks);
    report_add_int(r, "batch", b->opt.batch);
    report_costs(r, &empty_keys, &empty, NULL);
    report_costs(r, &history_keys, &history, &empty);
    return true;
}
