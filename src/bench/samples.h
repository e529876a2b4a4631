// SPDX-License-Identifier: Apache-2.0
//
// Measured values and their percentiles. All values are kept: a run has a
// million of them at most, and the exact figure costs one sort.

#ifndef PGKIN_BENCH_SAMPLES_H
#define PGKIN_BENCH_SAMPLES_H

#include <stdbool.h>
#include <stddef.h>

struct samples {
    double *values;
    size_t count;
    size_t cap;
    bool sorted;
};

#define SAMPLES_INIT ((struct samples){0})

void samples_clear(struct samples *s);
void samples_add(struct samples *s, double v);

// The smallest value that at least p percent (above 0, up to 100) of all do not
// exceed (nearest rank): always a value that was measured. NaN when there is none.
double samples_percentile(struct samples *s, double p);
double samples_median(struct samples *s); // mean of the middle two of an even number
double samples_mean(const struct samples *s);

#endif
