// SPDX-License-Identifier: Apache-2.0
//
// Producers. In bulk: many payloads in one statement. One by one: each task in
// a transaction of its own, from a number of sessions that each keep a number
// of requests under way.

#ifndef PGKIN_BENCH_LOAD_H
#define PGKIN_BENCH_LOAD_H

#include <stdint.h>

#include "bench/client.h"
#include "core/buf.h"

#define LOAD_CHUNK 10000 // tasks per statement when loading in bulk

// Appends {"n":N}, padded to the wanted length.
void load_add_payload(struct buf *out, int64_t n, int payload_bytes);

// The number in such a payload; -1 when it is none.
int64_t load_read_payload(const char *payload);

// Appends the payloads first .. first + n - 1 as an array literal, or as rows
// for COPY.
void load_add_array(struct buf *out, int64_t first, int64_t n, int payload_bytes);
void load_add_rows(struct buf *out, int64_t first, int64_t n, int payload_bytes);

// Adds `tasks` by statements that take an array of payloads, without waiting
// for the disk. Updates the progress line.
bool load_bulk(struct bench *b, const char *query, int64_t tasks, struct err *e);

struct load_singles {
    const char *query; // takes one payload
    int64_t tasks;     // stop after so many; 0: no limit
    int64_t for_us;    // stop after this time; 0: no limit
    int depth;         // requests under way per session; 1: each waits for the last

    // Results.
    int64_t acked;
    double seconds;

    // Inside.
    int64_t sent;
    int64_t end_us;
    int64_t last_us; // of the last answer
};

bool load_run_singles(struct load_singles *l, struct clients *clients, struct err *e);

// The task ids that exist after this are greater.
bool load_last_task(struct bench *b, int64_t *out, struct err *e);

// Loads what the options say, into the queue or into the baseline's table: in
// bulk, or one by one from sessions of its own. Then both are analysed, as
// autovacuum would have done by the time anybody claims.
enum load_into {
    LOAD_QUEUE,
    LOAD_COMMANDS, // the queue, spread over the commands of limits.c
    LOAD_BASELINE,
};
bool load_tasks(struct bench *b, enum load_into into, int64_t tasks, struct err *e);

#endif
