// SPDX-License-Identifier: Apache-2.0

#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>

#include <cmocka.h>

#include <semaphore.h>
#include <unistd.h>

#include "daemon/run_native.h"
#include "test_attempt_stub.h"

#define TRIALS 3

static sem_t begun, may_end;

static enum pgkin_outcome do_nothing(pgkin_task *t, void *arg)
{
    (void)t;
    (void)arg;
    return PGKIN_COMPLETED;
}

static enum pgkin_outcome wait_for_word(pgkin_task *t, void *arg)
{
    (void)t;
    (void)arg;
    sem_post(&begun);
    while (sem_wait(&may_end) != 0)
        ;
    return PGKIN_COMPLETED;
}

static const struct native_handler handlers[] = {
    {"nothing", do_nothing, NULL},
    {"wait", wait_for_word, NULL},
};

struct fixture {
    struct event_base *base;
    struct conf conf;
    struct runtime rt;
    void *kind;
    struct trial t[TRIALS];
    struct err e;
};

static int set_up(void **state)
{
    struct fixture *f = xcalloc(1, sizeof *f);
    *state = f;
    sem_init(&begun, 0, 0);
    sem_init(&may_end, 0, 0);
    conf_init(&f->conf, conf_settings, conf_setting_count);
    f->base = event_base_new();
    f->rt = (struct runtime){
        .base = f->base, .conf = &f->conf, .natives = handlers, .native_count = 2};
    f->kind = kind_native.open(&f->rt, &f->e);
    return 0;
}

static int tear_down(void **state)
{
    struct fixture *f = *state;
    for (int i = 0; i < TRIALS; i++)
        sem_post(&may_end); // where a test has failed
    kind_native.close(f->kind);
    for (int i = 0; i < TRIALS; i++)
        trial_clear(&f->t[i]);
    event_base_free(f->base);
    conf_clear(&f->conf);
    sem_destroy(&begun);
    sem_destroy(&may_end);
    free(f);
    return 0;
}

static void start(struct fixture *f, int i, const char *handler, const char *queue,
                  int at_once)
{
    struct trial *t = &f->t[i];
    trial_clear(t);
    trial_init(t, &kind_native, "{}");
    t->command.handler = handler;
    t->command.queue = queue;
    t->attempt.at_once = at_once;
    kind_native.start(f->kind, &t->attempt);
}

static bool have_begun(int n)
{
    int value = 0;
    sem_getvalue(&begun, &value);
    return value >= n;
}

static void end_waiting(struct fixture *f, int n)
{
    for (int i = 0; i < n; i++)
        sem_post(&may_end);
    run_until(f->base, f->t[0].ends == 1 && f->t[1].ends == 1 && f->t[2].ends == 1);
}

// The second of the slow queue must wait for the first, the quick one for nobody.
static void test_an_end_does_not_wait_for_what_a_limit_holds_back(void **state)
{
    struct fixture *f = *state;
    start(f, 0, "wait", "slow", 1);
    run_until(f->base, have_begun(1));
    start(f, 1, "wait", "slow", 1);
    start(f, 2, "nothing", "quick", 4);
    run_until(f->base, f->t[2].ends == 1);
    assert_int_equal(f->t[0].ends, 0);
    assert_false(have_begun(2));
    end_waiting(f, 2);
}

static void test_jobs_behind_a_busy_thread_get_their_own(void **state)
{
    struct fixture *f = *state;
    start(f, 0, "nothing", "q", 4);
    run_until(f->base, f->t[0].ends == 1);
    usleep(50000); // until its thread sleeps
    // At once, before the thread that is woken by the first has run.
    for (int i = 0; i < TRIALS; i++)
        start(f, i, "wait", "q", 4);
    run_until(f->base, have_begun(TRIALS));
    end_waiting(f, TRIALS);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test_setup_teardown(
            test_an_end_does_not_wait_for_what_a_limit_holds_back, set_up, tear_down),
        cmocka_unit_test_setup_teardown(test_jobs_behind_a_busy_thread_get_their_own,
                                        set_up, tear_down),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
