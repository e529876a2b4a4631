// SPDX-License-Identifier: Apache-2.0
//
// Consumers: the claiming half of a worker, whose handlers do nothing. Each has
// a session and runs the exchange loop: claim a batch, look at its payloads,
// finish it and claim the next in one call. One more session beats, maintains
// and listens.
//
// A pool that sleeps keeps this protocol with producers, who notify only while
// somebody sleeps:
//
//           all found nothing          still nothing
//   running ----------------> arming ------------------> asleep
//      ^   set the cell to 1,    |    wait: notified,      |
//      |   then look once more   |    or time to look      |
//      +-------------------------+ <--- look again --------+
//        found some: set it to 0      (notified: running)

#ifndef PGKIN_BENCH_POOL_H
#define PGKIN_BENCH_POOL_H

#include <stdint.h>

#include "bench/client.h"
#include "bench/samples.h"
#include "lib/exchange.h"

enum pool_state {
    POOL_STOPPED,
    POOL_RUNNING,
    POOL_ARMING,
    POOL_ASLEEP,
};

struct pool_options {
    int connections;
    int batch;
    enum bench_sync sync;
    bool sleeps; // else it looks again all the time
    struct samples
        *calls; // NULL, or how long each exchange took that did something, in ms
    void (*on_task)(void *arg, const struct exchange_task *t);
    void (*on_finished)(void *arg, size_t n); // so many have ended, committed
    void *arg;
};

struct consumer {
    struct pool *pool;
    struct client *client;
    struct exchange ends;
    struct arena arena;
    int64_t sent_us;
    bool busy;
};

struct pool {
    struct bench *b;
    struct pool_options opt;
    struct clients clients; // one for each consumer
    struct clients control;
    struct consumer *consumers;
    int64_t worker_id;
    enum pool_state state;
    bool notified;  // while arming
    unsigned looks; // since it fell asleep
    struct event *look;
    struct event *beat;
};

// Opens the sessions. pool_close() in any case.
bool pool_open(struct pool *p, struct bench *b, const struct pool_options *o,
               struct err *e);
void pool_close(struct pool *p);

void pool_start(struct pool *p);

// Stops claiming; everything claimed must have been finished.
bool pool_stop(struct pool *p, struct err *e);

// A registered worker, for those who claim without a pool.
bool pool_register_worker(struct bench *b, int64_t *worker_id, struct err *e);
bool pool_release_worker(struct bench *b, int64_t worker_id, struct err *e);

#endif
