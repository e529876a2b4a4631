// SPDX-License-Identifier: Apache-2.0

#include "bench/bench.h"

#include <string.h>

#include "bench/context.h"
#include "bench/scenarios.h"
#include "bench/setup.h"

// A number that is not here is not used by the scenario.
const struct bench_scenario bench_scenarios[] = {
    {"drain",
     {.tasks = 200000, .batch = 500, .connections = 2, .rounds = 1},
     bench_drain},
    {"enqueue",
     {.tasks = -1, .connections = 2, .seconds = 1, .rounds = 5},
     bench_enqueue},
    {"latency",
     {.batch = 500, .connections = 2, .producers = 4, .seconds = 10, .rate = 500},
     bench_latency},
    {"held-snapshot",
     {.batch = 500,
      .connections = 2,
      .producers = 4,
      .seconds = 60,
      .rate = 2000,
      .holder = HOLDER_READ},
     bench_held_snapshot},
    {"backlog", {.tasks = 1000000, .batch = 100}, bench_backlog},
    {"history", {.tasks = 5000000, .batch = 100}, bench_history},
    // As many in hand as a limit of 10, or of 500, allows; with no limit as well.
    {"concurrency-baseline",
     {.tasks = 50000, .batch = 5, .connections = 2, .rounds = 1},
     bench_concurrency_baseline},
    {"concurrency-enabled",
     {.tasks = 50000, .batch = 5, .connections = 2, .rounds = 1},
     bench_concurrency_enabled},
    {"concurrency-mixed",
     {.tasks = 100000, .batch = 100, .connections = 2, .rounds = 1},
     bench_concurrency_mixed},
    {"concurrency-high",
     {.tasks = 100000, .batch = 250, .connections = 2, .rounds = 1},
     bench_concurrency_high},
    {"concurrency-plans", {.tasks = 1000000, .batch = 100}, bench_concurrency_plans},
    {0},
};

const struct bench_scenario *bench_find_scenario(const char *name)
{
    for (const struct bench_scenario *s = bench_scenarios; s->name != NULL; s++)
        if (strcmp(s->name, name) == 0)
            return s;
    return NULL;
}

// --------------------------------------------------------------------- names

static const char *const holder_names[] = {
    [HOLDER_NONE] = "none",
    [HOLDER_READ] = "read",
    [HOLDER_WRITE] = "write",
    [HOLDER_DUMP] = "dump",
};

bool bench_holder_parse(const char *s, enum bench_holder *out)
{
    for (size_t i = 0; i < sizeof holder_names / sizeof holder_names[0]; i++)
        if (strcmp(s, holder_names[i]) == 0) {
            *out = (enum bench_holder)i;
            return true;
        }
    return false;
}

const char *bench_holder_name(enum bench_holder h)
{
    return holder_names[h];
}

bool bench_sync_parse(const char *s, enum bench_sync *out)
{
    *out = strcmp(s, "on") == 0 ? SYNC_ON : strcmp(s, "off") == 0 ? SYNC_OFF : SYNC_UNSET;
    return *out != SYNC_UNSET;
}

// ------------------------------------------------------------------- options

static bool check_range(const char *name, int value, int min, int max, struct err *e)
{
    if (value < 0 || (value >= min && value <= max)) // negative: not given
        return true;
    return err_usage(e, "--%s must be from %d to %d", name, min, max);
}

static bool check_options(const struct bench_options *o, struct err *e)
{
    return check_range("tasks", o->tasks, 1, 100000000, e) &&
           check_range("batch", o->batch, 1, 10000, e) &&
           check_range("connections", o->connections, 1, 100, e) &&
           check_range("producers", o->producers, 1, 100, e) &&
           check_range("seconds", o->seconds, 1, 86400, e) &&
           check_range("rate", o->rate, 1, 100000, e) &&
           check_range("rounds", o->rounds, 1, 1000, e) &&
           check_range("payload-bytes", o->payload_bytes, 0, 100000, e);
}

static void fill(int *value, int fallback)
{
    if (*value < 0)
        *value = fallback;
}

static void fill_options(struct bench_options *o, const struct bench_options *defaults)
{
    fill(&o->tasks, defaults->tasks);
    fill(&o->batch, defaults->batch);
    fill(&o->connections, defaults->connections);
    fill(&o->producers, defaults->producers);
    fill(&o->seconds, defaults->seconds);
    fill(&o->rate, defaults->rate);
    fill(&o->rounds, defaults->rounds);
    fill(&o->payload_bytes, 0);
}

// ----------------------------------------------------------------------- run

bool bench_run(const struct bench_scenario *s, const struct bench_options *o,
               const char *conninfo, struct report *r, struct err *e)
{
    struct bench b;
    struct setup setup;
    struct bench_options complete = *o;
    struct err later = ERR_INIT;
    if (!check_options(o, e))
        return false;
    fill_options(&complete, &s->defaults);
    bench_context_init(&b, s->name, &complete);
    bool ok = setup_begin(&setup, &b, conninfo, e);
    if (ok) {
        report_add_text(r, "scenario", s->name);
        report_add_text(r, "server_version",
                        PQparameterStatus(b.control, "server_version"));
        ok = s->run(&b, r, e);
    }
    bench_forgive(&b);
    // What failed first is what is told.
    if (!setup_end(&setup, &b, ok ? e : &later))
        ok = false;
    bench_context_clear(&b);
    return ok;
}
