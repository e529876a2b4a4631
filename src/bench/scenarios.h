// SPDX-License-Identifier: Apache-2.0
//
// The scenarios, each in the file of its name; latency.c has the first two,
// cost.c the next but two, limits.c those of limits and plans.c the last.

#ifndef PGKIN_BENCH_SCENARIOS_H
#define PGKIN_BENCH_SCENARIOS_H

#include "bench/context.h"
#include "bench/report.h"

bool bench_latency(struct bench *b, struct report *r, struct err *e);
bool bench_held_snapshot(struct bench *b, struct report *r, struct err *e);
bool bench_drain(struct bench *b, struct report *r, struct err *e);
bool bench_enqueue(struct bench *b, struct report *r, struct err *e);
bool bench_backlog(struct bench *b, struct report *r, struct err *e);
bool bench_history(struct bench *b, struct report *r, struct err *e);
bool bench_concurrency_baseline(struct bench *b, struct report *r, struct err *e);
bool bench_concurrency_enabled(struct bench *b, struct report *r, struct err *e);
bool bench_concurrency_mixed(struct bench *b, struct report *r, struct err *e);
bool bench_concurrency_high(struct bench *b, struct report *r, struct err *e);
bool bench_concurrency_plans(struct bench *b, struct report *r, struct err *e);

#endif
