// SPDX-License-Identifier: Apache-2.0
//
// The database of a run: an existing one, or one that is made for it and
// dropped; with the schema, the benchmark's queue and its command in it.

#ifndef PGKIN_BENCH_SETUP_H
#define PGKIN_BENCH_SETUP_H

#include "bench/context.h"

struct setup {
    PGconn *maker; // from where the throw-away database is made and dropped
    char *drop;    // the statement that drops it
    bool registered;
};

// Fills b->conninfo, b->control, b->queue_id and b->local. Refuses a database
// with tasks of others, unless forced. setup_end() in any case.
bool setup_begin(struct setup *s, struct bench *b, const char *conninfo, struct err *e);

// Cleans up as far as what is append-only allows. False with `e` filled when
// that did not work.
bool setup_end(struct setup *s, struct bench *b, struct err *e);

#endif
