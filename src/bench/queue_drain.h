// SPDX-License-Identifier: Apache-2.0
//
// One drain: loads tasks, then claims and finishes all of them. Only the latter
// is timed. Fails unless every task was handed out once and completed once.

#ifndef PGKIN_BENCH_QUEUE_DRAIN_H
#define PGKIN_BENCH_QUEUE_DRAIN_H

#include "bench/load.h"
#include "bench/meter.h"
#include "bench/samples.h"

struct queue_drain_options {
    enum load_into into;
    const char *apart;     // the tasks of this command are counted apart; may be NULL
    struct samples *calls; // gets how long each exchange took, in ms; may be NULL
};

// Tasks per second; NaN: not known.
struct queue_drain_rates {
    double all;   // see pace.h
    double first; // of the first tenth
    double last;
    double others; // of all that are not counted apart, until the last was in hand
    int64_t apart; // how many were
};

// As the options of the run say, its holder included.
bool queue_drain_run(struct bench *b, const struct queue_drain_options *o,
                     struct meter *m, struct queue_drain_rates *out, struct err *e);

#endif
