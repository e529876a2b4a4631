// SPDX-License-Identifier: Apache-2.0
//
// C handlers that every worker has:
//   select worker.register_command('nothing', p_kind => 'native', p_handler => 'noop');

#include <jansson.h>
#include <time.h>

#include "daemon/run_native.h"

static enum pgkin_outcome noop(pgkin_task *t, void *arg)
{
    (void)t;
    (void)arg;
    return PGKIN_COMPLETED;
}

// The payload is the result.
static enum pgkin_outcome echo(pgkin_task *t, void *arg)
{
    (void)arg;
    pgkin_task_set_result(t, pgkin_task_payload(t));
    return PGKIN_COMPLETED;
}

static int64_t read_ms(const pgkin_task *t)
{
    json_t *payload = json_loads(pgkin_task_payload(t), 0, NULL);
    int64_t ms = json_integer_value(json_object_get(payload, "ms"));
    json_decref(payload);
    return ms;
}

// {"ms": 250}
static enum pgkin_outcome sleep_ms(pgkin_task *t, void *arg)
{
    (void)arg;
    int64_t all = read_ms(t);
    for (int64_t slept = 0; slept < all; slept += 10) {
        if (pgkin_task_should_stop(t)) {
            pgkin_task_set_error(t, "stopped");
            return PGKIN_FAILED;
        }
        if (slept % 250 == 0 && slept > 0)
            pgkin_task_report_progress(t, (double)slept / (double)all, "asleep");
        int64_t ms = all - slept < 10 ? all - slept : 10;
        nanosleep(&(struct timespec){.tv_nsec = ms * 1000000}, NULL);
    }
    return PGKIN_COMPLETED;
}

static enum pgkin_outcome fail(pgkin_task *t, void *arg)
{
    (void)arg;
    pgkin_task_set_error(t, "failed as told");
    return PGKIN_FAILED;
}

const struct native_handler native_builtins[] = {
    {"noop", noop, NULL},
    {"echo", echo, NULL},
    {"sleep", sleep_ms, NULL},
    {"fail", fail, NULL},
};
const size_t native_builtin_count = sizeof native_builtins / sizeof native_builtins[0];
