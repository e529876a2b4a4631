// SPDX-License-Identifier: Apache-2.0
//
// The life of a worker.
//
//   starting ──> working ──> finishing ──> leaving ──> stopped
//                               └─> handing_back ─┘
//
// The first request to stop lets work finish that has begun; what was claimed
// and not begun goes back at once. The second request, or the end of the grace
// period, stops the rest and hands it back, charged to nobody. In either case
// what handlers have done is recorded before the worker leaves.

#include "daemon/daemon.h"

#include <errno.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/eventfd.h>
#include <unistd.h>

#include "daemon/impl.h"

static const char *const state_names[] = {
    [DAEMON_STARTING] = "starting",   [DAEMON_WORKING] = "working",
    [DAEMON_FINISHING] = "finishing", [DAEMON_HANDING_BACK] = "handing_back",
    [DAEMON_LEAVING] = "leaving",     [DAEMON_STOPPED] = "stopped",
};

static const struct machine_transition transitions[] = {
    {DAEMON_STARTING, DAEMON_WORKING, "registered, and the queues are known"},
    {DAEMON_STARTING, DAEMON_LEAVING, "stopped before it began"},
    {DAEMON_STARTING, DAEMON_STOPPED, "cannot go on"},
    {DAEMON_WORKING, DAEMON_FINISHING, "asked to stop, or idle and told to stop then"},
    {DAEMON_WORKING, DAEMON_STOPPED, "cannot go on"},
    {DAEMON_FINISHING, DAEMON_HANDING_BACK, "asked again, or the grace period is over"},
    {DAEMON_FINISHING, DAEMON_LEAVING, "nothing runs any more"},
    {DAEMON_HANDING_BACK, DAEMON_LEAVING, "all is handed back"},
    {DAEMON_LEAVING, DAEMON_STOPPED, "signed off"},
};

static const struct machine machine = {
    .name = "worker",
    .states = state_names,
    .state_count = sizeof state_names / sizeof state_names[0],
    .transitions = transitions,
    .transition_count = sizeof transitions / sizeof transitions[0],
};

#define HAND_BACK_MS 5000 // after that it leaves without waiting for handlers
#define LEAVE_MS     5000

const struct machine *daemon_machine(void)
{
    return &machine;
}

static void set_state(struct daemon *d, enum daemon_state to)
{
    const char *why = machine_step(&machine, (int)d->state, (int)to);
    log_debug(d->log, "worker state", LOG_S("from", state_names[d->state]),
              LOG_S("to", state_names[to]), LOG_S("why", why));
    d->state = to;
    atomic_store(&d->state_seen, (int)to);
    if (to == DAEMON_STOPPED)
        event_base_loopbreak(d->base);
}

bool daemon_may_claim(const struct daemon *d)
{
    return d->state == DAEMON_WORKING && d->control.worker_id != 0 &&
           (!d->opt.exclusive || d->control.exclusive_held);
}

void daemon_fail(struct daemon *d, const struct err *e)
{
    if (d->state != DAEMON_STARTING && d->state != DAEMON_WORKING)
        return;
    d->error = *e;
    set_state(d, DAEMON_STOPPED);
}

// -------------------------------------------------------------------- queues

struct queue *daemon_find_queue(struct daemon *d, const char *name)
{
    for (size_t i = 0; i < d->queue_count; i++)
        if (strcmp(d->queues[i]->name, name) == 0)
            return d->queues[i];
    return NULL;
}

static const struct registry_queue *find_registered(const struct registry *r,
                                                    const char *name)
{
    for (size_t i = 0; i < r->queue_count; i++)
        if (strcmp(r->queues[i].name, name) == 0)
            return &r->queues[i];
    return NULL;
}

// The size a queue is to have here; 0: it is not served.
static int size_of(const struct daemon *d, const struct registry_queue *rq)
{
    if (d->opt.queue_count == 0)
        return rq->default_concurrency;
    for (size_t i = 0; i < d->opt.queue_count; i++)
        if (strcmp(d->opt.queues[i].name, rq->name) == 0)
            return d->opt.queues[i].size > 0 ? d->opt.queues[i].size
                                             : rq->default_concurrency;
    return 0;
}

static struct queue *add_queue(struct daemon *d, const struct registry_queue *rq)
{
    struct queue *q = queue_new(d, rq->name, rq->id);
    d->queues = xrealloc(d->queues, (d->queue_count + 1) * sizeof d->queues[0]);
    d->queues[d->queue_count++] = q;
    log_debug(d->log, "queue served", LOG_S("queue", q->name));
    return q;
}

void daemon_use_registry(struct daemon *d, struct registry *r)
{
    registry_unref(d->registry);
    d->registry = r;
    for (size_t i = 0; i < d->queue_count; i++) {
        struct queue *q = d->queues[i];
        const struct registry_queue *rq = find_registered(r, q->name);
        // A queue that was removed and made anew has another number.
        if (rq != NULL && rq->id != q->id && queue_is_stopped(q))
            q->id = rq->id;
        else if (rq != NULL && rq->id != q->id)
            rq = NULL;
        queue_configure(q, r, rq, rq != NULL ? size_of(d, rq) : 0);
    }
    for (size_t i = 0; i < r->queue_count; i++) {
        const struct registry_queue *rq = &r->queues[i];
        int size = size_of(d, rq);
        if (size == 0 || daemon_find_queue(d, rq->name) != NULL)
            continue;
        struct queue *q = add_queue(d, rq);
        queue_configure(q, r, rq, size);
        if (d->state == DAEMON_WORKING)
            queue_kick(q);
    }
    daemon_check(d);
}

static bool knows_its_queues(struct daemon *d)
{
    for (size_t i = 0; i < d->opt.queue_count; i++) {
        if (find_registered(d->registry, d->opt.queues[i].name) == NULL) {
            struct err e = ERR_INIT;
            err_set(&e, "unknown queue \"%s\"", d->opt.queues[i].name);
            err_hint(&e, "see worker.queue_registry");
            daemon_fail(d, &e);
            return false;
        }
    }
    return true;
}

// --------------------------------------------------------------------- phases

static void begin_work(struct daemon *d)
{
    if (!knows_its_queues(d))
        return;
    set_state(d, DAEMON_WORKING);
    log_info(d->log, "worker started", LOG_I("worker", d->control.worker_id),
             LOG_I("queues", (int64_t)d->queue_count));
    listen_begin(d);
    for (size_t i = 0; i < d->queue_count; i++)
        queue_kick(d->queues[i]);
    d->ready = true;
    if (d->opt.on_ready != NULL)
        d->opt.on_ready(d->opt.arg);
}

void daemon_registered(struct daemon *d, int64_t worker_id)
{
    d->rt.worker_id = worker_id;
    atomic_store(&d->worker_id_seen, worker_id);
    if (d->state == DAEMON_WORKING) {
        log_info(d->log, "registered again", LOG_I("worker", worker_id));
        for (size_t i = 0; i < d->queue_count; i++)
            queue_kick(d->queues[i]);
    }
    daemon_check(d);
}

void daemon_lost(struct daemon *d)
{
    atomic_store(&d->worker_id_seen, 0);
    attempts_stop_all(d, STOP_LOST);
}

static bool all_stopped(const struct daemon *d)
{
    for (size_t i = 0; i < d->queue_count; i++)
        if (!queue_is_stopped(d->queues[i]))
            return false;
    return true;
}

static bool all_quiet(const struct daemon *d)
{
    for (size_t i = 0; i < d->queue_count; i++)
        if (!queue_is_quiet(d->queues[i]))
            return false;
    return d->queue_count > 0 && pump_is_empty(d);
}

// A fiber that waits for a connection has nothing to finish.
static void close_waiting_fibers(struct daemon *d)
{
    for (size_t i = 0; i < d->queue_count; i++)
        for (size_t k = 0; k < d->queues[i]->fiber_count; k++) {
            struct fiber *f = d->queues[i]->fibers[k];
            if (f->conn != NULL && !conn_is_up(f->conn))
                conn_close(f->conn);
        }
}

static void finish(struct daemon *d)
{
    set_state(d, DAEMON_FINISHING);
    loop_timer_start(d->grace, d->opt.grace_ms);
    for (size_t i = 0; i < d->queue_count; i++) {
        struct queue *q = d->queues[i];
        event_del(q->timer);
        event_del(q->ramp);
        attempts_give_back(q, 0);
    }
    close_waiting_fibers(d);
}

// Handlers in SQL are interrupted by ending their sessions: the server rolls
// back what they did.
static void hand_back(struct daemon *d)
{
    set_state(d, DAEMON_HANDING_BACK);
    d->handed_back = true;
    loop_timer_start(d->grace, HAND_BACK_MS);
    log_warn(d->log, "handing back what is not finished");
    attempts_stop_all(d, STOP_RELEASE);
    for (size_t i = 0; i < d->queue_count; i++)
        for (size_t k = 0; k < d->queues[i]->fiber_count; k++)
            if (d->queues[i]->fibers[k]->conn != NULL)
                conn_close(d->queues[i]->fibers[k]->conn);
}

void daemon_check(struct daemon *d)
{
    if (d->state == DAEMON_STARTING && d->control.worker_id != 0 && d->registry != NULL &&
        (!d->opt.exclusive || d->control.exclusive_held))
        begin_work(d);
    if (d->state == DAEMON_WORKING && d->opt.stop_when_idle && d->ready && all_quiet(d))
        finish(d);
    if ((d->state == DAEMON_FINISHING || d->state == DAEMON_HANDING_BACK) &&
        all_stopped(d)) {
        set_state(d, DAEMON_LEAVING);
        loop_timer_start(d->grace, LEAVE_MS);
    }
    if (d->state != DAEMON_LEAVING || d->signing_off)
        return;
    d->pump.flush_due = true;
    pump_go_on(d);
    if (pump_is_empty(d)) {
        d->signing_off = true;
        control_sign_off(d);
    }
}

void daemon_signed_off(struct daemon *d)
{
    if (d->state == DAEMON_LEAVING)
        set_state(d, DAEMON_STOPPED);
}

static void on_grace(evutil_socket_t fd, short what, void *arg)
{
    (void)fd;
    (void)what;
    struct daemon *d = arg;
    if (d->state == DAEMON_FINISHING) {
        hand_back(d);
        daemon_check(d);
    } else if (d->state == DAEMON_HANDING_BACK) {
        // A handler does not listen. Its lease goes back with all the others
        // when the worker signs off.
        set_state(d, DAEMON_LEAVING);
        loop_timer_start(d->grace, LEAVE_MS);
        d->signing_off = true;
        control_sign_off(d);
    } else if (d->state == DAEMON_LEAVING) {
        log_warn(d->log, "leaving without the server's word");
        d->handed_back = d->handed_back || !pump_is_empty(d);
        set_state(d, DAEMON_STOPPED);
    }
}

static void on_wake(evutil_socket_t fd, short what, void *arg)
{
    (void)what;
    struct daemon *d = arg;
    uint64_t n;
    if (read(fd, &n, sizeof n) < 0)
        return;
    if (atomic_exchange(&d->reload, false) && d->control.conn != NULL)
        control_read_registry(d);
    int stops = atomic_load(&d->stops);
    while (d->stops_seen < stops) {
        d->stops_seen++;
        if (d->state == DAEMON_STARTING) {
            set_state(d, DAEMON_LEAVING);
            d->signing_off = true;
            control_sign_off(d);
        } else if (d->state == DAEMON_WORKING) {
            log_info(d->log, "stopping");
            finish(d);
        } else if (d->state == DAEMON_FINISHING) {
            hand_back(d);
        }
    }
    daemon_check(d);
}

static void wake(struct daemon *d)
{
    uint64_t one = 1;
    ssize_t n = write(d->wake_fd, &one, sizeof one);
    (void)n; // it is full: then it is awake
}

void daemon_stop(struct daemon *d)
{
    atomic_fetch_add(&d->stops, 1);
    wake(d);
}

void daemon_reload(struct daemon *d)
{
    atomic_store(&d->reload, true);
    wake(d);
}

void daemon_get_status(struct daemon *d, struct daemon_status *out)
{
    *out = (struct daemon_status){
        .state = (enum daemon_state)atomic_load(&d->state_seen),
        .worker_id = atomic_load(&d->worker_id_seen),
        .connected = atomic_load(&d->connected),
        .listening = atomic_load(&d->listening),
        .running = atomic_load(&d->running),
        .completed = atomic_load(&d->completed),
        .failed = atomic_load(&d->failed),
    };
}

// ---------------------------------------------------------------------- life

struct conn *daemon_new_conn(struct daemon *d, const char *name,
                             void (*on_up)(struct conn *c, void *arg),
                             void (*on_down)(struct conn *c, const struct err *why,
                                             void *arg),
                             void (*on_notify)(struct conn *c, const char *channel,
                                               const char *payload, int pid, void *arg),
                             void *arg, bool unprepared, struct err *e)
{
    // So that the server notices within seconds that this worker is gone.
    static const char *const session[] = {
        "select set_config('client_connection_check_interval', '2s', false), "
        "set_config('tcp_keepalives_idle', '5', false), "
        "set_config('tcp_keepalives_interval', '2', false), "
        "set_config('tcp_keepalives_count', '3', false), "
        "set_config('idle_in_transaction_session_timeout', '0', false), "
        "set_config('statement_timeout', '0', false)",
        NULL};
    const struct conn_options o = {
        .name = name,
        .conninfo = d->conninfo,
        .app_name = "pgkin worker",
        .session_sql = d->opt.poll_only || d->listen.pooled ? NULL : session,
        .unprepared = unprepared || d->opt.poll_only || d->listen.pooled,
        .log = d->log,
        .on_up = on_up,
        .on_down = on_down,
        .on_notify = on_notify,
        .arg = arg,
    };
    return conn_new(d->base, &o, e);
}

static struct daemon *daemon_of(struct runtime *rt)
{
    return (struct daemon *)((char *)rt - offsetof(struct daemon, rt));
}

static struct conn *open_steps(struct runtime *rt)
{
    struct daemon *d = daemon_of(rt);
    struct err e = ERR_INIT;
    if (d->steps == NULL) {
        d->steps = daemon_new_conn(d, "steps", NULL, NULL, NULL, d, true, &e);
        if (d->steps == NULL || !conn_open(d->steps, &e))
            BUG("cannot open a connection that was opened before: %s", e.msg);
    }
    return d->steps;
}

static void report_progress(struct runtime *rt, int64_t task_id, int64_t lease_id,
                            double fraction, const char *message)
{
    control_report_progress(daemon_of(rt), task_id, lease_id, fraction, message);
}

static bool open_daemon(struct daemon *d, struct err *e)
{
    d->base = event_base_new();
    d->wake_fd = eventfd(0, EFD_CLOEXEC | EFD_NONBLOCK);
    if (d->base == NULL || d->wake_fd < 0)
        return err_errno(e, errno, "cannot make an event loop");
    d->wake = loop_event_new(d->base, d->wake_fd, EV_READ | EV_PERSIST, on_wake, d);
    loop_event_add(d->wake, NULL);
    d->grace = loop_event_new(d->base, -1, 0, on_grace, d);
    d->rt = (struct runtime){.base = d->base,
                             .log = d->log,
                             .conf = d->opt.conf,
                             .steps = open_steps,
                             .report_progress = report_progress,
                             .leaves_process = d->opt.leaves_process,
                             .pid = (int)getpid()};
    kinds_init(d);
    if (d->opt.listen != NULL) {
        d->serve = serve_new(d, d->opt.listen, e);
        if (d->serve == NULL)
            return false;
    }
    if (!pump_open(d, e))
        return false;
    listen_open(d);
    return control_open(d, e);
}

struct daemon *daemon_new(const struct daemon_options *o, struct err *e)
{
    struct daemon *d = xcalloc(1, sizeof *d);
    d->opt = *o;
    d->log = o->log;
    d->wake_fd = -1;
    d->conninfo = xstrdup(o->conninfo);
    if (gethostname(d->host, sizeof d->host - 1) != 0)
        snprintf(d->host, sizeof d->host, "unknown");
    d->name = xstrdup(o->name != NULL ? o->name : d->host);
    if (open_daemon(d, e))
        return d;
    daemon_free(d);
    return NULL;
}

bool daemon_run(struct daemon *d, struct err *e)
{
    if (d->state != DAEMON_STOPPED)
        event_base_dispatch(d->base);
    if (d->error.code != ERR_NONE) {
        *e = d->error;
        return false;
    }
    log_info(d->log, "worker stopped",
             LOG_I("completed", (int64_t)atomic_load(&d->completed)),
             LOG_I("failed", (int64_t)atomic_load(&d->failed)));
    return !d->handed_back || err_set(e, "work was handed back unfinished");
}

void daemon_free(struct daemon *d)
{
    if (d == NULL)
        return;
    d->state = DAEMON_STOPPED;
    d->control.worker_id = 0;
    attempts_stop_all(d, STOP_LOST);
    kinds_close(d);
    conn_free(d->steps);
    // These answer what is under way on them, and the answers name queues.
    control_close(d);
    pump_close(d);
    for (size_t i = 0; i < d->queue_count; i++)
        queue_free(d->queues[i]);
    free(d->queues);
    serve_free(d->serve);
    registry_unref(d->registry);
    loop_event_clear(&d->wake);
    loop_event_clear(&d->grace);
    if (d->base != NULL)
        event_base_free(d->base);
    if (d->wake_fd >= 0)
        close(d->wake_fd);
    free(d->kinds);
    free(d->conninfo);
    free(d->name);
    free(d);
}
