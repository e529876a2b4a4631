// SPDX-License-Identifier: Apache-2.0
//
// How fast tasks get in: many in one statement and by COPY, or with --single
// each in a transaction of its own from several sessions. The baseline is the
// same rows into a bare table. Both take turns in short rounds, so that what
// disturbs one disturbs the other, and the medians are compared.

#include <inttypes.h>

#include "bench/load.h"
#include "bench/meter.h"
#include "bench/samples.h"
#include "bench/scenarios.h"

#define DEFAULT_BULK 200000

// --------------------------------------------------------------------- bulk

struct bulk {
    struct buf array; // all payloads
    struct buf rows;
    struct samples many;
    struct samples copy;
    struct samples baseline;
};

static bool time_statement(struct bench *b, const char *query, const struct buf *array,
                           struct samples *out, struct err *e)
{
    struct conn_params p = CONN_PARAMS_INIT;
    conn_params_add_text(&p, array->data);
    int64_t start = bench_now_us();
    if (!bench_sql(b, query, &p, NULL, e))
        return false;
    samples_add(out, (double)b->opt.tasks * 1e6 / (double)(bench_now_us() - start));
    return true;
}

static bool time_copy(struct bench *b, struct bulk *k, struct err *e)
{
    int64_t start = bench_now_us();
    if (!bench_copy(b, "bench_enqueue_copy", k->rows.data, k->rows.len, e))
        return false;
    samples_add(&k->copy, (double)b->opt.tasks * 1e6 / (double)(bench_now_us() - start));
    return true;
}

// The one statement is what is metered.
static bool run_bulk_round(struct bench *b, struct meter *m, struct bulk *k,
                           struct err *e)
{
    return meter_start(m, e) &&
           time_statement(b, "bench_enqueue_many", &k->array, &k->many, e) &&
           meter_stop(m, e) && time_copy(b, k, e) &&
           (!b->opt.baseline ||
            (bench_script(b, b->control, "bench_plain_truncate", e) &&
             time_statement(b, "bench_plain_insert_many", &k->array, &k->baseline, e)));
}

static bool check_count(struct bench *b, int64_t last_before, int64_t wanted,
                        struct err *e)
{
    struct conn_params p = CONN_PARAMS_INIT;
    PGresult *res;
    conn_params_add_int64(&p, last_before + 1);
    conn_params_add_int64(&p, INT64_MAX);
    if (!bench_sql(b, "bench_verify", &p, &res, e))
        return false;
    int64_t found = conn_result_int64(res, 0, 0);
    PQclear(res);
    if (found == wanted)
        return true;
    return err_set(e, "%" PRId64 " tasks were enqueued and %" PRId64 " are there", wanted,
                   found);
}

static void report_bulk(struct bench *b, struct meter *m, struct bulk *k,
                        struct report *r)
{
    double ours = samples_median(&k->many);
    double theirs = samples_median(&k->baseline);
    m->sum.commits = b->opt.rounds;
    meter_report(m, (int64_t)b->opt.tasks * b->opt.rounds, ours, r);
    report_add_number(r, "copy_tasks_per_s", samples_median(&k->copy));
    if (b->opt.baseline) {
        report_add_number(r, "baseline_tasks_per_s", theirs);
        report_add_ratio(r, "ratio", ours, theirs);
    }
    report_add_text(r, "synchronous_commit", b->opt.sync == SYNC_OFF ? "off" : "on");
}

static bool run_bulk(struct bench *b, struct report *r, struct err *e)
{
    struct bulk k = {0};
    struct meter m = {0};
    int64_t before;
    if (b->opt.tasks < 0)
        b->opt.tasks = DEFAULT_BULK;
    load_add_array(&k.array, 0, b->opt.tasks, b->opt.payload_bytes);
    load_add_rows(&k.rows, 0, b->opt.tasks, b->opt.payload_bytes);
    meter_watch_control(&m, b);
    bool ok = load_last_task(b, &before, e) && bench_set_sync(b, b->opt.sync, e);
    bench_progress(b, "enqueueing in bulk, round", b->opt.rounds);
    for (int i = 0; ok && i < b->opt.rounds; i++) {
        ok = run_bulk_round(b, &m, &k, e);
        b->done++;
    }
    ok = ok && check_count(b, before, 2LL * b->opt.tasks * b->opt.rounds, e);
    if (ok)
        report_bulk(b, &m, &k, r);
    buf_clear(&k.array);
    buf_clear(&k.rows);
    samples_clear(&k.many);
    samples_clear(&k.copy);
    samples_clear(&k.baseline);
    return ok;
}

// --------------------------------------------------------------- one by one

struct singles {
    struct samples ours;
    struct samples baseline;
    int64_t acked;
};

static bool run_singles_round(struct bench *b, struct clients *clients, const char *query,
                              struct samples *rates, int64_t *acked, struct err *e)
{
    struct load_singles l = {.query = query, .depth = 1};
    if (b->opt.tasks > 0)
        l.tasks = b->opt.tasks;
    else
        l.for_us = (int64_t)b->opt.seconds * 1000000;
    if (!load_run_singles(&l, clients, e))
        return false;
    samples_add(rates, (double)l.acked / l.seconds);
    *acked += l.acked;
    return true;
}

static bool run_singles_sync(struct bench *b, enum bench_sync sync, struct meter *m,
                             struct singles *s, struct err *e)
{
    struct clients clients;
    int64_t ignored = 0;
    bool ok = clients_open(&clients, b, "producer", b->opt.connections, sync, e);
    bench_progress(b,
                   sync == SYNC_OFF ? "enqueueing one by one, not waiting for the disk"
                                    : "enqueueing one by one",
                   0);
    meter_watch(m, b, &clients);
    for (int i = 0; ok && i < b->opt.rounds; i++) {
        ok = meter_start(m, e) &&
             run_singles_round(b, &clients, "bench_enqueue", &s->ours, &s->acked, e) &&
             meter_stop(m, e);
        if (ok && b->opt.baseline)
            ok = run_singles_round(b, &clients, "bench_plain_insert", &s->baseline,
                                   &ignored, e);
    }
    meter_forget(m);
    clients_close(&clients);
    return ok;
}

static void report_singles(struct bench *b, const struct meter *m, struct singles *s,
                           struct report *r)
{
    double ours = samples_median(&s->ours);
    double theirs = samples_median(&s->baseline);
    meter_report(m, s->acked, ours, r);
    if (b->opt.baseline) {
        report_add_number(r, "baseline_tasks_per_s", theirs);
        report_add_ratio(r, "ratio", ours, theirs);
    }
    report_add_text(r, "synchronous_commit", b->opt.sync == SYNC_OFF ? "off" : "on");
}

// When nobody has said which, the one without waiting for the disk comes too.
static bool run_singles(struct bench *b, struct report *r, struct err *e)
{
    struct meter m = {0}, m_async = {0};
    struct singles s = {0}, async = {0};
    bool both = b->opt.sync == SYNC_UNSET;
    int64_t before;
    bool ok = load_last_task(b, &before, e) &&
              run_singles_sync(b, b->opt.sync, &m, &s, e) &&
              (!both || run_singles_sync(b, SYNC_OFF, &m_async, &async, e)) &&
              check_count(b, before, s.acked + async.acked, e);
    if (ok)
        report_singles(b, &m, &s, r);
    if (ok && both) {
        double ours = samples_median(&async.ours);
        double theirs = samples_median(&async.baseline);
        report_add_number(r, "async_tasks_per_s", ours);
        report_add_ratio(r, "async_server_us_per_task", m_async.sum.server_us,
                         (double)async.acked);
        if (b->opt.baseline) {
            report_add_number(r, "async_baseline_tasks_per_s", theirs);
            report_add_ratio(r, "async_ratio", ours, theirs);
        }
    }
    samples_clear(&s.ours);
    samples_clear(&s.baseline);
    samples_clear(&async.ours);
    samples_clear(&async.baseline);
    return ok;
}

bool bench_enqueue(struct bench *b, struct report *r, struct err *e)
{
    if (!(b->opt.single ? run_singles(b, r, e) : run_bulk(b, r, e)))
        return false;
    report_add_text(r, "enqueued", b->opt.single ? "single" : "bulk");
    report_add_int(r, "connections", b->opt.single ? b->opt.connections : 1);
    report_add_int(r, "rounds", b->opt.rounds);
    return true;
}
