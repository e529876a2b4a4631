// SPDX-License-Identifier: Apache-2.0
//
// Runs attempts of one kind without a queue: attempt_end() is the test's own and
// keeps what it is told. Include after cmocka.h.

#ifndef PGKIN_TEST_ATTEMPT_STUB_H
#define PGKIN_TEST_ATTEMPT_STUB_H

#include "daemon/kind.h"
#include "test_http_server.h"

struct trial {
    struct attempt attempt; // first
    struct command command;
    int ends;
    enum attempt_outcome outcome;
    char *error;  // NULL: none
    char *result; // NULL: none
    int64_t delay_ms;
};

void attempt_end(struct attempt *a, const struct attempt_result *r)
{
    struct trial *t = (struct trial *)a;
    t->ends++;
    t->outcome = r->outcome;
    t->error = r->error != NULL ? xstrdup(r->error) : NULL;
    t->result = r->result != NULL ? xstrdup(r->result) : NULL;
    t->delay_ms = r->delay_ms;
}

static inline void trial_init(struct trial *t, const struct kind *kind,
                              const char *payload)
{
    *t = (struct trial){
        .command = {.name = "c.d-e_f",
                    .queue = "default",
                    .kind = kind->name,
                    .max_response_bytes = 1 << 20},
        .attempt = {.task = {.task_id = 4711,
                             .attempt = 3,
                             .command = "c.d-e_f",
                             .payload = payload,
                             .payload_len = strlen(payload)},
                    .idempotency_key = "0198-4711",
                    .kind = kind},
    };
    t->attempt.command = &t->command;
}

static inline void trial_clear(struct trial *t)
{
    free(t->error);
    free(t->result);
    t->error = NULL;
    t->result = NULL;
    t->ends = 0;
}

// Runs it to its end, which comes once.
static inline void trial_run(struct trial *t, struct event_base *base, void *self)
{
    trial_clear(t);
    t->attempt.kind->start(self, &t->attempt);
    run_until(base, t->ends > 0);
    event_base_loop(base, EVLOOP_NONBLOCK);
    assert_int_equal(t->ends, 1);
    assert_null(t->attempt.state);
}

static inline void assert_text(const char *text, const char *expected)
{
    if (expected == NULL)
        assert_null(text);
    else if (text == NULL)
        fail_msg("nothing instead of: %s", expected);
    else
        assert_string_equal(text, expected);
}

static inline void assert_contains(const char *text, const char *part)
{
    if (text == NULL || strstr(text, part) == NULL)
        fail_msg("no \"%s\" in: %s", part, text != NULL ? text : "(nothing)");
}

#endif
