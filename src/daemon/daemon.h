// SPDX-License-Identifier: Apache-2.0
//
// The worker: one thread with an event loop. What it is made of, one file each:
//
//   daemon.c     life: starting, working, finishing, leaving
//   control.c    one connection for what is not a task: registration, heartbeat,
//                maintenance, the registry, cancel requests, exclusive mode
//   listen.c     notifications, and whether they arrive at all
//   registry.c   queues and commands as the database has them
//   queue.c      the loop of one queue: idle, running, scheduled, saturated
//   fiber.c      a connection that runs handlers in SQL
//   pump.c       the exchange: ends go to the server, tasks come back
//   attempt.c    one try at a task outside the database
//   run_KIND.c   how each kind of handler is run (kind.h)
//   serve.c      /healthz and /readyz
//
// Connections: control, one or two for the exchange (the first of them listens
// too), and those of the fibers, which are opened when there is SQL to run.
//
// Everything here runs in the thread of daemon_run(); only daemon_stop() may be
// called from others, and from signal handlers.

#ifndef PGKIN_DAEMON_DAEMON_H
#define PGKIN_DAEMON_DAEMON_H

#include <event2/event.h>
#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#include "core/conf.h"
#include "core/conn.h"
#include "core/err.h"
#include "core/log.h"
#include "core/machine.h"

struct daemon;
struct native_handler;

#define DAEMON_GRACE_MS 30000

// "Q:N" of the command line.
struct daemon_queue_option {
    const char *name;
    int size; // 0: the queue's default_concurrency
};

// Borrowed until daemon_free(), but for the strings of the first two, which
// are copied.
struct daemon_options {
    const char *conninfo;
    const char *name; // shown to people; NULL: the host's name
    const struct daemon_queue_option *queues;
    size_t queue_count; // 0: all
    bool exclusive;
    bool stop_when_idle;
    bool poll_only;
    int64_t grace_ms;    // how long work may go on after the first stop
    bool leaves_process; // the process ends after daemon_free()
    const char *listen;  // ADDR:PORT for health checks; NULL: none
    const struct log *log;
    const struct conf *conf;
    const struct native_handler *natives; // besides the built-in ones
    size_t native_count;
    // Called once, when the worker is registered and serves its queues.
    void (*on_ready)(void *arg);
    // Called about twice a second, as long as the loop turns.
    void (*on_tick)(void *arg);
    void *arg;
};

enum daemon_state {
    DAEMON_STARTING,
    DAEMON_WORKING,
    DAEMON_FINISHING,    // claims nothing more; work goes on
    DAEMON_HANDING_BACK, // work is stopped and handed back
    DAEMON_LEAVING,      // the last ends are recorded, the worker signs off
    DAEMON_STOPPED,
};

struct daemon_status {
    enum daemon_state state;
    int64_t worker_id; // 0: not registered
    bool connected;
    bool listening; // false: polls
    size_t running; // tasks
    uint64_t completed;
    uint64_t failed;
};

struct daemon *daemon_new(const struct daemon_options *o, struct err *e);
void daemon_free(struct daemon *d); // NULL is allowed

// Works until it is stopped. True: everything was finished. False with `e`
// filled: it could not go on, or work had to be handed back.
bool daemon_run(struct daemon *d, struct err *e);

// Asks it to stop: once, to finish what it has begun; twice, to hand it back.
// From any thread, and from a signal handler.
void daemon_stop(struct daemon *d);

// Reads the registry again.
void daemon_reload(struct daemon *d);

// From any thread.
void daemon_get_status(struct daemon *d, struct daemon_status *out);

const struct machine *daemon_machine(void);
const struct machine *queue_machine(void);
const struct machine *fiber_machine(void);
const struct machine *attempt_machine(void);

#endif
