// SPDX-License-Identifier: Apache-2.0

#include "bench/baseline.h"

#include <inttypes.h>
#include <stdlib.h>
#include <unistd.h>

#include "bench/client.h"
#include "bench/holder.h"
#include "bench/load.h"
#include "bench/pace.h"
#include "core/buf.h"

#define LIMIT_MS (3600 * 1000)

struct drain {
    struct bench *b;
    int64_t finished;
    int64_t payloads; // looked at
    struct pace pace;
};

struct worker {
    struct drain *drain;
    int64_t *ids; // of the batch in hand
    size_t count;
};

static void on_batch(struct client *c, PGresult *res, void *arg);

static void run_batch(struct client *c, struct worker *w)
{
    struct conn_params p = CONN_PARAMS_INIT;
    conn_params_add_int64s(&p, w->ids, w->count);
    conn_params_add_int64(&p, c->b->opt.batch);
    conn_params_add_int64(&p, getpid());
    client_request(c, "bench_baseline_exchange", &p, on_batch, w);
}

// Whoever finds nothing is done: no job comes back, and those that others have
// locked are theirs.
static void on_batch(struct client *c, PGresult *res, void *arg)
{
    struct worker *w = arg;
    struct drain *d = w->drain;
    d->finished += (int64_t)w->count;
    d->b->done = d->finished;
    pace_note(&d->pace, d->finished);
    w->count = 0;
    for (int i = 0; i < PQntuples(res); i++) {
        w->ids[w->count++] = strtoll(PQgetvalue(res, i, 0), NULL, 10);
        d->payloads += load_read_payload(PQgetvalue(res, i, 3)) >= 0;
    }
    if (w->count > 0)
        run_batch(c, w);
}

static bool is_drained(void *arg)
{
    const struct drain *d = arg;
    return d->finished >= d->b->opt.tasks;
}

static bool verify(struct bench *b, const struct drain *d, struct err *e)
{
    PGresult *res;
    if (!bench_sql(b, "bench_baseline_verify", NULL, &res, e))
        return false;
    int64_t completed = conn_result_int64(res, 0, 0);
    PQclear(res);
    if (completed == b->opt.tasks && d->finished == completed && d->payloads == completed)
        return true;
    return err_set(e, "the baseline ran %" PRId64 " and completed %" PRId64 " of %d jobs",
                   d->finished, completed, b->opt.tasks);
}

static bool run_drain(struct drain *d, struct worker *workers, struct meter *m,
                      struct err *e)
{
    struct bench *b = d->b;
    struct clients clients;
    bool ok = clients_open(&clients, b, "baseline", b->opt.connections, b->opt.sync, e);
    bench_progress(b, "draining the baseline", b->opt.tasks);
    meter_watch(m, b, &clients);
    ok = ok && meter_start(m, e);
    d->pace.start_us = m->start.us;
    for (size_t i = 0; ok && i < clients.count; i++)
        run_batch(&clients.list[i], &workers[i]);
    ok = ok && bench_wait(b, is_drained, d, LIMIT_MS, "draining the baseline", e) &&
         meter_stop(m, e);
    meter_forget(m);
    clients_close(&clients);
    return ok;
}

bool baseline_drain(struct bench *b, struct meter *m, double *rate, struct err *e)
{
    struct drain d = {.b = b, .pace.tasks = b->opt.tasks};
    size_t n = (size_t)b->opt.connections;
    struct worker *workers = xcalloc(n, sizeof *workers);
    PGconn *holder = NULL;
    for (size_t i = 0; i < n; i++) {
        workers[i].drain = &d;
        workers[i].ids = xcalloc((size_t)b->opt.batch, sizeof workers[i].ids[0]);
    }
    bool ok = bench_script(b, b->control, "bench_baseline_truncate", e) &&
              holder_begin(b, &holder, e) &&
              load_tasks(b, LOAD_BASELINE, b->opt.tasks, e) &&
              run_drain(&d, workers, m, e);
    ok = holder_end(b, holder, ok, e) && verify(b, &d, e);
    for (size_t i = 0; i < n; i++)
        free(workers[i].ids);
    free(workers);
    *rate = pace_rate(&d.pace);
    return ok;
}
