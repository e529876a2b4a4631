// SPDX-License-Identifier: Apache-2.0
//
// How long a task waits: tasks are enqueued one by one at a given rate, each in
// a transaction of its own, while consumers claim them. Producers keep to the
// clock and not to the consumers (an open loop), so that a stall is seen by all
// tasks that fall into it.
//
// The wait is from the moment at which the producer knew that its transaction
// was committed to the moment at which a consumer had the task in hand; 0 when
// the consumer was faster. The figures named sent_… count from the moment at
// which the task was due to be sent.

#include <inttypes.h>
#include <math.h>
#include <stdlib.h>

#include "bench/holder.h"
#include "bench/load.h"
#include "bench/meter.h"
#include "bench/pool.h"
#include "bench/samples.h"
#include "bench/scenarios.h"
#include "core/buf.h"
#include "core/loop.h"

#define LAST_LIMIT_MS  60000
#define WINDOW_SECONDS 30 // of the first and the last figures; less in a short run
#define WARM_UP_US     1000000

struct latency;

struct shot {
    struct latency *l;
    int64_t due_us;
    int64_t ack_us;
    int64_t claim_us;
};

struct latency {
    struct bench *b;
    struct clients producers;
    struct event *timer;
    struct shot *shots;
    int64_t count;
    int64_t sent;
    int64_t acked;
    int64_t claimed;
    int64_t finished;
    int64_t strange;
    int64_t start_us;
    int64_t warm_up_us;
};

// ----------------------------------------------------------------- producing

static void on_ack(struct client *c, PGresult *res, void *arg)
{
    (void)c;
    (void)res;
    struct shot *s = arg;
    s->ack_us = bench_now_us();
    s->l->acked++;
}

// The session with the least under way.
static struct client *choose_producer(struct latency *l)
{
    struct client *best = &l->producers.list[0];
    for (size_t i = 1; i < l->producers.count; i++)
        if (conn_pending(l->producers.list[i].conn) < conn_pending(best->conn))
            best = &l->producers.list[i];
    return best;
}

static void shoot(struct latency *l, int64_t n)
{
    struct conn_params p = CONN_PARAMS_INIT;
    struct buf payload = BUF_INIT;
    load_add_payload(&payload, n, l->b->opt.payload_bytes);
    conn_params_add_text(&p, payload.data);
    buf_clear(&payload);
    client_request(choose_producer(l), "bench_enqueue", &p, on_ack, &l->shots[n]);
}

static int64_t due_at(const struct latency *l, int64_t n)
{
    return l->start_us + n * 1000000 / l->b->opt.rate;
}

static void on_timer(evutil_socket_t fd, short what, void *arg)
{
    (void)fd;
    (void)what;
    struct latency *l = arg;
    int64_t now = bench_now_us();
    while (l->sent < l->count && due_at(l, l->sent) <= now) {
        l->shots[l->sent] = (struct shot){.l = l, .due_us = due_at(l, l->sent)};
        shoot(l, l->sent);
        l->sent++;
    }
    if (l->sent == l->count)
        return;
    int64_t us = due_at(l, l->sent) - bench_now_us();
    us = us > 0 ? us : 0;
    event_base_update_cache_time(l->b->base);
    loop_event_add(l->timer,
                   &(struct timeval){.tv_sec = us / 1000000, .tv_usec = us % 1000000});
}

// ----------------------------------------------------------------- consuming

static void on_task(void *arg, const struct exchange_task *t)
{
    struct latency *l = arg;
    int64_t n = load_read_payload(t->payload);
    if (n < 0 || n >= l->sent || l->shots[n].claim_us != 0) {
        l->strange++;
        return;
    }
    l->shots[n].claim_us = bench_now_us();
    l->claimed++;
}

static void on_finished(void *arg, size_t n)
{
    struct latency *l = arg;
    l->finished += (int64_t)n;
    l->b->done = l->finished;
}

static bool is_over(void *arg)
{
    const struct latency *l = arg;
    return l->finished >= l->count && l->acked == l->count;
}

// ------------------------------------------------------------------- figures

// Of the tasks that were due from `from` to `to`, in seconds since the start.
static void collect(const struct latency *l, double from, double to,
                    struct samples *waits, struct samples *since_due)
{
    for (int64_t i = 0; i < l->count; i++) {
        const struct shot *s = &l->shots[i];
        double at = (double)(s->due_us - l->start_us) / 1e6;
        if (at < from || at >= to)
            continue;
        double wait = (double)(s->claim_us - s->ack_us) / 1000;
        samples_add(waits, wait > 0 ? wait : 0);
        if (since_due != NULL)
            samples_add(since_due, (double)(s->claim_us - s->due_us) / 1000);
    }
}

static void report_waits(const struct latency *l, struct report *r)
{
    struct samples waits = SAMPLES_INIT, since_due = SAMPLES_INIT;
    collect(l, (double)l->warm_up_us / 1e6, INFINITY, &waits, &since_due);
    report_add_number(r, "p50_ms", samples_percentile(&waits, 50));
    report_add_number(r, "p95_ms", samples_percentile(&waits, 95));
    report_add_number(r, "p99_ms", samples_percentile(&waits, 99));
    report_add_number(r, "max_ms", samples_percentile(&waits, 100));
    report_add_number(r, "sent_p50_ms", samples_percentile(&since_due, 50));
    report_add_number(r, "sent_p95_ms", samples_percentile(&since_due, 95));
    report_add_number(r, "sent_p99_ms", samples_percentile(&since_due, 99));
    samples_clear(&waits);
    samples_clear(&since_due);
}

// The first and the last half minute; of a run shorter than three minutes, the
// first and the last sixth.
static void report_windows(const struct latency *l, struct report *r)
{
    double warm = (double)l->warm_up_us / 1e6;
    double total = (double)l->count / l->b->opt.rate;
    double window =
        (total - warm) / 6 < WINDOW_SECONDS ? (total - warm) / 6 : WINDOW_SECONDS;
    struct samples first = SAMPLES_INIT, last = SAMPLES_INIT;
    collect(l, warm, warm + window, &first, NULL);
    collect(l, total - window, INFINITY, &last, NULL);
    double first_p50 = samples_percentile(&first, 50);
    double first_p99 = samples_percentile(&first, 99);
    double last_p50 = samples_percentile(&last, 50);
    double last_p99 = samples_percentile(&last, 99);
    report_add_number(r, "window_seconds", window);
    report_add_number(r, "first_p50_ms", first_p50);
    report_add_number(r, "last_p50_ms", last_p50);
    report_add_ratio(r, "p50_ratio", last_p50, first_p50);
    report_add_number(r, "first_p99_ms", first_p99);
    report_add_number(r, "last_p99_ms", last_p99);
    report_add_ratio(r, "p99_ratio", last_p99, first_p99);
    samples_clear(&first);
    samples_clear(&last);
}

// ----------------------------------------------------------------------- run

static bool run_load(struct latency *l, struct pool *pool, struct meter *m, struct err *e)
{
    struct bench *b = l->b;
    meter_watch(m, b, &l->producers);
    meter_watch(m, b, &pool->clients);
    meter_watch(m, b, &pool->control);
    if (!meter_start(m, e))
        return false;
    l->start_us = m->start.us;
    pool_start(pool);
    on_timer(-1, 0, l);
    if (!bench_wait(b, is_over, l, (int64_t)b->opt.seconds * 1000 + LAST_LIMIT_MS,
                    "handing out the last tasks", e) ||
        !meter_stop(m, e) || !pool_stop(pool, e))
        return false;
    if (l->strange > 0 || l->claimed != l->count)
        return err_set(e,
                       "%" PRId64 " of %" PRId64 " tasks were handed out, and %" PRId64
                       " twice or never enqueued",
                       l->claimed, l->count, l->strange);
    return true;
}

static bool run_held(struct latency *l, struct meter *m, struct err *e)
{
    struct bench *b = l->b;
    const struct pool_options o = {.connections = b->opt.connections,
                                   .batch = b->opt.batch,
                                   .sync = b->opt.sync,
                                   .sleeps = true,
                                   .on_task = on_task,
                                   .on_finished = on_finished,
                                   .arg = l};
    struct pool pool = {0};
    PGconn *holder = NULL;
    bool ok =
        clients_open(&l->producers, b, "producer", b->opt.producers, b->opt.sync, e) &&
        pool_open(&pool, b, &o, e) && holder_begin(b, &holder, e) &&
        run_load(l, &pool, m, e);
    ok = holder_end(b, holder, ok, e);
    meter_forget(m);
    pool_close(&pool);
    clients_close(&l->producers);
    return ok;
}

static bool run_latency(struct bench *b, struct report *r, bool windows, struct err *e)
{
    struct meter m = {0};
    struct latency l = {.b = b, .count = (int64_t)b->opt.rate * b->opt.seconds};
    int64_t tenth_us = (int64_t)b->opt.seconds * 100000;
    l.warm_up_us = tenth_us < WARM_UP_US ? tenth_us : WARM_UP_US;
    l.shots = xcalloc((size_t)l.count, sizeof l.shots[0]);
    l.timer = loop_event_new(b->base, -1, 0, on_timer, &l);
    bench_progress(b, "enqueueing and claiming", l.count);
    bool ok = run_held(&l, &m, e);
    if (ok) {
        meter_report(&m, l.count, NAN, r);
        report_waits(&l, r);
        if (windows)
            report_windows(&l, r);
        report_add_int(r, "rate", b->opt.rate);
        report_add_text(r, "holder", bench_holder_name(b->opt.holder));
        report_add_text(r, "synchronous_commit", b->opt.sync == SYNC_OFF ? "off" : "on");
        report_add_int(r, "producers", b->opt.producers);
        report_add_int(r, "connections", b->opt.connections);
    }
    loop_event_clear(&l.timer);
    free(l.shots);
    return ok;
}

bool bench_latency(struct bench *b, struct report *r, struct err *e)
{
    return run_latency(b, r, false, e);
}

bool bench_held_snapshot(struct bench *b, struct report *r, struct err *e)
{
    return run_latency(b, r, true, e);
}
