// SPDX-License-Identifier: Apache-2.0
//
// What runs a task outside the database. Each kind of handler is one file,
// run_KIND.c, with one struct kind; it knows nothing of queues, leases or
// retries. The caller (attempt.c) keeps the deadline, decides when to stop, and
// records the end.
//
//     start ──> the kind works ──> attempt_end()
//                  ^ stop()
//
// One thread: that of the loop. A kind that uses others comes back to it before
// it calls attempt_end().

#ifndef PGKIN_DAEMON_KIND_H
#define PGKIN_DAEMON_KIND_H

#include <event2/event.h>
#include <stdbool.h>
#include <stdint.h>

#include "core/arena.h"
#include "core/conf.h"
#include "core/conn.h"
#include "core/err.h"
#include "core/log.h"
#include "lib/exchange.h"

// A row of the registry. Never changes; it outlives the attempts that use it.
struct command {
    const char *name;
    const char *queue;
    const char *kind;
    const char *handler; // of a native one: its name in the worker; NULL: the command's
    int lane;
    int64_t timeout_ms; // 0: none
    // http
    const char *url;
    const char *http_headers;         // JSON object of strings; NULL: none
    const char *signing_secret;       // "secret:NAME"; NULL: not signed
    const char *const *allow_private; // CIDR, ends with NULL; NULL: none
    int max_redirects;
    int64_t max_response_bytes;
    // exec
    const char *program;
    const char *const *arguments; // ends with NULL; NULL: none
};

// One try at a task. The kind reads it and keeps what it likes in `state`; all
// of it is gone when attempt_end() returns.
struct attempt {
    struct exchange_task task; // its texts live as long as the attempt
    const struct command *command;
    const char *idempotency_key; // the same for every attempt at this task
    int at_once;                 // how many of its queue may run at the same time
    const struct kind *kind;
    void *state;
    struct attempt_private *own; // attempt.c's
};

enum attempt_outcome {
    ATTEMPT_COMPLETED,
    ATTEMPT_FAILED,   // tried again as the command says
    ATTEMPT_FATAL,    // failed, and not to be tried again
    ATTEMPT_SNOOZED,  // again after delay_ms; not a failed attempt
    ATTEMPT_RECORDED, // the kind itself has recorded the end in the database
};

// Borrowed; the texts may lie anywhere.
struct attempt_result {
    enum attempt_outcome outcome;
    const char *error;  // one or more lines; NULL when completed
    const char *result; // JSON; NULL: none
    int64_t delay_ms;   // of a snooze; of a failure: instead of the backoff, when > 0
};

// Ends the attempt, exactly once, also after stop(). May be called from within
// start() and stop(). The attempt is gone afterwards.
void attempt_end(struct attempt *a, const struct attempt_result *r);

struct native_handler;

// What a kind may use of its surroundings. Outlives the kind.
struct runtime {
    struct event_base *base;
    const struct log *log;
    const struct conf *conf;
    // A connection for the steps of a kind that talks to the database (before
    // and after handlers); opened at the first call. Requests on it run in the
    // order they are made.
    struct conn *(*steps)(struct runtime *rt);
    // Makes the progress of a task known.
    void (*report_progress)(struct runtime *rt, int64_t task_id, int64_t lease_id,
                            double fraction, const char *message);
    int64_t worker_id; // of worker.register_worker(); may change after a loss
    int pid;
    bool leaves_process; // after the worker: threads that do not end may be left
    const struct native_handler *natives; // the caller's, besides the built-in ones
    size_t native_count;
};

struct kind {
    const char *name; // as in command_registry.kind
    // At the first task of this kind. NULL with `e` filled: the tasks fail.
    void *(*open)(struct runtime *rt, struct err *e);
    // Ends what is still under way, without waiting longer than it must.
    void (*close)(void *self);
    void (*start)(void *self, struct attempt *a);
    // Ends the attempt as soon as can be: its deadline has passed, it was
    // canceled, its lease was lost, or the worker shuts down. What the kind
    // then reports is only believed when it is a success.
    void (*stop)(void *self, struct attempt *a);
    // The kind itself keeps to at_once, and is given all there is: handing over
    // one by one would cost more than quick handlers take.
    bool keeps_limit;
    // Of kinds that keep the limit: takes an attempt back that has not begun.
    // False: it has. The kind has forgotten it when this returns true.
    bool (*take_back)(void *self, struct attempt *a);
};

extern const struct kind kind_native, kind_http, kind_exec, kind_email, kind_sms,
    kind_file_delete;

#endif
