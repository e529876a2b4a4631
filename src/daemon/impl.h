// SPDX-License-Identifier: Apache-2.0
//
// The parts of struct daemon, for the files of src/daemon only.

#ifndef PGKIN_DAEMON_IMPL_H
#define PGKIN_DAEMON_IMPL_H

#include <stdatomic.h>

#include "core/buf.h"
#include "core/loop.h"
#include "daemon/daemon.h"
#include "daemon/kind.h"
#include "daemon/registry.h"
#include "lib/exchange.h"

struct serve;

// ------------------------------------------------------------------ attempts

enum attempt_state {
    ATTEMPT_WAITING, // claimed, not begun
    ATTEMPT_RUNNING,
    ATTEMPT_STOPPING,
    ATTEMPT_ENDED,
};

// Why an attempt is stopped; the reason decides how its end is recorded.
enum attempt_stop {
    STOP_NONE,
    STOP_CANCEL,  // ends canceled
    STOP_TIMEOUT, // fails
    STOP_RELEASE, // handed back
    STOP_LOST,    // not ours any more: nothing is recorded
};

// What came in one answer shares its memory and its view of the registry.
struct batch {
    struct arena arena;
    struct registry *registry;
    size_t left; // attempts that have not ended
};

struct attempt_private {
    struct attempt pub;
    struct queue *queue;
    struct batch *batch;
    enum attempt_state state;
    enum attempt_stop stop;
    int64_t taken_us; // when its claim was answered
    int64_t started_us;
    struct event *deadline; // NULL: none
    void *kind_self;
    // In the list of the queue: those waiting or those running.
    struct attempt_private *prev, *next;
};

struct attempt_list {
    struct attempt_private *first, *last;
    size_t count;
};

// Takes the answer of an exchange into its own hands: `answer` and its arena
// belong to the batch from now on.
void attempts_take(struct daemon *d, struct queue *q, struct exchange_answer *answer,
                   struct arena *arena);
// Begins as many of the queue's waiting attempts as it has room for.
void attempts_start(struct queue *q);
// Hands back what has not begun and has waited for so long. Returns how many.
size_t attempts_give_back(struct queue *q, int64_t waited_us);
void attempt_stop(struct attempt_private *a, enum attempt_stop why);
// Stops all: those waiting end at once.
void attempts_stop_all(struct daemon *d, enum attempt_stop why);
struct attempt_private *attempt_find(struct daemon *d, int64_t lease_id, int64_t task_id);

// --------------------------------------------------------------------- kinds

struct kind_slot {
    const struct kind *kind;
    void *self; // NULL: not opened
};

void kinds_init(struct daemon *d);
void kinds_close(struct daemon *d);
struct kind_slot *kind_find(struct daemon *d, const char *name);
// Can this worker run the command? Of native ones only those it has.
bool kind_can_run(struct daemon *d, const struct command *c);

// -------------------------------------------------------------------- fibers

enum fiber_mode {
    FIBER_ANY, // top-level tasks and children
    FIBER_TOP,
    FIBER_CHILD,
};

enum fiber_state {
    FIBER_CLOSED, // no connection yet
    FIBER_IDLE,
    FIBER_BUSY,
    FIBER_RESTING, // after an error
};

struct fiber {
    struct queue *queue;
    enum fiber_mode mode;
    enum fiber_state state;
    struct conn *conn;
    struct event *rest;
    struct backoff backoff;
    int64_t called_ms; // when the call began
    int64_t used_ms;   // when it was opened, or last ran something
};

void fiber_init(struct fiber *f, struct queue *q, enum fiber_mode mode);
void fiber_clear(struct fiber *f);
bool fiber_is_free(const struct fiber *f); // closed or idle
void fiber_call(struct fiber *f);
void fiber_close(struct fiber *f); // an idle one

// -------------------------------------------------------------------- queues

enum queue_state {
    QUEUE_IDLE,
    QUEUE_RUNNING,
    QUEUE_SCHEDULED,
    QUEUE_SATURATED,
};

struct queue {
    struct daemon *d;
    char *name;
    int id;
    int size;  // most that may run at once, SQL and other handlers each
    bool gone; // not in the registry any more: nothing new is begun
    enum queue_state state;
    int published;       // what producers were told last; -1: nothing
    struct event *timer; // when to look again
    struct event *ramp;  // when to call another fiber
    bool publishing;     // producers are being told
    bool arming;         // they know: looking once more
    bool going;          // in queue_go_on()
    bool go_again;
    int pauses;     // looks in a row that found nothing
    bool promised;  // a look said that there is work
    bool held_back; // there is, but a limit is reached: it will be so for a while
    bool told;      // a notification brought us here, and nothing came of it yet
    int refused_ms; // when to look again after it could not be had
    bool quiet;     // the last look found nothing to do
    int due_in_ms;  // the next scheduled task; -1: none known

    // Outside the database
    bool has_other; // commands of this queue are run outside
    int64_t *lanes; // that this worker can serve
    size_t lane_count;
    bool hungry; // there may be more to claim
    int asked;   // tasks that exchanges under way may bring
    struct attempt_list waiting;
    struct attempt_list running;
    double mean_us; // of how long attempts take

    // In the database
    bool has_sql;
    bool sql_seen;  // there was work for fibers, of late
    bool sql_asked; // a look is to tell whether there is
    bool serial;    // one tree at a time: a top fiber and child fibers
    bool top_hungry;
    bool child_hungry;
    int64_t failed_ms; // when a fiber's call last failed; 0: never
    bool kin_moved;    // children were run since the top fiber last looked
    struct fiber **fibers;
    size_t fiber_count;
};

struct queue *queue_new(struct daemon *d, const char *name, int id);
void queue_free(struct queue *q);
// Takes over what the registry says.
void queue_configure(struct queue *q, const struct registry *r,
                     const struct registry_queue *rq, int size);
// There may be something to do: a notification, an end, a look.
void queue_kick(struct queue *q);
// Does what can be done now, and decides what comes next.
void queue_go_on(struct queue *q);
// How many more tasks to claim.
int queue_room(const struct queue *q);
void queue_claimed(struct queue *q, size_t got, int want, bool held_back);
void queue_ended(struct queue *q); // an attempt, so there may be room
void queue_fiber_done(struct queue *q, struct fiber *f, int ran, bool children,
                      bool others, bool held_back);
void queue_fiber_failed(struct queue *q);
void queue_fiber_rested(struct queue *q);
void queue_looked(struct queue *q, bool sql, bool other, int due_in_ms);
// Producers know what they were told.
void queue_published(struct queue *q);
// Hands back what was claimed ahead and then did not get its turn in time.
void queue_give_back(struct queue *q);
// Closes connections that were not needed for so long.
void queue_rest_fibers(struct queue *q, int64_t idle_ms);
bool queue_is_quiet(const struct queue *q);   // nothing runs, nothing is due
bool queue_is_stopped(const struct queue *q); // nothing runs

// ---------------------------------------------------------------------- pump

#define PUMP_CARRIERS 2

// One connection of the exchange, and what is under way on it.
struct carrier {
    struct daemon *d;
    struct conn *conn;
    struct exchange ends; // sent, or to be sent again
    bool busy;
    bool again;          // the ends were sent before: they may be recorded
    struct queue *queue; // that the claim is for; NULL: none
    int want;
    struct event *rest; // before trying again
    struct backoff backoff;
};

struct pump {
    struct carrier carriers[PUMP_CARRIERS];
    struct exchange ends; // not sent yet
    struct event *flush;
    bool flush_armed;
    bool flush_due;    // the ends have waited long enough
    bool full;         // the last claim got all it asked for
    size_t next_queue; // whose turn it is
};

bool pump_open(struct daemon *d, struct err *e);
void pump_close(struct daemon *d);
void pump_end(struct daemon *d, const struct attempt_private *a,
              const struct exchange_end *end);
// Sends what there is to send and claims what is wanted.
void pump_go_on(struct daemon *d);
bool pump_is_empty(const struct daemon *d);
struct conn *pump_conn(struct daemon *d); // the first: it listens

// ------------------------------------------------------------------- control

struct control {
    struct conn *conn;
    struct event *tick;
    int64_t worker_id;
    bool registering;
    bool beating;
    bool maintaining;
    bool reading; // the registry
    bool reread;  // it has changed meanwhile
    bool looking;
    bool look_again; // somebody asked meanwhile
    bool exclusive_held;
    unsigned ticks;
    int64_t report_ms;        // when the last report was logged
    int64_t beat_ms;          // when the last heartbeat was answered
    int64_t unknown_until_ms; // a claim may have been answered to nobody
};

bool control_open(struct daemon *d, struct err *e);
void control_close(struct daemon *d);
void control_read_registry(struct daemon *d);
void control_look(struct daemon *d);
void control_read_cancels(struct daemon *d);
void control_report_progress(struct daemon *d, int64_t task_id, int64_t lease_id,
                             double fraction, const char *message);
// There may be leases of ours of which we know nothing.
void control_expect_unknown(struct daemon *d);
// Their ends cannot be recorded.
void control_lose_leases(struct daemon *d, const struct exchange *ends);
void control_sign_off(struct daemon *d); // then daemon_signed_off()

// -------------------------------------------------------------------- listen

struct listen {
    bool works;     // a notification to ourselves has come back
    bool said;      // that it does not
    bool pooled;    // others use the same sessions
    unsigned probe; // number of the last one
    bool awaited;
    int64_t sent_ms;
};

void listen_open(struct daemon *d);
void listen_begin(struct daemon *d); // the worker is registered
void listen_probe(struct daemon *d); // now and then
void listen_up(struct daemon *d);
void listen_down(struct daemon *d);
void listen_notified(struct daemon *d, const char *channel, const char *payload);
// Tells producers whether to notify; calls queue_go_on() when they know.
void listen_publish(struct queue *q, enum queue_state state);

// -------------------------------------------------------------------- daemon

struct daemon {
    struct daemon_options opt;
    char *conninfo;
    char *name;
    char host[256];
    const struct log *log;
    struct event_base *base;
    enum daemon_state state;
    struct event *wake; // daemon_stop() and daemon_reload() from elsewhere
    int wake_fd;
    atomic_int stops; // asked to stop, so many times
    atomic_bool reload;
    int stops_seen;
    struct event *grace;
    bool handed_back;
    bool signing_off;
    struct err error; // why it could not go on
    bool ready;

    struct runtime rt;
    struct conn *steps;
    struct kind_slot *kinds;
    size_t kind_count;
    struct registry *registry;
    struct queue **queues;
    size_t queue_count;
    struct control control;
    struct pump pump;
    struct listen listen;
    struct serve *serve;

    atomic_uint_fast64_t completed, failed;
    atomic_size_t running;
    atomic_int state_seen;
    atomic_bool connected, listening;
    atomic_int_fast64_t worker_id_seen;
};

struct queue *daemon_find_queue(struct daemon *d, const char *name);
void daemon_use_registry(struct daemon *d, struct registry *r); // takes it
void daemon_registered(struct daemon *d, int64_t worker_id);
// All leases of the worker are gone.
void daemon_lost(struct daemon *d);
void daemon_signed_off(struct daemon *d);
void daemon_fail(struct daemon *d, const struct err *e);
// Something has ended: is it time for the next phase?
void daemon_check(struct daemon *d);
bool daemon_may_claim(const struct daemon *d);
struct conn *daemon_new_conn(struct daemon *d, const char *name,
                             void (*on_up)(struct conn *c, void *arg),
                             void (*on_down)(struct conn *c, const struct err *why,
                                             void *arg),
                             void (*on_notify)(struct conn *c, const char *channel,
                                               const char *payload, int pid, void *arg),
                             void *arg, bool unprepared, struct err *e);
int64_t daemon_now_us(void);

struct serve *serve_new(struct daemon *d, const char *address, struct err *e);
void serve_free(struct serve *s);

#endif
