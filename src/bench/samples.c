// SPDX-License-Identifier: Apache-2.0

#include "bench/samples.h"

#include <math.h>
#include <stdlib.h>

#include "core/buf.h"
#include "core/err.h"

void samples_clear(struct samples *s)
{
    free(s->values);
    *s = SAMPLES_INIT;
}

void samples_add(struct samples *s, double v)
{
    if (s->count == s->cap) {
        s->cap = s->cap == 0 ? 256 : 2 * s->cap;
        s->values = xrealloc(s->values, s->cap * sizeof s->values[0]);
    }
    s->values[s->count++] = v;
    s->sorted = false;
}

static int compare(const void *a, const void *b)
{
    double x = *(const double *)a;
    double y = *(const double *)b;
    return (x > y) - (x < y);
}

static void sort(struct samples *s)
{
    if (!s->sorted && s->count > 0)
        qsort(s->values, s->count, sizeof s->values[0], compare);
    s->sorted = true;
}

double samples_percentile(struct samples *s, double p)
{
    if (!(p > 0 && p <= 100))
        BUG("there is no percentile %g", p);
    if (s->count == 0)
        return NAN;
    sort(s);
    // Less a trifle: 95% of 100 must not become rank 96 by rounding up.
    size_t rank = (size_t)ceil(p / 100 * (double)s->count - 1e-9);
    return s->values[rank > 0 ? rank - 1 : 0];
}

double samples_median(struct samples *s)
{
    if (s->count == 0)
        return NAN;
    sort(s);
    return (s->values[(s->count - 1) / 2] + s->values[s->count / 2]) / 2;
}

double samples_mean(const struct samples *s)
{
    double sum = 0;
    for (size_t i = 0; i < s->count; i++)
        sum += s->values[i];
    return s->count > 0 ? sum / (double)s->count : NAN;
}
