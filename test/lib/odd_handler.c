// SPDX-License-Identifier: Apache-2.0
//
// A worker whose handler says things that no server can take: what it says is
// the first key of the payload. odd_handler CONNINFO; stops when idle.

#include <pgkin.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#define DEPTH 100000

static const struct {
    const char *key, *result, *error;
    int outcome;
    int64_t delay_ms;
} sayings[] = {
    {"malformed", "{nonsense", NULL, PGKIN_COMPLETED, 0},
    {"empty", "", NULL, PGKIN_COMPLETED, 0},
    {"bytes", "\"\xff\"", NULL, PGKIN_COMPLETED, 0},
    {"zero", "\"\\u0000\"", NULL, PGKIN_COMPLETED, 0},
    {"number", "1e999999", NULL, PGKIN_COMPLETED, 0},
    {"error", NULL, "bad \xff error", PGKIN_FAILED, 0},
    {"outcome", NULL, NULL, 77, 0},
    {"negative", NULL, NULL, -1, 0},
    {"late", NULL, NULL, PGKIN_SNOOZE, INT64_MAX},
    {"later", NULL, "not now", PGKIN_FAILED, INT64_MAX},
};

static enum pgkin_outcome be_odd(pgkin_task *t, void *arg)
{
    (void)arg;
    const char *key = pgkin_task_payload(t) + strlen("{\"");
    for (size_t i = 0; i < sizeof sayings / sizeof sayings[0]; i++) {
        size_t len = strlen(sayings[i].key);
        if (strncmp(key, sayings[i].key, len) != 0 || key[len] != '"')
            continue;
        pgkin_task_set_result(t, sayings[i].result);
        pgkin_task_set_error(t, sayings[i].error);
        pgkin_task_set_delay(t, sayings[i].delay_ms);
        return (enum pgkin_outcome)sayings[i].outcome;
    }
    if (strncmp(key, "deep", 4) == 0) {
        char *deep = calloc(2, DEPTH + 1);
        if (deep == NULL)
            return PGKIN_FAILED;
        memset(deep, '[', DEPTH);
        memset(deep + DEPTH, ']', DEPTH);
        pgkin_task_set_result(t, deep);
        free(deep);
    }
    return PGKIN_COMPLETED;
}

static void write_line(void *arg, enum pgkin_log_level level, const char *line)
{
    (void)arg;
    (void)level;
    fprintf(stderr, "%s\n", line);
}

int main(int argc, char **argv)
{
    const struct pgkin_worker_options o = {.conninfo = argc > 1 ? argv[1] : NULL,
                                           .stop_when_idle = true,
                                           .log = write_line,
                                           .log_level = PGKIN_LOG_INFO};
    struct pgkin_error e;
    pgkin_worker *w = pgkin_worker_new(&o, &e);
    bool ok = w != NULL && pgkin_worker_handle(w, "odd", be_odd, NULL, &e) &&
              pgkin_worker_run(w, &e);
    pgkin_worker_free(w);
    return ok ? 0 : 1;
}
