// SPDX-License-Identifier: Apache-2.0
//
// How fast a drain went. Sessions are new in each one and learn their plans in the
// first tenth, which a worker does once in its life: it does not count.

#ifndef PGKIN_BENCH_PACE_H
#define PGKIN_BENCH_PACE_H

#include <stdint.h>

struct pace_mark {
    int64_t us;
    int64_t finished;
};

struct pace {
    int64_t tasks;
    int64_t start_us;
    struct pace_mark tenth;       // when the first tenth was finished,
    struct pace_mark nine_tenths; // when the last began,
    struct pace_mark end;
};

// So many are finished now.
void pace_note(struct pace *p, int64_t finished);

// Tasks per second after the first tenth, in it, and in the last; NaN: not known.
double pace_rate(const struct pace *p);
double pace_first(const struct pace *p);
double pace_last(const struct pace *p);

double pace_of(int64_t tasks, int64_t us);

#endif
