// SPDX-License-Identifier: Apache-2.0
//
// The loop of one queue.
//
//            notified, due, found by a look            no room
//   idle ─────────────────────────────────> running ──────────> saturated
//     ^                                      │  ^ │                 │
//     └── nothing left, nothing under way ───┘  │ └<── an end ──────┘
//   scheduled <── nothing left, some under way ─┘
//             ───────────────────────────────────> running
//
// A loop that finds nothing more looks again a few times in short order (not where a
// limit holds back what there is); then it tells producers to notify it
// (listen_publish), looks once more, because one may have looked at the old word and
// committed since, and sleeps. Polling (control_look) is what can be relied on; all else
// only makes it quick.
//
// Tasks outside the database come by the exchange (pump.c), those in SQL are run
// by fibers. The rules (one tree at a time, children before the next parent)
// are kept by the database: what is decided here is only whom to ask.

#include <stdlib.h>
#include <string.h>

#include "daemon/impl.h"

#define PAUSES        16 // looks before it goes to sleep,
#define PAUSE_MOST_MS 2  // with so much time in between at most
#define RAMP_MS       5  // a call that lasts longer may need company
#define YOUNG_MS      20 // and one that lasts this long has found something
#define LOOK_SOON_MS  20
#define REFUSED_MS    25 // work is there and cannot be had: a limit, a place, a pause
#define REFUSED_MOST  200
#define POLL_MS       100 // where nobody notifies
#define QUICK_US      10000.0
#define AHEAD_US      20000.0 // what is claimed ahead takes about so long
#define AHEAD_MOST    1000
#define AHEAD_LONG_US 250000 // longer than this nothing waits here
#define RECOVER_MS    3000   // a call that was lost is recovered by then

static const char *const state_names[] = {
    [QUEUE_IDLE] = "idle",
    [QUEUE_RUNNING] = "running",
    [QUEUE_SCHEDULED] = "scheduled",
    [QUEUE_SATURATED] = "saturated",
};

static const struct machine_transition transitions[] = {
    {QUEUE_IDLE, QUEUE_RUNNING, "notified, due, or found by a look"},
    {QUEUE_RUNNING, QUEUE_IDLE, "all done"},
    {QUEUE_RUNNING, QUEUE_SCHEDULED, "all started or not due, leftover capacity"},
    {QUEUE_RUNNING, QUEUE_SATURATED, "maxed out"},
    {QUEUE_SCHEDULED, QUEUE_RUNNING, "notified, due, ended, or found by a look"},
    {QUEUE_SCHEDULED, QUEUE_IDLE, "the last one ended"},
    {QUEUE_IDLE, QUEUE_SCHEDULED, "something comes due later"},
    {QUEUE_SATURATED, QUEUE_RUNNING, "an end, a cancel, or a recovery"},
};

static const struct machine machine = {
    .name = "queue loop",
    .states = state_names,
    .state_count = sizeof state_names / sizeof state_names[0],
    .transitions = transitions,
    .transition_count = sizeof transitions / sizeof transitions[0],
};

const struct machine *queue_machine(void)
{
    return &machine;
}

static void set_state(struct queue *q, enum queue_state to)
{
    if (q->state == to)
        return;
    const char *why = machine_step(&machine, (int)q->state, (int)to);
    log_debug(q->d->log, "queue state", LOG_S("queue", q->name),
              LOG_S("from", state_names[q->state]), LOG_S("to", state_names[to]),
              LOG_S("why", why));
    q->state = to;
}

// ---------------------------------------------------------------------- room

// What may wait here for its turn: little enough that an urgent task that comes
// now is not stuck behind it.
static int ahead(const struct queue *q)
{
    if (q->mean_us == 0 || q->mean_us >= QUICK_US)
        return 0;
    double n = AHEAD_US / (q->mean_us < 1 ? 1 : q->mean_us) * q->size;
    return n > AHEAD_MOST ? AHEAD_MOST : (int)n;
}

static int capacity(const struct queue *q)
{
    return q->size + ahead(q) - (int)(q->waiting.count + q->running.count) - q->asked;
}

int queue_room(const struct queue *q)
{
    if (!q->hungry || q->gone || q->lane_count == 0 || q->publishing)
        return 0;
    int room = capacity(q);
    // One claim at a time, unless the last one shows that there is plenty; and
    // no small ones while there is enough to do.
    if (q->asked > 0 && !q->d->pump.full)
        return 0;
    if (ahead(q) > 0 && q->waiting.count + q->running.count > 0 &&
        room < (q->size + ahead(q)) / 2)
        return 0;
    return room > 0 ? room : 0;
}

// How long tasks take was a guess from those before them.
void queue_give_back(struct queue *q)
{
    size_t n = attempts_give_back(q, AHEAD_LONG_US);
    if (n == 0)
        return;
    if (q->mean_us < QUICK_US)
        q->mean_us = QUICK_US;
    log_debug(q->d->log, "claimed too much ahead: handing back", LOG_S("queue", q->name),
              LOG_I("tasks", (int64_t)n));
    queue_go_on(q);
}

static struct fiber *find_free(struct queue *q, enum fiber_mode mode)
{
    for (size_t i = 0; i < q->fiber_count; i++)
        if (q->fibers[i]->mode == mode && fiber_is_free(q->fibers[i]))
            return q->fibers[i];
    return NULL;
}

static bool any_fiber(const struct queue *q, enum fiber_mode mode, enum fiber_state state)
{
    for (size_t i = 0; i < q->fiber_count; i++)
        if (q->fibers[i]->mode == mode && q->fibers[i]->state == state)
            return true;
    return false;
}

// Was one called a moment ago, and has not answered yet?
static bool any_called(const struct queue *q, enum fiber_mode mode)
{
    int64_t now = loop_now_ms();
    for (size_t i = 0; i < q->fiber_count; i++)
        if (q->fibers[i]->mode == mode && q->fibers[i]->state == FIBER_BUSY &&
            now - q->fibers[i]->called_ms < RAMP_MS)
            return true;
    return false;
}

static bool any_busy(const struct queue *q)
{
    return any_fiber(q, FIBER_ANY, FIBER_BUSY) || any_fiber(q, FIBER_TOP, FIBER_BUSY) ||
           any_fiber(q, FIBER_CHILD, FIBER_BUSY);
}

// A call that has only begun may still be the one that finds nothing.
static bool any_young(const struct queue *q)
{
    int64_t now = loop_now_ms();
    for (size_t i = 0; i < q->fiber_count; i++)
        if (q->fibers[i]->state == FIBER_BUSY && now - q->fibers[i]->called_ms < YOUNG_MS)
            return true;
    return false;
}

static bool any_connecting(const struct queue *q)
{
    for (size_t i = 0; i < q->fiber_count; i++)
        if (q->fibers[i]->state == FIBER_BUSY && !conn_is_up(q->fibers[i]->conn))
            return true;
    return false;
}

// ---------------------------------------------------------------------- work

static void drop_fiber(struct queue *q, size_t i)
{
    struct fiber *f = q->fibers[i];
    memmove(&q->fibers[i], &q->fibers[i + 1],
            (--q->fiber_count - i) * sizeof(q->fibers[0]));
    fiber_clear(f);
    free(f);
}

static void give_duties(struct queue *q)
{
    for (size_t i = 0; i < q->fiber_count; i++)
        q->fibers[i]->mode = !q->serial || q->size == 1 ? FIBER_ANY
                             : i == 0                   ? FIBER_TOP
                                                        : FIBER_CHILD;
}

// Those that the queue has too many of, since its size was changed.
static void trim_fibers(struct queue *q)
{
    if (q->fiber_count <= (size_t)q->size)
        return;
    for (size_t i = q->fiber_count; i > 0 && q->fiber_count > (size_t)q->size; i--)
        if (q->fibers[i - 1]->state != FIBER_BUSY)
            drop_fiber(q, i - 1);
    give_duties(q);
}

// One more of each sort that is wanted; the others follow when this one takes
// its time.
static void call_fibers(struct queue *q)
{
    trim_fibers(q);
    // No connection is made for handlers in SQL before a look has seen some.
    if (!q->sql_seen) {
        q->sql_asked = q->sql_asked || q->top_hungry || q->child_hungry;
        q->top_hungry = q->child_hungry = false;
        control_look(q->d);
        return;
    }
    struct fiber *any = find_free(q, FIBER_ANY);
    struct fiber *top = find_free(q, FIBER_TOP);
    struct fiber *child = find_free(q, FIBER_CHILD);
    if (any != NULL && (q->top_hungry || q->child_hungry) && !any_called(q, FIBER_ANY))
        fiber_call(any);
    if (top != NULL && q->top_hungry)
        fiber_call(top);
    // Where connections are short, the top fiber's comes first: without it the
    // others have nothing to do.
    if (child != NULL && q->child_hungry && !any_called(q, FIBER_CHILD) &&
        (child->state == FIBER_IDLE || !any_connecting(q)))
        fiber_call(child);
    if ((q->top_hungry && find_free(q, FIBER_ANY) != NULL) ||
        (q->child_hungry && (find_free(q, FIBER_CHILD) != NULL)))
        loop_timer_start(q->ramp, RAMP_MS);
}

static void on_ramp(evutil_socket_t fd, short what, void *arg)
{
    (void)fd;
    (void)what;
    struct queue *q = arg;
    if (!daemon_may_claim(q->d) || !(q->top_hungry || q->child_hungry))
        return;
    // One that is still connecting has not had its chance.
    if (any_connecting(q))
        loop_timer_start(q->ramp, RAMP_MS);
    else
        call_fibers(q);
}

void queue_rest_fibers(struct queue *q, int64_t idle_ms)
{
    bool open = false;
    for (size_t i = 0; i < q->fiber_count; i++) {
        struct fiber *f = q->fibers[i];
        if (f->state == FIBER_IDLE && loop_now_ms() - f->used_ms > idle_ms)
            fiber_close(f);
        open = open || f->state != FIBER_CLOSED;
    }
    q->sql_seen = q->sql_seen && (open || q->state == QUEUE_RUNNING);
}

// Is there anything that would have to answer before it can be said that
// nothing is left?
static bool is_looking(const struct queue *q)
{
    return q->asked > 0 || q->sql_asked || (q->hungry && queue_room(q) > 0) ||
           any_young(q);
}

static bool is_saturated(const struct queue *q)
{
    bool sql_full = true;
    for (size_t i = 0; i < q->fiber_count; i++)
        sql_full = sql_full && !fiber_is_free(q->fibers[i]);
    return (q->lane_count == 0 || !q->has_other || capacity(q) <= 0) &&
           (!q->has_sql || sql_full) && (q->running.count > 0 || any_busy(q));
}

static bool is_under_way(const struct queue *q)
{
    return q->running.count + q->waiting.count > 0 || any_busy(q);
}

static void look_again(struct queue *q)
{
    q->hungry = q->lane_count > 0 && (q->has_other || q->promised);
    q->top_hungry = q->has_sql;
    q->child_hungry = q->has_sql && q->serial;
}

// Nothing was found, and nobody is looking.
static void settle(struct queue *q)
{
    if (is_saturated(q)) {
        q->arming = false;
        set_state(q, QUEUE_SATURATED);
        return;
    }
    enum queue_state rest =
        is_under_way(q) || q->due_in_ms >= 0 ? QUEUE_SCHEDULED : QUEUE_IDLE;
    if (q->arming || !q->d->listen.works) {
        q->arming = false;
        q->pauses = 0;
        set_state(q, rest);
        // Somebody may have read the old word and committed after our look. A
        // look that promised what was not to be had is not repeated in haste.
        bool refused = q->promised || q->held_back;
        loop_timer_start(q->timer, refused              ? q->refused_ms
                                   : q->d->listen.works ? LOOK_SOON_MS
                                                        : POLL_MS);
        if (refused && q->refused_ms < REFUSED_MOST)
            q->refused_ms *= 2;
        q->quiet = refused; // what is there cannot be had now
        q->promised = q->told = false;
        daemon_check(q->d);
    } else if (q->pauses < PAUSES && q->held_back && q->told) {
        // Somebody enqueues behind the limit, and goes on to tell us of each if we
        // let him.
        q->pauses = PAUSES;
        loop_timer_start(q->timer, q->refused_ms);
    } else if (q->pauses < PAUSES && !q->held_back) {
        q->pauses++;
        loop_timer_start(q->timer, q->pauses < PAUSE_MOST_MS ? q->pauses : PAUSE_MOST_MS);
    } else {
        q->publishing = true;
        listen_publish(q, rest);
    }
}

void queue_published(struct queue *q)
{
    if (!q->publishing)
        return;
    q->publishing = false;
    q->arming = true;
    look_again(q);
    queue_go_on(q);
}

static void on_timer(evutil_socket_t fd, short what, void *arg)
{
    (void)fd;
    (void)what;
    struct queue *q = arg;
    if (q->state == QUEUE_RUNNING) {
        if (!is_looking(q) || any_young(q))
            look_again(q);
        queue_go_on(q);
    } else if (q->state == QUEUE_SCHEDULED && q->due_in_ms >= 0) {
        queue_kick(q);
    } else {
        control_look(q->d);
    }
}

static void go_on(struct queue *q)
{
    if (!daemon_may_claim(q->d)) {
        pump_go_on(q->d);
        return;
    }
    attempts_start(q);
    // Something has ended, and there may be more.
    if ((q->state == QUEUE_SATURATED && !is_saturated(q)) ||
        (q->state == QUEUE_SCHEDULED && q->hungry))
        set_state(q, QUEUE_RUNNING);
    if (q->state == QUEUE_RUNNING && !q->publishing)
        call_fibers(q);
    pump_go_on(q->d);
    if (q->state == QUEUE_SCHEDULED && !is_under_way(q) && q->due_in_ms < 0)
        set_state(q, QUEUE_IDLE);
    if (q->state != QUEUE_RUNNING || q->publishing)
        return;
    if (any_young(q))
        loop_timer_start(q->timer, YOUNG_MS);
    else if (!is_looking(q))
        settle(q);
}

void queue_go_on(struct queue *q)
{
    if (q->going) {
        q->go_again = true;
        return;
    }
    q->going = true;
    do {
        q->go_again = false;
        go_on(q);
    } while (q->go_again);
    q->going = false;
}

void queue_kick(struct queue *q)
{
    if (q->gone)
        return;
    q->pauses = 0;
    q->due_in_ms = -1;
    q->quiet = false;
    look_again(q);
    if (q->state == QUEUE_IDLE || q->state == QUEUE_SCHEDULED) {
        event_del(q->timer);
        set_state(q, QUEUE_RUNNING);
        listen_publish(q, QUEUE_RUNNING);
    }
    queue_go_on(q);
}

// ------------------------------------------------------------------- answers

void queue_claimed(struct queue *q, size_t got, int want, bool held_back)
{
    q->held_back = held_back;
    if (got > 0) {
        q->pauses = 0;
        q->arming = false;
        q->promised = q->told = false;
        q->refused_ms = REFUSED_MS;
        if (q->published != QUEUE_RUNNING)
            listen_publish(q, QUEUE_RUNNING);
    }
    if (got < (size_t)want && q->asked == 0)
        q->hungry = false;
}

void queue_ended(struct queue *q)
{
    // The place is ours to fill: the claim goes along with the end.
    if (q->held_back)
        q->hungry = q->lane_count > 0;
    queue_go_on(q);
}

void queue_fiber_done(struct queue *q, struct fiber *f, int ran, bool children,
                      bool others, bool held_back)
{
    q->held_back = held_back;
    if (ran > 0) {
        q->pauses = 0;
        q->arming = false;
        q->promised = q->told = false;
        q->refused_ms = REFUSED_MS;
        if (q->published != QUEUE_RUNNING)
            listen_publish(q, QUEUE_RUNNING);
        if (q->state == QUEUE_SCHEDULED)
            set_state(q, QUEUE_RUNNING);
        look_again(q);
    }
    if (f->mode == FIBER_CHILD) {
        q->kin_moved = q->kin_moved || ran > 0;
        q->child_hungry = ran > 0;
        // The tree is done, as far as can be seen from here: on to the next.
        if (ran == 0 && q->kin_moved && !any_fiber(q, FIBER_CHILD, FIBER_BUSY)) {
            q->kin_moved = false;
            q->top_hungry = true;
        }
    } else {
        q->top_hungry = ran > 0;
        q->child_hungry = children && (ran > 0 || f->mode == FIBER_TOP) && q->serial;
    }
    if (others && q->lane_count > 0)
        q->hungry = true;
    if (q->state == QUEUE_IDLE && (q->hungry || q->top_hungry || q->child_hungry))
        set_state(q, QUEUE_RUNNING);
    queue_go_on(q);
}

// There is something in SQL here, though perhaps of another queue's command.
static void kick_fibers(struct queue *q)
{
    bool had_sql = q->has_sql;
    q->has_sql = true;
    queue_kick(q);
    q->has_sql = had_sql;
}

void queue_fiber_failed(struct queue *q)
{
    q->failed_ms = loop_now_ms();
    queue_go_on(q);
}

void queue_fiber_rested(struct queue *q)
{
    if (daemon_may_claim(q->d))
        kick_fibers(q);
}

void queue_looked(struct queue *q, bool sql, bool other, int due_in_ms)
{
    if (q->sql_asked) {
        q->sql_asked = false;
        q->sql_seen = sql;
        if (sql)
            look_again(q);
        queue_go_on(q);
    }
    if (q->state != QUEUE_IDLE && q->state != QUEUE_SCHEDULED)
        return;
    if ((sql && !q->has_sql && q->fiber_count > 0) || (other && q->lane_count > 0) ||
        (sql && q->has_sql) || due_in_ms == 0) {
        q->promised = true;
        q->sql_seen = q->sql_seen || sql;
        if (sql)
            kick_fibers(q);
        else
            queue_kick(q);
        return;
    }
    q->due_in_ms = due_in_ms;
    q->quiet = true;
    set_state(q, is_under_way(q) || due_in_ms >= 0 ? QUEUE_SCHEDULED : QUEUE_IDLE);
    if (due_in_ms >= 0)
        loop_timer_start(q->timer, due_in_ms);
    else if (!q->d->listen.works)
        loop_timer_start(q->timer, POLL_MS);
    daemon_check(q->d);
}

bool queue_is_stopped(const struct queue *q)
{
    return !is_under_way(q) && q->asked == 0;
}

// What a lost call had leased is out of sight until maintenance has found it.
static bool is_recovering(const struct queue *q)
{
    for (size_t i = 0; i < q->fiber_count; i++)
        if (q->fibers[i]->state == FIBER_RESTING)
            return true;
    return q->failed_ms != 0 && loop_now_ms() - q->failed_ms < RECOVER_MS;
}

bool queue_is_quiet(const struct queue *q)
{
    return q->quiet && queue_is_stopped(q) && !q->publishing && !is_recovering(q) &&
           (q->state == QUEUE_IDLE || q->state == QUEUE_SCHEDULED);
}

// ---------------------------------------------------------------------- life

struct queue *queue_new(struct daemon *d, const char *name, int id)
{
    struct queue *q = xcalloc(1, sizeof *q);
    q->d = d;
    q->name = xstrdup(name);
    q->id = id;
    q->published = -1;
    q->due_in_ms = -1;
    q->refused_ms = REFUSED_MS;
    q->timer = loop_event_new(d->base, -1, 0, on_timer, q);
    q->ramp = loop_event_new(d->base, -1, 0, on_ramp, q);
    return q;
}

void queue_free(struct queue *q)
{
    while (q->fiber_count > 0)
        drop_fiber(q, q->fiber_count - 1);
    free(q->fibers);
    loop_event_clear(&q->timer);
    loop_event_clear(&q->ramp);
    free(q->lanes);
    free(q->name);
    free(q);
}

// None is disturbed in its call: those too many go when theirs has returned
// (trim_fibers), and a new duty is that of the next call.
static void configure_fibers(struct queue *q, bool serial)
{
    size_t n = (size_t)q->size;
    q->serial = serial;
    trim_fibers(q);
    if (q->fiber_count < n)
        q->fibers = xrealloc(q->fibers, n * sizeof(q->fibers[0]));
    while (q->fiber_count < n) {
        struct fiber *f = xcalloc(1, sizeof *f);
        fiber_init(f, q, FIBER_ANY);
        q->fibers[q->fiber_count++] = f;
    }
    give_duties(q);
}

// Lanes 2 and 3 are those of all commands that are run outside and have no line
// of their own; who serves them gets what has one because of a limit as well. Native
// commands always have one. Children of commands of other queues may be in this one,
// so all commands count.
static void configure_lanes(struct queue *q, const struct registry *r)
{
    q->lanes = xrealloc(q->lanes, (2 * r->command_count + 2) * sizeof q->lanes[0]);
    q->lane_count = 0;
    q->lanes[q->lane_count++] = 2;
    q->lanes[q->lane_count++] = 3;
    q->has_other = false;
    q->has_sql = false;
    for (size_t i = 0; i < r->command_count; i++) {
        const struct command *c = &r->commands[i];
        bool own = strcmp(c->queue, q->name) == 0;
        if (command_is_sql(c)) {
            q->has_sql = q->has_sql || own;
        } else if (kind_can_run(q->d, c)) {
            q->has_other = q->has_other || own;
            if (c->lane > 3 && strcmp(c->kind, "native") == 0) {
                q->lanes[q->lane_count++] = c->lane;
                q->lanes[q->lane_count++] = c->lane + 1;
            }
        }
    }
}

void queue_configure(struct queue *q, const struct registry *r,
                     const struct registry_queue *rq, int size)
{
    q->gone = rq == NULL;
    if (q->gone) {
        q->hungry = q->top_hungry = q->child_hungry = false;
        return;
    }
    q->size = size;
    configure_lanes(q, r);
    configure_fibers(q, rq->top_concurrency == 1);
}
