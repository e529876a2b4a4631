// SPDX-License-Identifier: Apache-2.0
//
// Somebody who keeps a transaction open: the sessions whose snapshots keep dead
// rows from being removed.

#ifndef PGKIN_BENCH_HOLDER_H
#define PGKIN_BENCH_HOLDER_H

#include "bench/context.h"

// Begins to hold, as b->opt.holder says. *out is NULL for none, and on failure;
// else holder_end() ends it.
bool holder_begin(struct bench *b, PGconn **out, struct err *e);

// `ok` is how the work under it went, and what is returned; but false with `e`
// filled also when the holder was lost on the way: then nothing was held.
bool holder_end(struct bench *b, PGconn *holder, bool ok, struct err *e);

#endif
