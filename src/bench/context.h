// SPDX-License-Identifier: Apache-2.0
//
// What the parts of one benchmark run share: the loop on which its sessions
// live, one blocking connection for everything that is not measured, and what
// can end a run early (a session lost, an interrupt, no progress).

#ifndef PGKIN_BENCH_CONTEXT_H
#define PGKIN_BENCH_CONTEXT_H

#include <event2/event.h>
#include <libpq-fe.h>
#include <stdbool.h>
#include <stdint.h>

#include "bench/bench.h"
#include "core/conn_param.h"

#define BENCH_QUEUE   "bench"
#define BENCH_COMMAND "bench_noop"

// The lines of tasks that run outside the database, as a worker claims from them.
#define BENCH_LANE_COUNT 2
extern const int64_t bench_lanes[BENCH_LANE_COUNT];

struct bench {
    struct bench_options opt; // complete: no default left open
    const char *scenario;
    char *conninfo; // of the database that is measured
    PGconn *control;
    struct event_base *base;
    struct event *ticker;
    struct err failure; // why the run cannot go on; code 0: it can
    int queue_id;
    bool own_lanes; // commands may have lines of their own: all are claimed from
    bool local;     // the server's processes are ours to look at

    // The progress line.
    const char *doing;
    int64_t done;
    int64_t total;
    int64_t shown_ms; // when it was last shown
    bool line_open;
};

// The loop, the ticker and the signals. bench_context_clear() in any case.
void bench_context_init(struct bench *b, const char *scenario,
                        const struct bench_options *o);
void bench_context_clear(struct bench *b);

// Monotonic.
int64_t bench_now_us(void);

// Ends the run: bench_wait() and bench_sql() fail with it. The first one counts.
void bench_fail(struct bench *b, const struct err *why);

// An interrupt that has been reported must not stop the cleaning up.
void bench_forgive(struct bench *b);

// Runs the loop until `done` says so. Fails when the run was ended, and when
// the time is over: "`what` took longer than …".
bool bench_wait(struct bench *b, bool (*done)(void *arg), void *arg, int64_t limit_ms,
                const char *what, struct err *e);

// One statement of sql/queries/ on the control connection; an interrupt cancels
// it. Takes `params` (NULL: none). `res` (NULL: not wanted) is the caller's to
// clear after true.
bool bench_sql(struct bench *b, const char *query, struct conn_params *params,
               PGresult **res, struct err *e);
bool bench_sql_on(struct bench *b, PGconn *pg, const char *query,
                  struct conn_params *params, PGresult **res, struct err *e);

// synchronous_commit of the control connection.
bool bench_set_sync(struct bench *b, enum bench_sync sync, struct err *e);

// Several statements in one file, without parameters or results; or one that
// has to be a message of its own, such as vacuum.
bool bench_script(struct bench *b, PGconn *pg, const char *query, struct err *e);

// A text that the server made, such as a CREATE DATABASE with a quoted name.
bool bench_execute(struct bench *b, PGconn *pg, const char *sql, struct err *e);

// COPY … FROM STDIN on the control connection.
bool bench_copy(struct bench *b, const char *query, const char *data, size_t len,
                struct err *e);

// What is done now, and how much of it. bench_progress_end() before anything
// else is printed.
void bench_progress(struct bench *b, const char *doing, int64_t total);
void bench_progress_end(struct bench *b);

#endif
