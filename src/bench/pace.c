// SPDX-License-Identifier: Apache-2.0

#include "bench/pace.h"

#include <math.h>

#include "bench/context.h"

void pace_note(struct pace *p, int64_t finished)
{
    p->end = (struct pace_mark){bench_now_us(), finished};
    if (p->tenth.us == 0 && finished >= p->tasks / 10)
        p->tenth = p->end;
    if (p->nine_tenths.us == 0 && finished >= p->tasks - p->tasks / 10)
        p->nine_tenths = p->end;
}

double pace_of(int64_t tasks, int64_t us)
{
    return tasks > 0 && us > 0 ? (double)tasks * 1e6 / (double)us : NAN;
}

double pace_rate(const struct pace *p)
{
    if (p->tenth.us == 0 || p->tenth.finished == p->end.finished) // all in one batch
        return pace_of(p->end.finished, p->end.us - p->start_us);
    return pace_of(p->end.finished - p->tenth.finished, p->end.us - p->tenth.us);
}

double pace_first(const struct pace *p)
{
    return pace_of(p->tenth.finished, p->tenth.us - p->start_us);
}

double pace_last(const struct pace *p)
{
    return pace_of(p->end.finished - p->nine_tenths.finished,
                   p->end.us - p->nine_tenths.us);
}
