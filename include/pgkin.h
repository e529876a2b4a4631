// SPDX-License-Identifier: Apache-2.0
//
// libpgkin: background work that lives in PostgreSQL.
//
// The only public header. Handles are opaque; the library keeps no global
// state, never prints and never exits.
//
//     static enum pgkin_outcome greet(pgkin_task *t, void *arg)
//     {
//         printf("task %lld: %s\n", (long long)pgkin_task_id(t), pgkin_task_payload(t));
//         return PGKIN_COMPLETED;
//     }
//
//     pgkin_worker *w = pgkin_worker_new(&(struct pgkin_worker_options){0}, &e);
//     pgkin_worker_handle(w, "greet", greet, NULL, &e);
//     pgkin_worker_run(w, &e);
//
// with the command registered once: select worker.register_command('greet',
// p_kind => 'native').
//
// Errors: functions that can fail take a `struct pgkin_error *`, which may be
// NULL, and fill it exactly when they fail.
//
// Threads: a client (pgkin) is used by one thread at a time. A worker is set up
// and run by one thread; pgkin_worker_stop() and pgkin_worker_get_status() may
// be called from any, and stop also from a signal handler. Handlers run in
// threads of the worker's own, several at once. A pgkin_task belongs to the
// handler that was given it, until it returns.

#ifndef PGKIN_H
#define PGKIN_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#ifdef __cplusplus
extern "C" {
#endif

#define PGKIN_VERSION "0.1.0"

#if defined(__GNUC__)
#define PGKIN_API __attribute__((visibility("default")))
#else
#define PGKIN_API
#endif

// The version of the library that is linked, "MAJOR.MINOR.PATCH". Static
// storage: not to be freed.
PGKIN_API const char *pgkin_version(void);

struct pgkin_error {
    char message[1024]; // one line, lower case
    char hint[512];     // empty, or what could be done about it
};

// ------------------------------------------------------------------- enqueue

typedef struct pgkin pgkin;
struct pg_conn; // libpq's PGconn

// Connects. `conninfo` is what libpq takes, NULL for the environment alone.
// NULL on failure; else the caller ends it with pgkin_close().
PGKIN_API pgkin *pgkin_open(const char *conninfo, struct pgkin_error *e);
PGKIN_API void pgkin_close(pgkin *c); // NULL is allowed

// All zero is the usual case. Texts are borrowed for the length of the call.
struct pgkin_enqueue_options {
    bool has_priority;
    int64_t priority;         // smaller first
    const char *scheduled_at; // as PostgreSQL reads it: "2030-01-01 12:00+00"
    const char *dedup_key;
    const char *merge; // keep, replace, union, debounce, or a function's name
    const char *group_key;
    const char *order_key;
    const char *context; // JSON, for the command's on_complete
    const char *headers; // JSON: {"traceparent": "…"}
};

// Adds a task; `payload` is a JSON object, NULL for an empty one. When the call
// returns the task is committed. The task's id, or 0 on failure. A client whose
// connection was lost connects again at the next call; a failure then means that
// it is not known whether the task was added: use a dedup_key where that matters.
PGKIN_API int64_t pgkin_enqueue(pgkin *c, const char *command, const char *payload,
                                const struct pgkin_enqueue_options *o,
                                struct pgkin_error *e);

// The same on a connection of the caller's, inside the transaction that is open
// there, if any: the task exists exactly when that commits. The connection must
// be idle, and not in pipeline mode.
PGKIN_API int64_t pgkin_enqueue_on(struct pg_conn *conn, const char *command,
                                   const char *payload,
                                   const struct pgkin_enqueue_options *o,
                                   struct pgkin_error *e);

// -------------------------------------------------------------------- handle

typedef struct pgkin_task pgkin_task;

enum pgkin_outcome {
    PGKIN_COMPLETED,
    PGKIN_FAILED,  // tried again as the command says
    PGKIN_GIVE_UP, // failed, and not to be tried again
    PGKIN_SNOOZE,  // again later (pgkin_task_set_delay()); not a failed attempt
};

// Runs one attempt at a task. Effects outside the database may happen more than
// once: the worker may die after them. pgkin_task_idempotency_key() is the same
// each time.
typedef enum pgkin_outcome pgkin_handler(pgkin_task *t, void *arg);

PGKIN_API int64_t pgkin_task_id(const pgkin_task *t);
PGKIN_API int pgkin_task_attempt(const pgkin_task *t); // from 1
PGKIN_API const char *pgkin_task_command(const pgkin_task *t);
PGKIN_API const char *pgkin_task_payload(const pgkin_task *t); // JSON
PGKIN_API const char *pgkin_task_headers(const pgkin_task *t); // JSON, or NULL
PGKIN_API const char *pgkin_task_idempotency_key(const pgkin_task *t);

// True when the task was canceled, its time is over, or the worker shuts down:
// a handler that takes long looks now and then, and returns.
PGKIN_API bool pgkin_task_should_stop(const pgkin_task *t);

// Each copies its text and replaces what was set before. The result must be
// JSON; the error is for people.
PGKIN_API void pgkin_task_set_result(pgkin_task *t, const char *json);
PGKIN_API void pgkin_task_set_error(pgkin_task *t, const char *text);
// Says how far the task is, 0 to 1, for others to see; the message may be NULL.
PGKIN_API void pgkin_task_report_progress(pgkin_task *t, double fraction,
                                          const char *message);
// When to try again: of PGKIN_SNOOZE; of PGKIN_FAILED instead of the backoff.
PGKIN_API void pgkin_task_set_delay(pgkin_task *t, int64_t ms);

// -------------------------------------------------------------------- worker

typedef struct pgkin_worker pgkin_worker;

enum pgkin_log_level {
    PGKIN_LOG_DEBUG,
    PGKIN_LOG_INFO,
    PGKIN_LOG_WARN,
    PGKIN_LOG_ERROR
};

// All zero is the usual case. Everything is copied.
struct pgkin_worker_options {
    const char *conninfo;      // NULL: libpq's environment
    const char *name;          // shown to people; NULL: the host's name
    const char *const *queues; // "NAME" or "NAME:N", ended by NULL; NULL: all
    bool exclusive;            // refuse to run beside another exclusive worker
    bool stop_when_idle;       // return when nothing that is due is left
    bool poll_only;            // no LISTEN: for pgbouncer in transaction mode
    int64_t grace_ms;          // for work to finish after a stop; 0: 30 s
    const char *listen;        // ADDR:PORT for /healthz and /readyz; NULL: none
    // Gets each line of the log, without its line break, in the thread that runs
    // the worker. NULL: no log.
    void (*log)(void *arg, enum pgkin_log_level level, const char *line);
    void *log_arg;
    enum pgkin_log_level log_level; // less than this is dropped
};

// Nothing connects yet. NULL on failure; else the caller frees it.
PGKIN_API pgkin_worker *pgkin_worker_new(const struct pgkin_worker_options *o,
                                         struct pgkin_error *e);

// Waits for handlers that are still running. Not while pgkin_worker_run() is.
PGKIN_API void pgkin_worker_free(pgkin_worker *w); // NULL is allowed

// Names the function that runs a native command: one whose p_handler, or else
// whose name, is `name`. Before pgkin_worker_run(). `arg` is handed to it.
PGKIN_API bool pgkin_worker_handle(pgkin_worker *w, const char *name, pgkin_handler *fn,
                                   void *arg, struct pgkin_error *e);

// Works, in this thread, until it is stopped. It runs commands of every kind,
// not only native ones. It does not return because a server or a connection is
// lost. True: all work was finished. False: work was handed back, or it could
// not begin. Once.
PGKIN_API bool pgkin_worker_run(pgkin_worker *w, struct pgkin_error *e);

// Asks it to finish what it has begun; called again, to hand it back.
PGKIN_API void pgkin_worker_stop(pgkin_worker *w);

struct pgkin_worker_status {
    const char *state; // starting, working, finishing, handing_back, leaving, stopped
    int64_t worker_id; // 0: not registered
    bool connected;
    bool listening;     // false: polls
    size_t running;     // tasks outside the database
    uint64_t completed; // since it began
    uint64_t failed;
};

PGKIN_API void pgkin_worker_get_status(pgkin_worker *w, struct pgkin_worker_status *out);

#ifdef __cplusplus
}
#endif

#endif
