// SPDX-License-Identifier: Apache-2.0
//
// `pgkin bench`: measures the queue on a real server, through the same code
// that a worker uses. A scenario is a row of a table (bench.c) and a file.

#ifndef PGKIN_BENCH_BENCH_H
#define PGKIN_BENCH_BENCH_H

#include <libpq-fe.h>
#include <stdbool.h>
#include <stddef.h>

#include "bench/report.h"
#include "core/err.h"
#include "core/log.h"

enum bench_holder {
    HOLDER_NONE,
    HOLDER_READ,  // an idle REPEATABLE READ transaction
    HOLDER_WRITE, // an idle transaction that has written
    HOLDER_DUMP,  // a snapshot and a lock on every table, as pg_dump has them
};

enum bench_sync {
    SYNC_UNSET, // on; a scenario that compares both does both
    SYNC_ON,
    SYNC_OFF,
};

// What was asked for. A negative number stands for the scenario's default.
struct bench_options {
    int tasks;
    int batch;
    int connections; // that claim; of `enqueue`, that enqueue
    int producers;   // that enqueue while others claim
    int seconds;
    int rate; // enqueued per second
    int rounds;
    int payload_bytes;
    const char *plans; // where to write plans; NULL: bench/plans
    bool single;       // tasks are enqueued one by one, not in bulk
    bool baseline;
    enum bench_holder holder;
    enum bench_sync sync;
    bool create;   // in a database made for it
    bool force;    // also where others have tasks
    bool progress; // a line on standard error
    const struct log *log;
    // Opens a blocking connection; the caller of bench_run() has the policy.
    PGconn *(*open)(const char *conninfo, struct err *e);
};

struct bench; // context.h

struct bench_scenario {
    const char *name;
    // The numbers, for those that were not given; the holder, for the caller.
    struct bench_options defaults;
    bool (*run)(struct bench *b, struct report *r, struct err *e);
};

extern const struct bench_scenario bench_scenarios[]; // ends with a row without a name

// NULL when there is none of that name.
const struct bench_scenario *bench_find_scenario(const char *name);

// Runs it on the database that `conninfo` names, and cleans up after it, also
// when it failed. SIGINT and SIGTERM are failures meanwhile.
bool bench_run(const struct bench_scenario *s, const struct bench_options *o,
               const char *conninfo, struct report *r, struct err *e);

// The names of the enums above, as on the command line.
bool bench_holder_parse(const char *s, enum bench_holder *out);
bool bench_sync_parse(const char *s, enum bench_sync *out); // on, off
const char *bench_holder_name(enum bench_holder h);

#endif
