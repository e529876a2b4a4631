// SPDX-License-Identifier: Apache-2.0
//
// C functions, in threads. The loop hands jobs over in a list for each queue,
// because each has its own limit, and gets them back in another; one lock guards
// them all, and an eventfd wakes the loop once for all that are done.
//
// Threads come as they are needed: one per processor at once, more only when
// jobs are stuck behind handlers that take their time.

#include "daemon/run_native.h"

#include <pthread.h>
#include <signal.h>
#include <stdatomic.h>
#include <stdlib.h>
#include <string.h>
#include <sys/eventfd.h>
#include <time.h>
#include <unistd.h>

#include "core/buf.h"
#include "core/jsontext.h"
#include "core/loop.h"

#define STACK_BYTES ((size_t)256 * 1024)
#define GROW_MS     2 // after that much without an end, more threads
#define MOST        1024
#define QUICK_US    50
#define GROUP       64

// What a handler sees, and the job that the threads pass around.
struct pgkin_task {
    struct attempt *attempt;
    const struct native_handler *handler;
    atomic_bool stop;
    enum pgkin_outcome outcome;
    char *result;
    char *error;
    int64_t delay_ms;
    struct lane *lane;
    struct native *native;
    bool begun; // a thread has it
    struct pgkin_task *next;
};

// What a handler has said of its progress, until the loop has passed it on.
struct progress {
    int64_t task_id;
    int64_t lease_id;
    double fraction;
    char *message; // NULL: none
    struct progress *next;
};

struct job_list {
    struct pgkin_task *first;
    struct pgkin_task **end;
};

// The jobs of one queue.
struct lane {
    char *queue;
    struct job_list todo;
    size_t running;
    size_t most;
    struct lane *next;
};

struct native {
    struct runtime *rt;
    pthread_mutex_t lock; // guards all up to `threads`
    pthread_cond_t work;
    struct lane *lanes;
    struct lane *turn; // whose jobs were taken last
    struct job_list done;
    size_t done_count;
    bool unheard; // some are done of which the loop was not told
    size_t todo_count;
    struct progress *progress; // the newest first
    size_t idle;
    bool quit;
    pthread_t *threads; // the loop's
    size_t thread_count;
    size_t at_once; // threads that are made without waiting
    uint64_t ended; // jobs
    uint64_t ended_before;
    int fd;
    struct event *ready;
    struct event *grow;
    bool grow_armed;
};

static void list_init(struct job_list *l)
{
    l->first = NULL;
    l->end = &l->first;
}

static void list_add(struct job_list *l, struct pgkin_task *t)
{
    t->next = NULL;
    *l->end = t;
    l->end = &t->next;
}

static struct pgkin_task *list_take(struct job_list *l)
{
    struct pgkin_task *t = l->first;
    l->first = t->next;
    if (l->first == NULL)
        l->end = &l->first;
    return t;
}

// False: it is not in the list.
static bool list_remove(struct job_list *l, struct pgkin_task *t)
{
    for (struct pgkin_task **at = &l->first; *at != NULL; at = &(*at)->next) {
        if (*at != t)
            continue;
        *at = t->next;
        if (*at == NULL)
            l->end = at;
        return true;
    }
    return false;
}

static int64_t now_us(void)
{
    struct timespec t;
    clock_gettime(CLOCK_MONOTONIC, &t);
    return (int64_t)t.tv_sec * 1000000 + t.tv_nsec / 1000;
}

// ------------------------------------------------------------------- threads

// The next job that its queue's limit allows, the queues in turn; or NULL.
static struct pgkin_task *take_job(struct native *n)
{
    struct lane *l = n->turn;
    if (l == NULL)
        return NULL;
    do {
        l = l->next != NULL ? l->next : n->lanes;
        if (l->todo.first != NULL && l->running < l->most) {
            n->turn = l;
            n->todo_count--;
            l->running++;
            struct pgkin_task *t = list_take(&l->todo);
            t->begun = true;
            return t;
        }
    } while (l != n->turn);
    return NULL;
}

static void wake_loop(struct native *n)
{
    uint64_t one = 1;
    ssize_t written = write(n->fd, &one, sizeof one);
    (void)written;
    n->unheard = false;
}

static void *run_thread(void *arg)
{
    struct native *n = arg;
    struct pgkin_task *t;
    pthread_mutex_lock(&n->lock);
    for (;;) {
        while ((t = take_job(n)) == NULL && !n->quit) {
            // There may be jobs to do that a limit forbids: none comes to fill
            // the group.
            if (n->unheard)
                wake_loop(n);
            n->idle++;
            pthread_cond_wait(&n->work, &n->lock);
            n->idle--;
        }
        if (t == NULL)
            break;
        pthread_mutex_unlock(&n->lock);
        int64_t begun = now_us();
        t->outcome = t->handler->fn(t, t->handler->arg);
        bool quick = now_us() - begun < QUICK_US;
        pthread_mutex_lock(&n->lock);
        t->lane->running--;
        list_add(&n->done, t);
        n->ended++;
        n->done_count++;
        // Of quick ones the loop hears in groups.
        n->unheard = true;
        if (!quick || n->todo_count == 0 || n->done_count % GROUP == 0)
            wake_loop(n);
    }
    pthread_mutex_unlock(&n->lock);
    return NULL;
}

static void add_thread(struct native *n)
{
    pthread_attr_t attr;
    sigset_t all, old;
    if (n->thread_count == MOST)
        return;
    n->threads = xrealloc(n->threads, (n->thread_count + 1) * sizeof n->threads[0]);
    pthread_attr_init(&attr);
    pthread_attr_setstacksize(&attr, STACK_BYTES);
    // Signals are the loop's.
    sigfillset(&all);
    pthread_sigmask(SIG_SETMASK, &all, &old);
    if (pthread_create(&n->threads[n->thread_count], &attr, run_thread, n) == 0)
        n->thread_count++;
    pthread_sigmask(SIG_SETMASK, &old, NULL);
    pthread_attr_destroy(&attr);
}

static void arm_grow(struct native *n)
{
    if (n->grow_armed)
        return;
    n->grow_armed = true;
    loop_timer_start(n->grow, GROW_MS);
}

static void on_grow(evutil_socket_t fd, short what, void *arg)
{
    (void)fd;
    (void)what;
    struct native *n = arg;
    n->grow_armed = false;
    pthread_mutex_lock(&n->lock);
    bool stuck = n->todo_count > 0 && n->idle == 0 && n->ended == n->ended_before;
    size_t more = 0;
    for (const struct lane *l = n->lanes; stuck && l != NULL; l = l->next)
        if (l->todo.first != NULL && l->running < l->most)
            more += l->most - l->running;
    if (more > n->todo_count)
        more = n->todo_count;
    bool again = n->todo_count > 0;
    n->ended_before = n->ended;
    pthread_mutex_unlock(&n->lock);
    for (size_t i = 0; i < more; i++)
        add_thread(n);
    if (again)
        arm_grow(n);
}

// ---------------------------------------------------------------------- loop

static void end_job(struct pgkin_task *t)
{
    static const enum attempt_outcome outcomes[] = {
        [PGKIN_COMPLETED] = ATTEMPT_COMPLETED,
        [PGKIN_FAILED] = ATTEMPT_FAILED,
        [PGKIN_GIVE_UP] = ATTEMPT_FATAL,
        [PGKIN_SNOOZE] = ATTEMPT_SNOOZED,
    };
    bool known = (unsigned)t->outcome <= PGKIN_SNOOZE;
    const struct attempt_result r = {
        .outcome = known ? outcomes[t->outcome] : ATTEMPT_FAILED,
        .result = t->outcome == PGKIN_COMPLETED ? t->result : NULL,
        .error = t->outcome == PGKIN_COMPLETED ? NULL
                 : t->error != NULL            ? t->error
                                               : "the handler reported a failure",
        .delay_ms = t->outcome == PGKIN_SNOOZE && t->delay_ms <= 0 ? 60000 : t->delay_ms,
    };
    attempt_end(t->attempt, &r);
    free(t->result);
    free(t->error);
    free(t);
}

static void end_jobs(struct native *n)
{
    pthread_mutex_lock(&n->lock);
    struct pgkin_task *done = n->done.first;
    list_init(&n->done);
    n->done_count = 0;
    pthread_mutex_unlock(&n->lock);
    while (done != NULL) {
        struct pgkin_task *next = done->next;
        end_job(done);
        done = next;
    }
}

static void pass_on_progress(struct native *n)
{
    pthread_mutex_lock(&n->lock);
    struct progress *p = n->progress;
    n->progress = NULL;
    pthread_mutex_unlock(&n->lock);
    struct progress *oldest = NULL;
    while (p != NULL) {
        struct progress *next = p->next;
        p->next = oldest;
        oldest = p;
        p = next;
    }
    while (oldest != NULL) {
        struct progress *next = oldest->next;
        n->rt->report_progress(n->rt, oldest->task_id, oldest->lease_id, oldest->fraction,
                               oldest->message);
        free(oldest->message);
        free(oldest);
        oldest = next;
    }
}

static void on_ready(evutil_socket_t fd, short what, void *arg)
{
    (void)what;
    uint64_t count;
    if (read(fd, &count, sizeof count) != sizeof count)
        return;
    pass_on_progress(arg);
    end_jobs(arg);
}

// ---------------------------------------------------------------------- kind

const struct native_handler *native_find(const struct runtime *rt,
                                         const struct command *c)
{
    const char *name = c->handler != NULL ? c->handler : c->name;
    for (size_t i = 0; i < rt->native_count; i++)
        if (strcmp(rt->natives[i].name, name) == 0)
            return &rt->natives[i];
    for (size_t i = 0; i < native_builtin_count; i++)
        if (strcmp(native_builtins[i].name, name) == 0)
            return &native_builtins[i];
    return NULL;
}

static void *open_native(struct runtime *rt, struct err *e)
{
    (void)e;
    struct native *n = xcalloc(1, sizeof *n);
    long cpus = sysconf(_SC_NPROCESSORS_ONLN);
    n->rt = rt;
    n->at_once = cpus > 0 ? (size_t)cpus : 1;
    pthread_mutex_init(&n->lock, NULL);
    pthread_cond_init(&n->work, NULL);
    list_init(&n->done);
    n->fd = eventfd(0, EFD_CLOEXEC | EFD_NONBLOCK);
    n->ready = loop_event_new(rt->base, n->fd, EV_READ | EV_PERSIST, on_ready, n);
    loop_event_add(n->ready, NULL);
    n->grow = loop_event_new(rt->base, -1, 0, on_grow, n);
    return n;
}

// Waits for the handlers: a thread cannot be ended from outside. Where the
// process ends anyway, they are left to that.
static void close_native(void *self)
{
    struct native *n = self;
    pthread_mutex_lock(&n->lock);
    bool busy = n->todo_count > 0;
    n->quit = true;
    for (const struct lane *l = n->lanes; l != NULL; l = l->next)
        busy = busy || l->running > 0;
    pthread_cond_broadcast(&n->work);
    pthread_mutex_unlock(&n->lock);
    if (busy && n->rt->leaves_process)
        return;
    for (size_t i = 0; i < n->thread_count; i++)
        pthread_join(n->threads[i], NULL);
    pass_on_progress(n);
    end_jobs(n);
    loop_event_clear(&n->ready);
    loop_event_clear(&n->grow);
    close(n->fd);
    pthread_cond_destroy(&n->work);
    pthread_mutex_destroy(&n->lock);
    while (n->lanes != NULL) {
        struct lane *l = n->lanes;
        n->lanes = l->next;
        free(l->queue);
        free(l);
    }
    free(n->threads);
    free(n);
}

static struct lane *find_lane(struct native *n, const char *queue)
{
    for (struct lane *l = n->lanes; l != NULL; l = l->next)
        if (strcmp(l->queue, queue) == 0)
            return l;
    struct lane *l = xcalloc(1, sizeof *l);
    l->queue = xstrdup(queue);
    l->next = n->lanes;
    list_init(&l->todo);
    n->lanes = l;
    if (n->turn == NULL)
        n->turn = l;
    return l;
}

static void start_native(void *self, struct attempt *a)
{
    struct native *n = self;
    const struct native_handler *h = native_find(n->rt, a->command);
    if (h == NULL) {
        attempt_end(a,
                    &(struct attempt_result){.outcome = ATTEMPT_FAILED,
                                             .error = "this worker has no such handler"});
        return;
    }
    struct pgkin_task *t = xcalloc(1, sizeof *t);
    t->attempt = a;
    t->native = n;
    t->handler = h;
    a->state = t;
    pthread_mutex_lock(&n->lock);
    t->lane = find_lane(n, a->command->queue);
    t->lane->most = (size_t)a->at_once;
    list_add(&t->lane->todo, t);
    n->todo_count++;
    // A thread that was woken counts as idle until it runs.
    bool more = n->todo_count > n->idle;
    if (n->idle > 0)
        pthread_cond_signal(&n->work);
    pthread_mutex_unlock(&n->lock);
    if (more && n->thread_count < n->at_once)
        add_thread(n);
    else if (more)
        arm_grow(n);
}

static bool take_back_native(void *self, struct attempt *a)
{
    struct native *n = self;
    struct pgkin_task *t = a->state;
    pthread_mutex_lock(&n->lock);
    bool taken = !t->begun && list_remove(&t->lane->todo, t);
    if (taken)
        n->todo_count--;
    pthread_mutex_unlock(&n->lock);
    if (taken)
        free(t);
    return taken;
}

static void stop_native(void *self, struct attempt *a)
{
    struct pgkin_task *t = a->state;
    if (take_back_native(self, a))
        attempt_end(
            a, &(struct attempt_result){.outcome = ATTEMPT_FAILED, .error = "not begun"});
    else
        atomic_store(&t->stop, true);
}

const struct kind kind_native = {
    .name = "native",
    .open = open_native,
    .close = close_native,
    .start = start_native,
    .stop = stop_native,
    .keeps_limit = true,
    .take_back = take_back_native,
};

// ----------------------------------------------------- what a handler may ask

int64_t pgkin_task_id(const pgkin_task *t)
{
    return t->attempt->task.task_id;
}

int pgkin_task_attempt(const pgkin_task *t)
{
    return t->attempt->task.attempt;
}

const char *pgkin_task_command(const pgkin_task *t)
{
    return t->attempt->task.command;
}

const char *pgkin_task_payload(const pgkin_task *t)
{
    return t->attempt->task.payload;
}

const char *pgkin_task_headers(const pgkin_task *t)
{
    return t->attempt->task.headers;
}

const char *pgkin_task_idempotency_key(const pgkin_task *t)
{
    return t->attempt->idempotency_key;
}

bool pgkin_task_should_stop(const pgkin_task *t)
{
    return atomic_load(&t->stop);
}

static void set_text(char **to, const char *text)
{
    free(*to);
    *to = text != NULL ? xstrdup(text) : NULL;
}

void pgkin_task_set_result(pgkin_task *t, const char *json)
{
    set_text(&t->result, json);
}

// Whatever bytes it has: the attempt is to be judged by its outcome.
void pgkin_task_set_error(pgkin_task *t, const char *text)
{
    struct buf clean = BUF_INIT;
    if (text != NULL)
        jsontext_add_clean(&clean, text, strlen(text));
    set_text(&t->error, text != NULL ? buf_str(&clean) : NULL);
    buf_clear(&clean);
}

void pgkin_task_report_progress(pgkin_task *t, double fraction, const char *message)
{
    struct native *n = t->native;
    struct progress *p = xcalloc(1, sizeof *p);
    *p = (struct progress){.task_id = t->attempt->task.task_id,
                           .lease_id = t->attempt->task.lease_id,
                           .fraction = fraction,
                           .message = message != NULL ? xstrdup(message) : NULL};
    pthread_mutex_lock(&n->lock);
    p->next = n->progress;
    n->progress = p;
    wake_loop(n);
    pthread_mutex_unlock(&n->lock);
}

void pgkin_task_set_delay(pgkin_task *t, int64_t ms)
{
    t->delay_ms = ms;
}
