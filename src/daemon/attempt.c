// SPDX-License-Identifier: Apache-2.0
//
// One try at a task outside the database, from the answer that brought it to
// the end that is recorded:
//
//   waiting ──> running ──> ended
//      │           └─> stopping ─┘    deadline, cancel, lost lease, shutdown
//      └──────────────> ended         not begun: handed back, or canceled
//
// The kind of handler (kind.h) only runs it. What its end means is decided
// here: a stopped attempt that did not succeed ends as the reason for the stop
// says, whatever the handler reports.

#include <inttypes.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>

#include "daemon/impl.h"

static const char *const state_names[] = {
    [ATTEMPT_WAITING] = "waiting",
    [ATTEMPT_RUNNING] = "running",
    [ATTEMPT_STOPPING] = "stopping",
    [ATTEMPT_ENDED] = "ended",
};

static const struct machine_transition transitions[] = {
    {ATTEMPT_WAITING, ATTEMPT_RUNNING, "there is room"},
    {ATTEMPT_WAITING, ATTEMPT_ENDED, "not begun, handed back or canceled"},
    {ATTEMPT_RUNNING, ATTEMPT_ENDED, "the handler is done"},
    {ATTEMPT_RUNNING, ATTEMPT_STOPPING, "deadline, cancel, lost lease or shutdown"},
    {ATTEMPT_STOPPING, ATTEMPT_ENDED, "the handler has given up"},
};

static const struct machine machine = {
    .name = "attempt",
    .states = state_names,
    .state_count = sizeof state_names / sizeof state_names[0],
    .transitions = transitions,
    .transition_count = sizeof transitions / sizeof transitions[0],
};

const struct machine *attempt_machine(void)
{
    return &machine;
}

static void set_state(struct attempt_private *a, enum attempt_state to)
{
    machine_step(&machine, (int)a->state, (int)to);
    a->state = to;
}

int64_t daemon_now_us(void)
{
    struct timespec t;
    clock_gettime(CLOCK_MONOTONIC, &t);
    return (int64_t)t.tv_sec * 1000000 + t.tv_nsec / 1000;
}

// --------------------------------------------------------------------- lists

static void list_add(struct attempt_list *l, struct attempt_private *a)
{
    a->prev = l->last;
    a->next = NULL;
    if (l->last != NULL)
        l->last->next = a;
    else
        l->first = a;
    l->last = a;
    l->count++;
}

static void list_remove(struct attempt_list *l, struct attempt_private *a)
{
    if (a->prev != NULL)
        a->prev->next = a->next;
    else
        l->first = a->next;
    if (a->next != NULL)
        a->next->prev = a->prev;
    else
        l->last = a->prev;
    l->count--;
}

static struct attempt_private *list_find(struct attempt_list *l, int64_t lease_id,
                                         int64_t task_id)
{
    for (struct attempt_private *a = l->first; a != NULL; a = a->next)
        if (a->pub.task.task_id == task_id && a->pub.task.lease_id == lease_id)
            return a;
    return NULL;
}

struct attempt_private *attempt_find(struct daemon *d, int64_t lease_id, int64_t task_id)
{
    struct attempt_private *a = NULL;
    for (size_t i = 0; a == NULL && i < d->queue_count; i++) {
        a = list_find(&d->queues[i]->running, lease_id, task_id);
        if (a == NULL)
            a = list_find(&d->queues[i]->waiting, lease_id, task_id);
    }
    return a;
}

// ----------------------------------------------------------------------- end

static void release_batch(struct batch *b)
{
    if (--b->left > 0)
        return;
    registry_unref(b->registry);
    arena_clear(&b->arena);
    free(b);
}

// Quick ones are told at debug level only: there may be a hundred thousand a
// second of them.
static void log_end(const struct attempt_private *a, const struct exchange_end *end)
{
    static const char *const events[] = {
        [EXCHANGE_COMPLETED] = "task completed", [EXCHANGE_FAILED] = "task failed",
        [EXCHANGE_CANCELED] = "task canceled",   [EXCHANGE_RELEASED] = "task handed back",
        [EXCHANGE_FATAL] = "task failed",        [EXCHANGE_SNOOZED] = "task snoozed",
    };
    const struct log *log = a->queue->d->log;
    enum log_level level =
        end->outcome == EXCHANGE_FAILED || end->outcome == EXCHANGE_FATAL ? LOG_WARN
                                                                          : LOG_DEBUG;
    if (level < log->level)
        return;
    LOG_WRITE(log, level, events[end->outcome], LOG_I("task", a->pub.task.task_id),
              LOG_S("command", a->pub.task.command),
              LOG_I("attempt", a->pub.task.attempt), LOG_S("error", end->error));
}

static void count_end(struct daemon *d, const struct exchange_end *end)
{
    if (end->outcome == EXCHANGE_COMPLETED)
        atomic_fetch_add(&d->completed, 1);
    else if (end->outcome == EXCHANGE_FAILED || end->outcome == EXCHANGE_FATAL)
        atomic_fetch_add(&d->failed, 1);
}

// Records `end` (NULL: nothing is to be recorded) and forgets the attempt.
static void finish(struct attempt_private *a, const struct exchange_end *end)
{
    struct daemon *d = a->queue->d;
    struct batch *batch = a->batch;
    if (a->state == ATTEMPT_WAITING) {
        list_remove(&a->queue->waiting, a);
    } else {
        list_remove(&a->queue->running, a);
        atomic_fetch_sub(&d->running, 1);
    }
    set_state(a, ATTEMPT_ENDED);
    loop_event_clear(&a->deadline);
    if (end != NULL) {
        log_end(a, end);
        count_end(d, end);
        pump_end(d, a, end);
    }
    release_batch(batch);
}

static const enum exchange_outcome outcome_of[] = {
    [ATTEMPT_COMPLETED] = EXCHANGE_COMPLETED,
    [ATTEMPT_FAILED] = EXCHANGE_FAILED,
    [ATTEMPT_FATAL] = EXCHANGE_FATAL,
    [ATTEMPT_SNOOZED] = EXCHANGE_SNOOZED,
};

// How a stopped attempt ends that did not succeed.
static void end_stopped(struct attempt_private *a, double duration_ms)
{
    char text[64];
    struct exchange_end end = {.duration_ms = duration_ms};
    switch (a->stop) {
    case STOP_CANCEL:
        // The reason is in the request; the server fills it in.
        end.outcome = EXCHANGE_FAILED;
        end.error = "canceled";
        break;
    case STOP_TIMEOUT:
        snprintf(text, sizeof text, "timed out after %.3g s",
                 (double)a->pub.command->timeout_ms / 1000);
        end.outcome = EXCHANGE_FAILED;
        end.error = text;
        break;
    case STOP_RELEASE: end.outcome = EXCHANGE_RELEASED; break;
    case STOP_LOST:
        log_warn(a->queue->d->log, "task dropped: its lease is not in force any more",
                 LOG_I("task", a->pub.task.task_id),
                 LOG_S("command", a->pub.task.command));
        finish(a, NULL);
        return;
    case STOP_NONE: BUG("an attempt was stopped for no reason");
    }
    finish(a, &end);
}

void attempt_end(struct attempt *pub, const struct attempt_result *r)
{
    struct attempt_private *a = pub->own;
    struct queue *q = a->queue;
    double duration_us = (double)(daemon_now_us() - a->started_us);
    q->mean_us = q->mean_us == 0 ? duration_us : 0.95 * q->mean_us + 0.05 * duration_us;
    if (r->outcome == ATTEMPT_RECORDED) {
        finish(a, NULL);
    } else if (a->stop == STOP_LOST ||
               (a->stop != STOP_NONE && r->outcome != ATTEMPT_COMPLETED)) {
        end_stopped(a, duration_us / 1000);
    } else {
        finish(a, &(struct exchange_end){
                      .outcome = outcome_of[r->outcome],
                      .error = r->error,
                      .result = r->result,
                      .delay_ms = r->delay_ms,
                      .duration_ms = duration_us / 1000,
                  });
    }
    queue_ended(q);
}

// --------------------------------------------------------------------- begin

static void on_deadline(evutil_socket_t fd, short what, void *arg)
{
    (void)fd;
    (void)what;
    attempt_stop(arg, STOP_TIMEOUT);
}

static void fail_to_start(struct attempt_private *a, const char *error)
{
    attempt_end(&a->pub,
                &(struct attempt_result){.outcome = ATTEMPT_FAILED, .error = error});
}

static void start(struct attempt_private *a)
{
    struct queue *q = a->queue;
    struct daemon *d = q->d;
    struct err e = ERR_INIT;
    list_remove(&q->waiting, a);
    list_add(&q->running, a);
    set_state(a, ATTEMPT_RUNNING);
    atomic_fetch_add(&d->running, 1);
    a->started_us = daemon_now_us();
    a->pub.at_once = q->size;
    struct kind_slot *slot = kind_find(d, a->pub.command->kind);
    if (slot->self == NULL)
        slot->self = slot->kind->open(&d->rt, &e);
    if (slot->self == NULL) {
        err_wrap(&e, "cannot run %s handlers", slot->kind->name);
        fail_to_start(a, e.msg);
        return;
    }
    a->pub.kind = slot->kind;
    a->kind_self = slot->self;
    if (a->pub.command->timeout_ms > 0) {
        a->deadline = loop_event_new(d->base, -1, 0, on_deadline, a);
        loop_timer_start(a->deadline, a->pub.command->timeout_ms);
    }
    slot->kind->start(slot->self, &a->pub);
}

size_t attempts_give_back(struct queue *q, int64_t waited_us)
{
    const struct exchange_end released = {.outcome = EXCHANGE_RELEASED,
                                          .duration_ms = -1};
    int64_t before_us = daemon_now_us() - waited_us;
    size_t n = 0;
    for (struct attempt_private *a = q->running.first, *next; a != NULL; a = next) {
        next = a->next;
        if (a->state == ATTEMPT_RUNNING && a->pub.kind->take_back != NULL &&
            a->taken_us <= before_us && a->pub.kind->take_back(a->kind_self, &a->pub)) {
            finish(a, &released);
            n++;
        }
    }
    while (q->waiting.first != NULL && q->waiting.first->taken_us <= before_us) {
        finish(q->waiting.first, &released);
        n++;
    }
    return n;
}

void attempts_start(struct queue *q)
{
    while (q->waiting.first != NULL &&
           (q->running.count < (size_t)q->size ||
            kind_find(q->d, q->waiting.first->pub.command->kind)->kind->keeps_limit))
        start(q->waiting.first);
}

// ---------------------------------------------------------------------- take

// A command that went from the registry after the claim, or that this worker
// cannot run, goes back.
static bool can_run(struct daemon *d, const struct command *c)
{
    return c != NULL && !command_is_sql(c) && kind_can_run(d, c);
}

void attempts_take(struct daemon *d, struct queue *q, struct exchange_answer *answer,
                   struct arena *arena)
{
    if (answer->task_count == 0)
        return;
    struct batch *b = xcalloc(1, sizeof *b);
    exchange_keep(answer, arena);
    b->arena = *arena;
    *arena = (struct arena){0};
    b->registry = registry_ref(d->registry);
    b->left = answer->task_count;
    const struct command *command = NULL;
    int64_t now_us = daemon_now_us();
    for (size_t i = 0; i < answer->task_count; i++) {
        const struct exchange_task *t = &answer->tasks[i];
        struct attempt_private *a = arena_calloc(&b->arena, 1, sizeof *a);
        if (command == NULL || strcmp(command->name, t->command) != 0)
            command = registry_find(d->registry, t->command);
        *a = (struct attempt_private){.pub = {.task = *t, .command = command, .own = a},
                                      .queue = q,
                                      .batch = b,
                                      .taken_us = now_us};
        a->pub.idempotency_key = arena_printf(&b->arena, "%s-%" PRId64,
                                              d->registry->installation_id, t->task_id);
        list_add(&q->waiting, a);
    }
    // Separately: the last attempt to end takes the batch with it.
    for (struct attempt_private *a = q->waiting.first, *next; a != NULL; a = next) {
        next = a->next;
        if (!can_run(d, a->pub.command))
            finish(a, &(struct exchange_end){.outcome = EXCHANGE_RELEASED,
                                             .duration_ms = -1});
    }
}

// ---------------------------------------------------------------------- stop

void attempt_stop(struct attempt_private *a, enum attempt_stop why)
{
    if (a->state == ATTEMPT_WAITING) {
        a->stop = why;
        end_stopped(a, -1);
    } else if (a->state == ATTEMPT_RUNNING) {
        a->stop = why;
        set_state(a, ATTEMPT_STOPPING);
        a->pub.kind->stop(a->kind_self, &a->pub);
    } else if (why == STOP_LOST) {
        a->stop = why; // whatever it was stopped for before
    }
}

void attempts_stop_all(struct daemon *d, enum attempt_stop why)
{
    for (size_t i = 0; i < d->queue_count; i++) {
        struct queue *q = d->queues[i];
        while (q->waiting.first != NULL)
            attempt_stop(q->waiting.first, why);
        for (struct attempt_private *a = q->running.first, *next; a != NULL; a = next) {
            next = a->next;
            attempt_stop(a, why);
        }
    }
}
