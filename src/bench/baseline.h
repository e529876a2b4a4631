// SPDX-License-Identifier: Apache-2.0
//
// The same work on a single table with a mutable row per job, claimed with
// UPDATE … SKIP LOCKED: what the queue has to beat. Done well: a partial index
// in the order of claiming, statistics, batches of the same size, and likewise
// one round trip and one commit for a batch.

#ifndef PGKIN_BENCH_BASELINE_H
#define PGKIN_BENCH_BASELINE_H

#include "bench/meter.h"

// Loads and drains b->opt.tasks jobs; only the draining is metered. Fails when
// not every job was run exactly once. Gives the jobs per second as pace.h counts them.
bool baseline_drain(struct bench *b, struct meter *m, double *rate, struct err *e);

#endif
