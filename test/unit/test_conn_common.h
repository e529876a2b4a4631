// SPDX-License-Identifier: Apache-2.0
//
// What the tests of the connection share: a loop with a deadline, a log that
// is kept, and a second, plain connection that looks at the first from the
// server's side.

#ifndef PGKIN_TEST_CONN_COMMON_H
#define PGKIN_TEST_CONN_COMMON_H

#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <stdlib.h>
#include <string.h>

#include <cmocka.h>

#include "core/conn.h"
#include "core/conninfo.h"
#include "core/loop.h"

#define WAIT_MS 60000

struct fixture {
    struct event_base *base;
    struct event *ticker; // so that a wait looks at its condition and its deadline
    struct log log;
    struct buf lines;
    PGconn *plain;
    struct conn *conn;
    int ups;
    int downs;
    char down_msg[1024];
    int notifies;
    char notify[256];
    int notices;
    char notice[256];
    bool free_on_up;
    bool free_on_down;
    bool free_on_notice;
    bool free_on_notify;
};

// The answer to one request.
struct answer {
    int calls;
    bool null_res;
    bool unknown;
    bool failed;
    char sqlstate[6];
    char msg[1024];
    char hint[512];
    char *value; // of row 0, column 0
    int len;
};

// A test that failed has left its stack, with the answers on it, when the
// teardown ends its requests: callbacks look here first.
static bool test_over;

#define WAIT_FOR(f, cond)                                                                \
    do {                                                                                 \
        int64_t wait_end = loop_now_ms() + WAIT_MS;                                      \
        while (!(cond)) {                                                                \
            if (loop_now_ms() > wait_end)                                                \
                fail_msg("timed out waiting for %s; log:\n%s", #cond,                    \
                         buf_str(&(f)->lines));                                          \
            event_base_loop((f)->base, EVLOOP_ONCE);                                     \
        }                                                                                \
    } while (0)

static inline const char *test_url(void)
{
    const char *url = getenv("PGKIN_TEST_URL");
    if (url == NULL)
        fail_msg("PGKIN_TEST_URL does not name a database");
    return url;
}

static inline void on_tick(evutil_socket_t fd, short what, void *arg)
{
    (void)fd;
    (void)what;
    (void)arg;
}

static inline void keep_line(void *arg, enum log_level level, const char *line,
                             size_t len)
{
    struct fixture *f = arg;
    (void)level;
    buf_add(&f->lines, line, len);
    buf_addc(&f->lines, '\n');
}

static inline int count_text(const struct fixture *f, const char *text)
{
    int n = 0;
    for (const char *p = buf_str(&f->lines); (p = strstr(p, text)) != NULL; p++)
        n++;
    return n;
}

static inline void on_up(struct conn *c, void *arg)
{
    struct fixture *f = arg;
    f->ups++;
    if (f->free_on_up) {
        conn_free(c);
        f->conn = NULL;
    }
}

static inline void on_down(struct conn *c, const struct err *why, void *arg)
{
    struct fixture *f = arg;
    f->downs++;
    snprintf(f->down_msg, sizeof f->down_msg, "%s", why->msg);
    if (f->free_on_down) {
        conn_free(c);
        f->conn = NULL;
    }
}

static inline void on_notice(struct conn *c, const char *severity, const char *text,
                             void *arg)
{
    struct fixture *f = arg;
    f->notices++;
    snprintf(f->notice, sizeof f->notice, "%s %s", severity, text);
    if (f->free_on_notice) {
        conn_free(c);
        f->conn = NULL;
    }
}

static inline void on_notify(struct conn *c, const char *channel, const char *payload,
                             int pid, void *arg)
{
    struct fixture *f = arg;
    (void)pid;
    f->notifies++;
    snprintf(f->notify, sizeof f->notify, "%s:%s", channel, payload);
    if (f->free_on_notify) {
        conn_free(c);
        f->conn = NULL;
    }
}

static inline int setup(void **state)
{
    struct fixture *f = xcalloc(1, sizeof *f);
    test_over = false;
    f->base = event_base_new();
    f->ticker = loop_event_new(f->base, -1, EV_PERSIST, on_tick, f);
    loop_timer_start(f->ticker, 10);
    f->log = (struct log){.level = LOG_DEBUG, .sink = keep_line, .sink_arg = f};
    f->plain = PQconnectdb(test_url());
    assert_int_equal(PQstatus(f->plain), CONNECTION_OK);
    *state = f;
    return 0;
}

static inline int teardown(void **state)
{
    struct fixture *f = *state;
    test_over = true;
    conn_free(f->conn);
    event_free(f->ticker);
    event_base_free(f->base);
    PQfinish(f->plain);
    buf_clear(&f->lines);
    free(f);
    return 0;
}

// Fills in what every test wants, and opens the connection.
static inline void start(struct fixture *f, struct conn_options o)
{
    struct err e = ERR_INIT;
    if (o.name == NULL)
        o.name = "test";
    if (o.conninfo == NULL)
        o.conninfo = test_url();
    if (o.backoff_min_ms == 0)
        o.backoff_min_ms = 5;
    if (o.backoff_max_ms == 0)
        o.backoff_max_ms = 40;
    o.log = &f->log;
    o.on_up = on_up;
    o.on_down = on_down;
    o.on_notify = on_notify;
    o.arg = f;
    f->conn = conn_new(f->base, &o, &e);
    if (f->conn == NULL)
        fail_msg("conn_new: %s", e.msg);
    assert_true(conn_open(f->conn, &e));
}

static inline void start_up(struct fixture *f, struct conn_options o)
{
    start(f, o);
    WAIT_FOR(f, conn_is_up(f->conn));
}

static inline void answer_take(struct conn *c, PGresult *res, const struct err *e,
                               void *arg)
{
    struct answer *a = arg;
    if (test_over)
        return;
    a->calls++;
    a->null_res = res == NULL;
    a->unknown = conn_outcome_unknown(c);
    a->failed = e != NULL;
    snprintf(a->sqlstate, sizeof a->sqlstate, "%s", conn_sqlstate(res));
    if (e != NULL) {
        snprintf(a->msg, sizeof a->msg, "%s", e->msg);
        snprintf(a->hint, sizeof a->hint, "%s", e->hint);
    }
    free(a->value);
    a->value = NULL;
    if (e == NULL && PQntuples(res) > 0 && PQnfields(res) > 0 &&
        !PQgetisnull(res, 0, 0)) {
        a->len = PQgetlength(res, 0, 0);
        a->value = xcalloc(1, (size_t)a->len + 1);
        memcpy(a->value, PQgetvalue(res, 0, 0), (size_t)a->len);
    }
}

static inline int number(const char *s)
{
    char *end;
    assert_non_null(s);
    long n = strtol(s, &end, 10);
    assert_true(end != s && *end == '\0');
    return (int)n;
}

static inline void answer_clear(struct answer *a)
{
    free(a->value);
    *a = (struct answer){0};
}

static inline void ask(struct fixture *f, struct conn_request r, struct answer *a)
{
    struct err e = ERR_INIT;
    r.done = answer_take;
    r.arg = a;
    if (!conn_request(f->conn, &r, &e))
        fail_msg("conn_request: %s", e.msg);
}

// Asks and waits.
static inline void ask_now(struct fixture *f, struct conn_request r, struct answer *a)
{
    answer_clear(a);
    ask(f, r, a);
    WAIT_FOR(f, a->calls > 0);
}

// On the plain connection. The value is the caller's to free.
static inline char *plain(struct fixture *f, const char *sql)
{
    PGresult *res = PQexec(f->plain, sql);
    if (PQresultStatus(res) != PGRES_TUPLES_OK && PQresultStatus(res) != PGRES_COMMAND_OK)
        fail_msg("%s: %s", sql, PQresultErrorMessage(res));
    char *value = xstrdup(PQntuples(res) > 0 ? PQgetvalue(res, 0, 0) : "");
    PQclear(res);
    return value;
}

static inline void terminate_pid(struct fixture *f, int pid)
{
    char *sql = xasprintf("select pg_terminate_backend(%d)", pid);
    free(plain(f, sql));
    free(sql);
}

static inline void terminate(struct fixture *f)
{
    terminate_pid(f, conn_backend_pid(f->conn));
}

#endif
