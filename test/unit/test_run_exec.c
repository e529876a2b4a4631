// SPDX-License-Identifier: Apache-2.0

#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>

#include <cmocka.h>

#include <dirent.h>
#include <errno.h>
#include <fcntl.h>
#include <signal.h>
#include <sys/stat.h>
#include <sys/wait.h>
#include <unistd.h>

#include "test_attempt_stub.h"

#define ARRAY_SIZE(a) (sizeof(a) / sizeof(a)[0])
#define TRACE         "00-0af7651916cd43dd8448eb211c80319c-b7ad6b7169203331-01"

struct fixture {
    struct event_base *base;
    struct conf conf;
    struct runtime rt;
    void *kind;
    struct trial t;
    const char *arguments[4];
    int fds;
    struct err e;
};

static int count_fds(void)
{
    DIR *dir = opendir("/proc/self/fd");
    int n = 0;
    while (readdir(dir) != NULL)
        n++;
    closedir(dir);
    return n;
}

static int set_up(void **state)
{
    struct fixture *f = xcalloc(1, sizeof *f);
    *state = f;
    conf_init(&f->conf, conf_settings, conf_setting_count);
    f->base = event_base_new();
    f->rt = (struct runtime){.base = f->base, .conf = &f->conf};
    f->kind = kind_exec.open(&f->rt, &f->e);
    trial_init(&f->t, &kind_exec, "{\"a\": \"$(touch /tmp/pgkin-injected)\"}");
    f->t.command.program = "/bin/sh";
    f->t.command.arguments = f->arguments;
    f->fds = count_fds();
    return 0;
}

// No descriptor, no child and nothing in the loop is left.
static int tear_down(void **state)
{
    struct fixture *f = *state;
    int fds = count_fds();
    trial_clear(&f->t);
    kind_exec.close(f->kind);
    bool idle = event_base_get_num_events(f->base, EVENT_BASE_COUNT_ADDED) == 0;
    event_base_free(f->base);
    conf_clear(&f->conf);
    bool clean = fds == f->fds && idle && waitpid(-1, NULL, WNOHANG) == -1;
    free(f);
    return clean ? 0 : -1;
}

static void set_script(struct fixture *f, const char *script)
{
    f->arguments[0] = "-c";
    f->arguments[1] = script;
    f->arguments[2] = NULL;
}

static void run_script(struct fixture *f, const char *script)
{
    set_script(f, script);
    trial_run(&f->t, f->base, f->kind);
}

static void test_input_and_result(void **state)
{
    struct fixture *f = *state;
    run_script(f, "cat; echo noise >&2");
    assert_int_equal(f->t.outcome, ATTEMPT_COMPLETED);
    assert_text(f->t.result, f->t.attempt.task.payload);
    assert_null(f->t.error);
    static const struct {
        const char *script, *result;
    } cases[] = {
        {"true", NULL},
        {"echo", NULL},
        {"echo 42", "42\n"},
        {"echo '{\"a\": [1]}'", "{\"a\": [1]}\n"},
        {"echo hello", "{\"output\":\"hello\\n\"}"},
        {"printf 'caf\\351'", "{\"output\":\"caf\xef\xbf\xbd\"}"},
        {"printf 'a\\0b'", "{\"output\":\"a\xef\xbf\xbd"
                           "b\"}"},
        {"printf '\"\\\\u0000\"'", "{\"output\":\"\\\"\\\\u0000\\\"\"}"},
        // Nobody reads the payload.
        {"exec <&-; echo 1", "1\n"},
    };
    for (size_t i = 0; i < ARRAY_SIZE(cases); i++) {
        run_script(f, cases[i].script);
        assert_int_equal(f->t.outcome, ATTEMPT_COMPLETED);
        assert_text(f->t.result, cases[i].result);
    }
    assert_int_equal(access("/tmp/pgkin-injected", F_OK), -1);
}

// More than a pipe holds, both ways.
static void test_large_payload(void **state)
{
    struct fixture *f = *state;
    size_t len = 1000000;
    char *payload = xmalloc(len + 1);
    memset(payload, 'x', len);
    payload[0] = payload[len - 1] = '"';
    payload[len] = '\0';
    f->t.attempt.task.payload = payload;
    f->t.attempt.task.payload_len = len;
    run_script(f, "cat");
    assert_int_equal(f->t.outcome, ATTEMPT_COMPLETED);
    assert_text(f->t.result, payload);
    run_script(f, "exit 0"); // and does not read it
    assert_int_equal(f->t.outcome, ATTEMPT_COMPLETED);
    run_script(f, "sleep 0.05; head -c 5 >/dev/null; exit 3");
    assert_int_equal(f->t.outcome, ATTEMPT_FAILED);
    free(payload);
}

// Exactly this environment, and nothing that the payload could say.
static void test_environment(void **state)
{
    struct fixture *f = *state;
    setenv("PGPASSWORD", "geheim", 1);
    f->t.command.program = "/usr/bin/env";
    f->t.attempt.task.headers = "{\"traceparent\": \"" TRACE "\"}";
    trial_run(&f->t, f->base, f->kind);
    assert_text(
        f->t.result,
        "{\"output\":\""
        "PATH=/usr/local/sbin:/usr/local/bin:/usr/sbin:/usr/bin:/sbin:/bin\\n"
        "LANG=C.UTF-8\\nPGKIN_TASK_ID=4711\\nPGKIN_ATTEMPT=3\\n"
        "PGKIN_LEASE_ID=0\\nPGKIN_COMMAND=c.d-e_f\\nPGKIN_IDEMPOTENCY_KEY=0198-4711\\n"
        "TRACEPARENT=" TRACE "\\n\"}");
    f->t.attempt.task.headers = "{\"traceparent\": \"x\\nLD_PRELOAD=y\"}";
    trial_run(&f->t, f->base, f->kind);
    assert_null(strstr(f->t.result, "TRACEPARENT"));
    assert_null(strstr(f->t.result, "LD_PRELOAD"));
    f->t.command.program = "/bin/sh";
    run_script(f, "pwd");
    assert_text(f->t.result, "{\"output\":\"/\\n\"}");
    unsetenv("PGPASSWORD");
}

// Arguments are arguments: no shell looks at them.
static void test_arguments(void **state)
{
    struct fixture *f = *state;
    f->t.command.program = "/usr/bin/printf";
    f->arguments[0] = "[%s]";
    f->arguments[1] = "; touch /tmp/pgkin-injected $(id) `id` * \"'";
    f->arguments[2] = "";
    trial_run(&f->t, f->base, f->kind);
    assert_text(f->t.result, "{\"output\":\"[; touch /tmp/pgkin-injected $(id) `id` * "
                             "\\\"'][]\"}");
    f->t.command.arguments = NULL;
    f->t.command.program = "/bin/true";
    trial_run(&f->t, f->base, f->kind);
    assert_int_equal(f->t.outcome, ATTEMPT_COMPLETED);
}

static void test_statuses(void **state)
{
    struct fixture *f = *state;
    static const struct {
        const char *script;
        enum attempt_outcome outcome;
        const char *error;
        int64_t delay_ms;
    } cases[] = {
        {"exit 0", ATTEMPT_COMPLETED, NULL, 0},
        {"exit 1", ATTEMPT_FAILED, "exited with status 1", 0},
        {"echo one >&2; echo two >&2; exit 2", ATTEMPT_FAILED,
         "exited with status 2: one\ntwo", 0},
        {"exit 64", ATTEMPT_FATAL, "exited with status 64", 0},
        {"echo bad >&2; exit 65", ATTEMPT_FATAL, "exited with status 65: bad", 0},
        {"exit 78", ATTEMPT_FATAL, "exited with status 78", 0},
        {"exit 100", ATTEMPT_FATAL, "exited with status 100", 0},
        {"exit 75", ATTEMPT_SNOOZED, "exited with status 75", 30000},
        {"echo later; exit 75", ATTEMPT_SNOOZED, "exited with status 75", 30000},
        {"echo '{\"retry_after\": 7}'; exit 75", ATTEMPT_SNOOZED, "exited with status 75",
         7000},
        {"echo '{\"retry_after\": 0.25}'; exit 75", ATTEMPT_SNOOZED,
         "exited with status 75", 250},
        {"echo '{\"retry_after\": 1e9}'; exit 75", ATTEMPT_SNOOZED,
         "exited with status 75", 86400000},
        {"echo '{\"retry_after\": -1}'; exit 75", ATTEMPT_SNOOZED,
         "exited with status 75", 30000},
        {"echo '{\"retry_after\": \"7\"}'; exit 75", ATTEMPT_SNOOZED,
         "exited with status 75", 30000},
        {"exit 255", ATTEMPT_FAILED, "exited with status 255", 0},
        {"kill -KILL $$", ATTEMPT_FAILED, "killed by signal 9 (Killed)", 0},
        {"echo x >&2; kill -TERM $$", ATTEMPT_FAILED,
         "killed by signal 15 (Terminated): x", 0},
    };
    for (size_t i = 0; i < ARRAY_SIZE(cases); i++) {
        run_script(f, cases[i].script);
        if (f->t.outcome != cases[i].outcome)
            fail_msg("%s: outcome %d", cases[i].script, (int)f->t.outcome);
        assert_text(f->t.error, cases[i].error);
        assert_int_equal(f->t.delay_ms, cases[i].delay_ms);
        assert_null(f->t.result);
    }
}

// The end of a long complaint, as valid UTF-8.
static void test_long_error(void **state)
{
    struct fixture *f = *state;
    run_script(f,
               "i=0; while [ $i -lt 9000 ]; do printf '\\303\\244'; i=$((i+1)); done >&2;"
               " printf '\\351 the end\\n' >&2; exit 1");
    assert_int_equal(f->t.outcome, ATTEMPT_FAILED);
    assert_in_range(strlen(f->t.error), 8100, 8300);
    assert_contains(f->t.error, "exited with status 1: \xc3\xa4");
    assert_contains(f->t.error, "\xef\xbf\xbd the end");
}

static void test_size_limit(void **state)
{
    struct fixture *f = *state;
    f->t.command.max_response_bytes = 1000;
    run_script(f, "head -c 1000 /dev/zero | tr '\\0' 1");
    assert_int_equal(f->t.outcome, ATTEMPT_COMPLETED);
    run_script(f, "head -c 1001 /dev/zero | tr '\\0' x");
    assert_int_equal(f->t.outcome, ATTEMPT_FATAL);
    assert_text(f->t.error, "wrote more than 1000 bytes to standard output");
    // One that would go on for ever is killed.
    run_script(f, "trap '' TERM; while :; do echo xxxxxxxxxxxxxxxxxxxxxxxx; done");
    assert_int_equal(f->t.outcome, ATTEMPT_FATAL);
    assert_text(f->t.error, "wrote more than 1000 bytes to standard output");
    // However it ends, and whether or not it was seen before the end.
    run_script(f, "head -c 1001 /dev/zero; exit 3");
    assert_int_equal(f->t.outcome, ATTEMPT_FATAL);
    f->t.command.max_response_bytes = 0;
    run_script(f, "true");
    assert_int_equal(f->t.outcome, ATTEMPT_COMPLETED);
    run_script(f, "echo");
    assert_int_equal(f->t.outcome, ATTEMPT_FATAL);
    f->t.command.max_response_bytes = 1 << 20;
    run_script(f, "yes | head -c 100000");
    assert_int_equal(f->t.outcome, ATTEMPT_COMPLETED);
    assert_contains(f->t.result, "\",\"truncated\":true}");
}

static void test_cannot_start(void **state)
{
    struct fixture *f = *state;
    char path[] = "/tmp/pgkin-exec-XXXXXX";
    int fd = mkstemp(path);
    assert_true(fd >= 0);
    close(fd);
    static const struct {
        const char *program, *error;
        enum attempt_outcome outcome;
    } cases[] = {
        {"/no/such/program", "cannot run /no/such/program: No such file or directory",
         ATTEMPT_FAILED},
        {"/tmp", "cannot run /tmp: Permission denied", ATTEMPT_FAILED},
        {NULL, "the program must be an absolute path", ATTEMPT_FATAL},
        {"", "the program must be an absolute path", ATTEMPT_FATAL},
        {"sh", "the program must be an absolute path", ATTEMPT_FATAL},
        {"./sh", "the program must be an absolute path", ATTEMPT_FATAL},
    };
    for (size_t i = 0; i < ARRAY_SIZE(cases); i++) {
        f->t.command.program = cases[i].program;
        trial_run(&f->t, f->base, f->kind);
        assert_int_equal(f->t.outcome, cases[i].outcome);
        assert_text(f->t.error, cases[i].error);
    }
    f->t.command.program = path; // not executable
    trial_run(&f->t, f->base, f->kind);
    assert_int_equal(f->t.outcome, ATTEMPT_FAILED);
    assert_contains(f->t.error, "Permission denied");
    unlink(path);
}

// ------------------------------------------------------------------------ stop

// Starts a script that writes into a pipe of ours when it is ready; gives the
// reading end, at whose end nobody of its group is left.
static int start_ready(struct fixture *f, const char *script, char path[64])
{
    snprintf(path, 64, "/tmp/pgkin-fifo-%d", (int)getpid());
    unlink(path);
    assert_int_equal(mkfifo(path, 0600), 0);
    int fd = open(path, O_RDONLY | O_NONBLOCK);
    assert_true(fd >= 0);
    f->arguments[0] = "-c";
    f->arguments[1] = script;
    f->arguments[2] = path;
    f->arguments[3] = NULL;
    kind_exec.start(f->kind, &f->t.attempt);
    char c = 0;
    run_until(f->base, read(fd, &c, 1) == 1);
    assert_int_equal(c, 'r');
    return fd;
}

static void expect_nobody_left(struct fixture *f, int fd, const char *path)
{
    char c;
    run_until(f->base, read(fd, &c, 1) == 0);
    close(fd);
    unlink(path);
}

static void test_stop(void **state)
{
    struct fixture *f = *state;
    char path[64];
    int fd = start_ready(f, "exec 3>$0; sleep 1000 & echo r >&3; wait", path);
    assert_int_equal(f->t.ends, 0);
    kind_exec.stop(f->kind, &f->t.attempt);
    kind_exec.stop(f->kind, &f->t.attempt); // again is no harm
    run_until(f->base, f->t.ends > 0);
    assert_int_equal(f->t.outcome, ATTEMPT_FAILED);
    assert_text(f->t.error, "aborted: killed by signal 15 (Terminated)");
    expect_nobody_left(f, fd, path);
}

// It may finish when it is told to stop, and then it has.
static void test_stop_and_finish(void **state)
{
    struct fixture *f = *state;
    char path[64];
    int fd = start_ready(f,
                         "exec 3>$0; trap 'echo 7; exit 0' TERM; echo r >&3; "
                         "while :; do sleep 0.01; done",
                         path);
    kind_exec.stop(f->kind, &f->t.attempt);
    run_until(f->base, f->t.ends > 0);
    assert_int_equal(f->t.outcome, ATTEMPT_COMPLETED);
    assert_text(f->t.result, "7\n");
    expect_nobody_left(f, fd, path);
}

static void test_kill(void **state)
{
    struct fixture *f = *state;
    kind_exec.close(f->kind);
    assert_true(conf_set_flag(&f->conf, "exec.kill_after", "100ms", "-c", &f->e));
    f->kind = kind_exec.open(&f->rt, &f->e);
    char path[64];
    int fd = start_ready(
        f, "exec 3>$0; trap '' TERM; echo r >&3; while :; do sleep 0.01; done", path);
    kind_exec.stop(f->kind, &f->t.attempt);
    run_until(f->base, f->t.ends > 0);
    assert_int_equal(f->t.outcome, ATTEMPT_FAILED);
    assert_text(f->t.error, "aborted: killed by signal 9 (Killed)");
    expect_nobody_left(f, fd, path);
}

// What it has left in the background goes with it, and is not waited for.
static void test_leftovers(void **state)
{
    struct fixture *f = *state;
    char path[64];
    int fd = start_ready(f,
                         "exec 3>$0; (trap '' TERM; sleep 1000) & echo r >&3; "
                         "echo 5; exit 0",
                         path);
    run_until(f->base, f->t.ends > 0);
    assert_int_equal(f->t.outcome, ATTEMPT_COMPLETED);
    assert_text(f->t.result, "5\n");
    expect_nobody_left(f, fd, path);
}

static void test_many_at_once(void **state)
{
    struct fixture *f = *state;
    enum {
        MANY = 50
    };
    struct trial *trials = xcalloc(MANY, sizeof *trials);
    set_script(f, "read x; echo $PGKIN_TASK_ID");
    for (int i = 0; i < MANY; i++) {
        trial_init(&trials[i], &kind_exec, "{}\n");
        trials[i].attempt.task.task_id = i;
        trials[i].command.program = "/bin/sh";
        trials[i].command.arguments = f->arguments;
        kind_exec.start(f->kind, &trials[i].attempt);
    }
    for (int i = 0; i < MANY; i++) {
        run_until(f->base, trials[i].ends > 0);
        char expected[16];
        snprintf(expected, sizeof expected, "%d\n", i);
        assert_int_equal(trials[i].outcome, ATTEMPT_COMPLETED);
        assert_text(trials[i].result, expected);
        trial_clear(&trials[i]);
    }
    free(trials);
}

#define TEST(name) cmocka_unit_test_setup_teardown(name, set_up, tear_down)

int main(void)
{
    const struct CMUnitTest tests[] = {
        TEST(test_input_and_result), TEST(test_large_payload), TEST(test_environment),
        TEST(test_arguments),        TEST(test_statuses),      TEST(test_long_error),
        TEST(test_size_limit),       TEST(test_cannot_start),  TEST(test_stop),
        TEST(test_stop_and_finish),  TEST(test_kill),          TEST(test_leftovers),
        TEST(test_many_at_once),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
