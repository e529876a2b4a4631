// SPDX-License-Identifier: Apache-2.0
//
// What a stretch of work costs: time, the server's CPU, the client's CPU, WAL
// and transactions.
//
// The server's CPU is that of the processes behind the watched sessions, so
// that autovacuum and others do not count; it is known when they run on this
// machine. WAL is the whole server's. Full page images, which a checkpoint
// shortly before would bring in numbers, are counted apart where the server
// can tell (PostgreSQL 15 and later).

#ifndef PGKIN_BENCH_METER_H
#define PGKIN_BENCH_METER_H

#include <stddef.h>
#include <stdint.h>

#include "bench/client.h"
#include "bench/report.h"

#define METER_SETS_MAX 4

struct meter_reading {
    int64_t us;
    double server_us; // NaN: not known
    double client_us;
    double wal_bytes;
    double wal_fpi; // NaN: not known
    int64_t commits;
};

// Starts as zeros; watch something first. Several stretches add up.
struct meter {
    struct bench *b;
    struct clients *sets[METER_SETS_MAX]; // borrowed
    size_t set_count;
    bool control; // watch the control connection's process too
    struct meter_reading start;
    struct meter_reading sum; // `us` is the time that was measured
};

// The sessions must be open from meter_start() to meter_stop().
void meter_watch(struct meter *m, struct bench *b, struct clients *set);
void meter_watch_control(struct meter *m, struct bench *b);
void meter_forget(struct meter *m); // the sessions, not the sums

bool meter_start(struct meter *m, struct err *e);
bool meter_stop(struct meter *m, struct err *e);

// Adds tasks, seconds, tasks_per_s (NaN: taken from the sums),
// server_us_per_task, client_us_per_task, wal_bytes_per_task, wal_fpi and
// commits_per_task.
void meter_report(const struct meter *m, int64_t tasks, double tasks_per_s,
                  struct report *r);

// The CPU time that a process has used, in microseconds; NaN when that cannot
// be seen.
double meter_read_cpu(int pid);

// Whether the process behind a connection runs here, and can be looked at.
bool meter_is_local(const PGconn *pg);

#endif
