// SPDX-License-Identifier: Apache-2.0
//
// The client's side of queues.exchange(), the one call of the hot path: tell
// how tasks ended, get the next ones, in one round trip and one commit.
//
//     exchange_end_task(&x, task, NULL);          for each task that is done
//     exchange_send(&x, conn, &call, 0, on_answer, arg, e);
//   and in on_answer:
//     exchange_parse(res, &arena, &answer, e);
//     exchange_reset(&x);                         the ends are with the server
//
// When no answer came it is not known whether the ends arrived. To send them
// once more is safe: each names its lease, and what was recorded before, or is
// no longer this worker's, comes back as refused.

#ifndef PGKIN_LIB_EXCHANGE_H
#define PGKIN_LIB_EXCHANGE_H

#include <libpq-fe.h>
#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#include "core/arena.h"
#include "core/conn.h"
#include "core/err.h"

// ------------------------------------------------------------------ answers

// A task that was handed out. The texts end with a NUL.
struct exchange_task {
    int64_t lease_id;
    int64_t task_id;
    int attempt;       // from 1
    size_t lease_size; // how many tasks of the same answer share the lease
    const char *command;
    const char *payload;
    size_t payload_len;
    const char *headers; // NULL: none
};

struct exchange_refusal {
    int64_t lease_id;
    int64_t task_id; // 0: the whole lease
};

struct exchange_answer {
    struct exchange_task *tasks; // in the order to run
    size_t task_count;
    struct exchange_refusal *refusals;
    size_t refusal_count;
    bool held_back; // there is more, but a limit is reached
};

// Reads the result of the query `exchange`, in binary format. The arrays are
// in the arena; the texts are those of `res` and go with it.
bool exchange_parse(const PGresult *res, struct arena *a, struct exchange_answer *out,
                    struct err *e);

// Copies the texts into the arena, for tasks that outlive the result.
void exchange_keep(struct exchange_answer *answer, struct arena *a);

// --------------------------------------------------------------------- ends

enum exchange_outcome {
    EXCHANGE_COMPLETED,
    EXCHANGE_FAILED,
    EXCHANGE_CANCELED,
    EXCHANGE_RELEASED, // handed back without having been run
    EXCHANGE_FATAL,    // failed, and not to be tried again
    EXCHANGE_SNOOZED,  // again after the delay; not a failed attempt
};

struct exchange_end {
    enum exchange_outcome outcome;
    const char *error;  // of a failure; the reason of a cancellation
    const char *result; // JSON; NULL: none
    double duration_ms; // negative: not to be recorded
    int64_t delay_ms;   // of a snooze; of a failure: instead of the backoff; 0: none
};

// The ends that were not sent yet, or whose answer is awaited.
struct exchange {
    struct exchange_item *items;
    size_t count;
    size_t cap;
    struct exchange_lease *leases;
    size_t lease_count;
    size_t lease_cap;
    struct arena texts;
    bool spoiled;
};

#define EXCHANGE_INIT ((struct exchange){0})

void exchange_clear(struct exchange *x); // frees; may be used again
void exchange_reset(struct exchange *x); // forgets all ends, keeps the memory

// Notes the end of a task, once for each; copies what it needs. NULL stands for
// completed, with nothing else to record. A lease all of whose tasks end like
// that, each within a millisecond, goes to the server as one number, and their
// mean duration is recorded for all of them.
#define EXCHANGE_QUICK_MS 1.0
void exchange_end_task(struct exchange *x, const struct exchange_task *t,
                       const struct exchange_end *end);

// Moves the ends of those leases that end as a whole from `from` into the empty
// `to`; all others stay.
void exchange_take_whole(struct exchange *from, struct exchange *to);

// The leases that have ends in it; `ids` has room for lease_count.
void exchange_get_leases(const struct exchange *x, int64_t *ids);

// For an owner whose ends the server refused to take: moves the last half of
// `from`, of at least two, behind those of `to`; turns all into failures, and
// makes it known by `spoiled`.
void exchange_split(struct exchange *from, struct exchange *to);
void exchange_spoil(struct exchange *x, const char *error);

// --------------------------------------------------------------------- call

struct exchange_call {
    const char *queue;
    int want;             // how many tasks at most; 0: only end
    int64_t worker_id;    // of worker.register_worker(); 0: the leases expire
    int pid;              // of this process, for people; 0: none
    const int64_t *lanes; // the lines the caller can serve; NULL: all
    size_t lane_count;
};

// The parameters of the query `exchange`, added to `p`.
void exchange_build(const struct exchange *x, const struct exchange_call *call,
                    struct conn_params *p);

// Sends it. `x` keeps its ends until exchange_reset(). `done` as in
// struct conn_request.
bool exchange_send(const struct exchange *x, struct conn *c,
                   const struct exchange_call *call, int deadline_ms,
                   void (*done)(struct conn *c, PGresult *res, const struct err *e,
                                void *arg),
                   void *arg, struct err *e);

#endif
