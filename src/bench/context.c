// SPDX-License-Identifier: Apache-2.0

#include "bench/context.h"

#include <errno.h>
#include <inttypes.h>
#include <poll.h>
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>

#include "core/asset.h"
#include "core/buf.h"
#include "core/conn.h"
#include "core/loop.h"

const int64_t bench_lanes[BENCH_LANE_COUNT] = {2, 3};

#define TICK_MS          50
#define PROGRESS_STEP_MS 250
#define COPY_CHUNK       65536

// ------------------------------------------------------------------- signals

static volatile sig_atomic_t interrupted;
static struct sigaction old_int, old_term;

static void on_signal(int sig)
{
    interrupted = sig;
}

static void catch_signals(void)
{
    struct sigaction sa = {.sa_handler = on_signal};
    interrupted = 0;
    sigaction(SIGINT, &sa, &old_int);
    sigaction(SIGTERM, &sa, &old_term);
}

static void release_signals(void)
{
    sigaction(SIGINT, &old_int, NULL);
    sigaction(SIGTERM, &old_term, NULL);
}

void bench_forgive(struct bench *b)
{
    interrupted = 0;
    err_clear(&b->failure);
}

void bench_fail(struct bench *b, const struct err *why)
{
    if (b->failure.code == ERR_NONE)
        b->failure = *why;
}

static bool check_alive(struct bench *b, struct err *e)
{
    if (interrupted != 0 && b->failure.code == ERR_NONE)
        err_set(&b->failure, "interrupted");
    if (b->failure.code == ERR_NONE)
        return true;
    *e = b->failure;
    return false;
}

// ------------------------------------------------------------------ progress

static void show_progress(struct bench *b)
{
    int64_t now = loop_now_ms();
    if (!b->opt.progress || b->doing == NULL || now - b->shown_ms < PROGRESS_STEP_MS)
        return;
    b->shown_ms = now;
    b->line_open = true;
    if (b->total > 0)
        fprintf(stderr, "\r%s: %s, %" PRId64 " of %" PRId64 "\033[K", b->scenario,
                b->doing, b->done, b->total);
    else
        fprintf(stderr, "\r%s: %s\033[K", b->scenario, b->doing);
    fflush(stderr);
}

void bench_progress(struct bench *b, const char *doing, int64_t total)
{
    b->doing = doing;
    b->done = 0;
    b->total = total;
    b->shown_ms = 0;
    show_progress(b);
}

void bench_progress_end(struct bench *b)
{
    b->doing = NULL;
    if (b->line_open)
        fputs("\r\033[K", stderr);
    b->line_open = false;
}

// ---------------------------------------------------------------------- loop

int64_t bench_now_us(void)
{
    struct timespec ts;
    clock_gettime(CLOCK_MONOTONIC, &ts);
    return (int64_t)ts.tv_sec * 1000000 + ts.tv_nsec / 1000;
}

static void on_tick(evutil_socket_t fd, short what, void *arg)
{
    (void)fd;
    (void)what;
    show_progress(arg);
}

// An open-loop producer sends at times that are not whole milliseconds.
static struct event_base *make_base(void)
{
    struct event_config *config = event_config_new();
    struct event_base *base = NULL;
    if (config != NULL) {
        event_config_set_flag(config, EVENT_BASE_FLAG_PRECISE_TIMER);
        base = event_base_new_with_config(config);
        event_config_free(config);
    }
    if (base == NULL)
        BUG("cannot make an event loop");
    return base;
}

void bench_context_init(struct bench *b, const char *scenario,
                        const struct bench_options *o)
{
    *b = (struct bench){.opt = *o, .scenario = scenario, .base = make_base()};
    b->ticker = loop_event_new(b->base, -1, EV_PERSIST, on_tick, b);
    loop_event_add(b->ticker, &(struct timeval){.tv_usec = TICK_MS * 1000});
    catch_signals();
}

void bench_context_clear(struct bench *b)
{
    bench_progress_end(b);
    release_signals();
    PQfinish(b->control);
    loop_event_clear(&b->ticker);
    event_base_free(b->base);
    free(b->conninfo);
    *b = (struct bench){0};
}

bool bench_wait(struct bench *b, bool (*done)(void *arg), void *arg, int64_t limit_ms,
                const char *what, struct err *e)
{
    int64_t end = loop_now_ms() + limit_ms;
    while (check_alive(b, e)) {
        if (done(arg))
            return true;
        if (loop_now_ms() >= end)
            return err_set(e, "%s took longer than %" PRId64 " s", what, limit_ms / 1000);
        event_base_loop(b->base, EVLOOP_ONCE);
    }
    return false;
}

// ----------------------------------------------------------------------- sql

static const char *find_query(const char *name)
{
    struct buf path = BUF_INIT;
    buf_addf(&path, "sql/queries/%s.sql", name);
    const struct asset *a = asset_find(buf_str(&path));
    buf_clear(&path);
    if (a == NULL)
        BUG("there is no query named %s", name);
    return a->data;
}

static void cancel(PGconn *pg)
{
    char why[256];
    PGcancel *c = PQgetCancel(pg);
    if (c != NULL)
        PQcancel(c, why, sizeof why);
    PQfreeCancel(c);
}

// Waits for an answer, looking up now and then. After an interrupt it is still
// waited for: the session goes on being used.
static bool wait_answer(struct bench *b, PGconn *pg, struct err *e)
{
    bool alive = true;
    while (PQisBusy(pg)) {
        struct pollfd p = {.fd = PQsocket(pg), .events = POLLIN};
        int n = poll(&p, 1, TICK_MS);
        if (n < 0 && errno != EINTR)
            return err_errno(e, errno, "cannot wait for the server");
        if (n > 0 && PQconsumeInput(pg) != 1)
            break; // PQgetResult() says what happened
        show_progress(b);
        if (alive && !check_alive(b, e)) {
            alive = false;
            cancel(pg);
        }
    }
    return alive;
}

// The last result, or the first error. Takes the results of all statements.
static bool collect(struct bench *b, PGconn *pg, PGresult **out, struct err *e)
{
    bool ok = true;
    PGresult *last = NULL;
    for (;;) {
        struct err why = ERR_INIT;
        bool alive = wait_answer(b, pg, &why);
        if (!alive && ok)
            *e = why;
        ok = ok && alive;
        PGresult *res = PQgetResult(pg);
        if (res == NULL)
            break;
        PQclear(last);
        last = res;
        if (PQresultStatus(res) == PGRES_COPY_IN)
            break; // the caller's turn
        if (ok && !conn_result_check(res, e))
            ok = false;
    }
    if (ok && out != NULL)
        *out = last;
    else
        PQclear(last);
    return ok;
}

// Which statement failed; an interrupt has nothing to do with it.
static bool name_query(const struct bench *b, const char *query, struct err *e)
{
    return b->failure.code != ERR_NONE ? false : err_wrap(e, "%s", query);
}

static bool not_sent(PGconn *pg, struct err *e)
{
    return err_set(e, "cannot send a statement: %s", PQerrorMessage(pg));
}

bool bench_sql_on(struct bench *b, PGconn *pg, const char *query,
                  struct conn_params *params, PGresult **res, struct err *e)
{
    struct conn_params none = CONN_PARAMS_INIT;
    struct conn_params *p = params != NULL ? params : &none;
    bool ok = check_alive(b, e);
    if (ok &&
        PQsendQueryParams(pg, find_query(query), p->count, NULL,
                          (const char *const *)p->values, p->lengths, p->formats, 0) != 1)
        ok = not_sent(pg, e);
    ok = ok && collect(b, pg, res, e);
    conn_params_clear(p);
    return ok ? true : name_query(b, query, e);
}

bool bench_sql(struct bench *b, const char *query, struct conn_params *params,
               PGresult **res, struct err *e)
{
    return bench_sql_on(b, b->control, query, params, res, e);
}

bool bench_set_sync(struct bench *b, enum bench_sync sync, struct err *e)
{
    struct conn_params p = CONN_PARAMS_INIT;
    conn_params_add_text(&p, sync == SYNC_OFF ? "off" : "on");
    return bench_sql(b, "bench_session", &p, NULL, e);
}

bool bench_execute(struct bench *b, PGconn *pg, const char *sql, struct err *e)
{
    if (!check_alive(b, e))
        return false;
    if (PQsendQuery(pg, sql) != 1)
        return not_sent(pg, e);
    return collect(b, pg, NULL, e);
}

bool bench_script(struct bench *b, PGconn *pg, const char *query, struct err *e)
{
    return bench_execute(b, pg, find_query(query), e) ? true : name_query(b, query, e);
}

bool bench_copy(struct bench *b, const char *query, const char *data, size_t len,
                struct err *e)
{
    if (!bench_execute(b, b->control, find_query(query), e))
        return name_query(b, query, e);
    while (len > 0) {
        int n = len < COPY_CHUNK ? (int)len : COPY_CHUNK;
        if (PQputCopyData(b->control, data, n) != 1)
            return not_sent(b->control, e);
        data += n;
        len -= (size_t)n;
    }
    if (PQputCopyEnd(b->control, NULL) != 1)
        return not_sent(b->control, e);
    return collect(b, b->control, NULL, e) ? true : name_query(b, query, e);
}
