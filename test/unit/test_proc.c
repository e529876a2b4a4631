// SPDX-License-Identifier: Apache-2.0

#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>

#include <cmocka.h>

#include <dirent.h>
#include <errno.h>
#include <fcntl.h>
#include <poll.h>
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <sys/time.h>
#include <sys/wait.h>
#include <time.h>
#include <unistd.h>

#include "core/proc.h"
#include "expect_bug.h"

#define DEADLINE_MS 20000
#define ARGV(...)   ((const char *const[]){__VA_ARGS__, NULL})
#define SH(script)  ARGV("/bin/sh", "-c", script)

static int64_t now_ms(void)
{
    struct timespec ts;
    clock_gettime(CLOCK_MONOTONIC, &ts);
    return (int64_t)ts.tv_sec * 1000 + ts.tv_nsec / 1000000;
}

// Descriptors open in this process.
static int count_fds(void)
{
    DIR *dir = opendir("/proc/self/fd");
    int n = 0;
    while (readdir(dir) != NULL)
        n++;
    closedir(dir);
    return n;
}

// Every test must leave neither descriptors nor children behind.
static int fds_before;

static int set_up(void **state)
{
    (void)state;
    fds_before = count_fds();
    return 0;
}

static int tear_down(void **state)
{
    (void)state;
    if (count_fds() != fds_before) {
        print_error("descriptors: %d before, %d after\n", fds_before, count_fds());
        return -1;
    }
    if (waitpid(-1, NULL, WNOHANG) != -1 || errno != ECHILD) {
        print_error("a child is left\n");
        return -1;
    }
    return 0;
}

static void run(const struct proc_spec *spec, struct proc_result *r)
{
    struct err e = ERR_INIT;
    if (!proc_run(spec, DEADLINE_MS, r, &e))
        fail_msg("%s", e.msg);
}

static void expect_output(const struct proc_spec *spec, const char *text)
{
    struct proc_result r;
    run(spec, &r);
    assert_int_equal(r.status.kind, PROC_EXITED);
    assert_string_equal(buf_str(&r.err), "");
    assert_string_equal(buf_str(&r.out), text);
    assert_int_equal(r.status.value, 0);
    assert_false(r.out_cut || r.err_cut);
    proc_result_clear(&r);
}

static void expect_spawn_error(const struct proc_spec *spec, const char *message)
{
    struct proc p;
    struct err e = ERR_INIT;
    assert_false(proc_spawn(&p, spec, &e));
    assert_string_equal(e.msg, message);
    proc_clear(&p); // harmless
}

// Reads until the other side of a pipe is closed everywhere.
static void expect_eof(int fd)
{
    int64_t deadline = now_ms() + DEADLINE_MS;
    char chunk[256];
    for (;;) {
        struct pollfd p = {.fd = fd, .events = POLLIN};
        if (poll(&p, 1, 100) > 0 && read(fd, chunk, sizeof chunk) == 0)
            return;
        if (now_ms() > deadline)
            fail_msg("somebody still holds the pipe");
    }
}

static void wait_for_output(struct proc *p, const char *text)
{
    int64_t deadline = now_ms() + DEADLINE_MS;
    while (strstr(buf_str(&p->out.data), text) == NULL) {
        if (proc_wait(p, 5) || now_ms() > deadline)
            fail_msg("no \"%s\" in: %s", text, buf_str(&p->out.data));
    }
}

static void test_output_and_status(void **state)
{
    (void)state;
    struct proc_result r;
    run(&(struct proc_spec){.argv = SH("echo out; echo err >&2; exit 3")}, &r);
    assert_string_equal(buf_str(&r.out), "out\n");
    assert_string_equal(buf_str(&r.err), "err\n");
    assert_int_equal(r.status.kind, PROC_EXITED);
    assert_int_equal(r.status.value, 3);
    struct err e = ERR_INIT;
    assert_false(proc_result_check(&r, "the script", &e));
    assert_string_equal(e.msg, "the script exited with status 3: err");
    proc_result_clear(&r);

    run(&(struct proc_spec){.argv = SH("kill -KILL $$")}, &r);
    assert_int_equal(r.status.kind, PROC_KILLED);
    assert_int_equal(r.status.value, SIGKILL);
    assert_false(proc_result_check(&r, "it", &e));
    assert_string_equal(e.msg, "it killed by signal 9 (Killed)");
    proc_result_clear(&r);

    run(&(struct proc_spec){.argv = SH("printf 'one\\ntwo\\n \\n' >&2; exit 1")}, &r);
    assert_false(proc_result_check(&r, "it", &e));
    assert_string_equal(e.msg, "it exited with status 1: two");
    proc_result_clear(&r);

    run(&(struct proc_spec){.argv = ARGV("/bin/true")}, &r);
    assert_true(proc_result_check(&r, "it", &e));
    proc_result_clear(&r);
}

static void test_status_text(void **state)
{
    (void)state;
    char text[PROC_STATUS_TEXT_MAX];
    assert_string_equal(
        proc_status_text((struct proc_status){.kind = PROC_EXITED, .value = 3}, text),
        "exited with status 3");
    assert_string_equal(
        proc_status_text((struct proc_status){.kind = PROC_KILLED, .value = 9}, text),
        "killed by signal 9 (Killed)");
    assert_string_equal(
        proc_status_text((struct proc_status){.kind = PROC_KILLED, .value = 40}, text),
        "killed by signal 40 (unknown)");
    assert_string_equal(
        proc_status_text((struct proc_status){.kind = PROC_RUNNING}, text),
        "still running");
}

static void test_environment_and_directory(void **state)
{
    (void)state;
    setenv("PROC_TEST_OURS", "1", 1);
    expect_output(
        &(struct proc_spec){.argv = ARGV("/usr/bin/env"), .env = ARGV("A=1", "B=x y")},
        "A=1\nB=x y\n");
    expect_output(&(struct proc_spec){.argv = ARGV("/usr/bin/env"),
                                      .env = (const char *const[]){NULL}},
                  "");
    expect_output(&(struct proc_spec){.argv = SH("echo $PROC_TEST_OURS")}, "1\n");
    unsetenv("PROC_TEST_OURS");
    expect_output(&(struct proc_spec){.argv = ARGV("/bin/pwd"), .cwd = "/usr"}, "/usr\n");
    expect_output(&(struct proc_spec){.argv = SH("umask"), .umask = 077}, "0077\n");
}

static void test_search_in_path(void **state)
{
    (void)state;
    expect_output(&(struct proc_spec){.argv = ARGV("echo", "hi")}, "hi\n");
    expect_output(&(struct proc_spec){.argv = ARGV("echo", "hi"),
                                      .env = ARGV("PATH=/nonexistent::/etc/passwd:/bin")},
                  "hi\n");
    expect_output(&(struct proc_spec){.argv = ARGV("echo", "hi"), .env = ARGV("X=1")},
                  "hi\n");
    expect_spawn_error(
        &(struct proc_spec){.argv = ARGV("echo"), .env = ARGV("PATH=/nonexistent")},
        "cannot run echo: No such file or directory");
    // An empty element is not the working directory.
    expect_spawn_error(
        &(struct proc_spec){.argv = ARGV("echo"), .env = ARGV("PATH=:"), .cwd = "/bin"},
        "cannot run echo: No such file or directory");
    // A slash means: not searched, and relative to the child's directory.
    expect_output(&(struct proc_spec){.argv = ARGV("bin/echo", "hi"), .cwd = "/usr"},
                  "hi\n");
}

static void test_spawn_errors(void **state)
{
    (void)state;
    expect_spawn_error(&(struct proc_spec){.argv = ARGV("/nonexistent/program"),
                                           .input = "x",
                                           .input_len = 1},
                       "cannot run /nonexistent/program: No such file or directory");
    expect_spawn_error(&(struct proc_spec){.argv = ARGV("/etc/passwd")},
                       "cannot run /etc/passwd: Permission denied");
    expect_spawn_error(&(struct proc_spec){.argv = ARGV("/bin")},
                       "cannot run /bin: Permission denied");
    expect_spawn_error(
        &(struct proc_spec){.argv = ARGV("/bin/true"), .cwd = "/nonexistent"},
        "cannot run /bin/true: cannot change to directory /nonexistent: "
        "No such file or directory");
    expect_spawn_error(
        &(struct proc_spec){.argv = ARGV("/bin/true"), .death_signal = 999},
        "cannot run /bin/true: cannot ask for the parent death signal: "
        "Invalid argument");
    expect_spawn_error(&(struct proc_spec){.argv = ARGV("/bin/true"),
                                           .out = {PROC_TO_FD, -5, 0},
                                           .cwd = "/nonexistent"},
                       "cannot run /bin/true: cannot change to directory /nonexistent: "
                       "No such file or directory");
    struct proc_result r;
    struct err e = ERR_INIT;
    assert_false(
        proc_run(&(struct proc_spec){.argv = ARGV("/nonexistent")}, 1000, &r, &e));
    assert_string_equal(e.msg, "cannot run /nonexistent: No such file or directory");
    proc_result_clear(&r);
}

// More than the pipes hold, in both directions at once.
static void test_input_through_cat(void **state)
{
    (void)state;
    size_t size = (size_t)3 << 20;
    char *input = malloc(size);
    for (size_t i = 0; i < size; i++)
        input[i] = (char)(i * 31 >> 3);
    struct proc_result r;
    run(&(struct proc_spec){.argv = ARGV("/bin/cat"),
                            .input = input,
                            .input_len = size,
                            .out = {.cap = size}},
        &r);
    assert_int_equal(r.out.len, size);
    assert_memory_equal(r.out.data, input, size);
    assert_false(r.out_cut);
    proc_result_clear(&r);
    free(input);
    expect_output(
        &(struct proc_spec){.argv = ARGV("/bin/cat"), .input = "", .input_len = 0}, "");
    expect_output(&(struct proc_spec){.argv = ARGV("/bin/cat")}, "");
    expect_output(&(struct proc_spec){.argv = ARGV("/usr/bin/wc", "-c"),
                                      .input = "a\0b",
                                      .input_len = 3},
                  "3\n");
}

// A child that closes its input: no SIGPIPE for us, now or later.
static void test_input_nobody_reads(void **state)
{
    (void)state;
    signal(SIGPIPE, SIG_DFL);
    size_t size = (size_t)1 << 20;
    char *input = calloc(1, size);
    struct proc p;
    struct proc_spec spec = {
        .argv = SH("exec <&-; exec sleep 1000"), .input = input, .input_len = size};
    assert_true(proc_spawn(&p, &spec, NULL));
    int64_t deadline = now_ms() + DEADLINE_MS;
    while (p.in_fd >= 0) {
        assert_true(now_ms() < deadline);
        assert_false(proc_wait(&p, 5));
    }
    sigset_t pending;
    sigpending(&pending);
    assert_false(sigismember(&pending, SIGPIPE));
    assert_false(proc_poll(&p));
    proc_clear(&p);
    free(input);
}

static void test_output_limits(void **state)
{
    (void)state;
    struct proc_result r;
    run(&(struct proc_spec){.argv = SH("i=0; while [ $i -lt 3000 ]; do echo out$i; echo "
                                       "err$i >&2; i=$((i+1)); done"),
                            .out = {.cap = 100},
                            .err = {.cap = 100}},
        &r);
    assert_int_equal(r.status.value, 0);
    assert_true(r.out_cut && r.err_cut);
    assert_int_equal(r.out.len, 100);
    assert_int_equal(r.err.len, 100);
    assert_int_equal(strlen(buf_str(&r.err)), 100);
    assert_memory_equal(buf_str(&r.out), "out0\nout1\n", 10);
    assert_string_equal(buf_str(&r.err) + 84, "err2998\nerr2999\n");
    proc_result_clear(&r);
    // Exactly the limit is not cut.
    run(&(struct proc_spec){.argv = SH("printf 12345; printf 12345 >&2"),
                            .out = {.cap = 5},
                            .err = {.cap = 5}},
        &r);
    assert_string_equal(buf_str(&r.out), "12345");
    assert_string_equal(buf_str(&r.err), "12345");
    assert_false(r.out_cut || r.err_cut);
    proc_result_clear(&r);
    run(&(struct proc_spec){.argv = SH("printf 1234567; printf 1234567 >&2"),
                            .out = {.cap = 5},
                            .err = {.cap = 5}},
        &r);
    assert_string_equal(buf_str(&r.out), "12345");
    assert_string_equal(buf_str(&r.err), "34567");
    assert_true(r.out_cut && r.err_cut);
    proc_result_clear(&r);
    run(&(struct proc_spec){.argv = ARGV("/usr/bin/head", "-c", "30000000", "/dev/zero")},
        &r);
    assert_int_equal(r.out.len, PROC_DEFAULT_CAP);
    assert_true(r.out_cut);
    assert_int_equal(r.status.value, 0);
    proc_result_clear(&r);
}

static void test_output_elsewhere(void **state)
{
    (void)state;
    int fds[2];
    assert_int_equal(pipe(fds), 0);
    struct proc_result r;
    run(&(struct proc_spec){.argv = SH("echo out; echo err >&2"),
                            .out = {.mode = PROC_TO_FD, .fd = fds[1]},
                            .err = {.mode = PROC_TO_FD, .fd = fds[1]}},
        &r);
    assert_int_equal(r.out.len + r.err.len, 0);
    char got[64] = "";
    assert_int_equal(read(fds[0], got, sizeof got - 1), 8);
    assert_string_equal(got, "out\nerr\n");
    proc_result_clear(&r);
    close(fds[0]);
    close(fds[1]);

    // Crossed over: what is standard error here is standard output there.
    int saved = dup(STDERR_FILENO);
    assert_int_equal(pipe(fds), 0);
    dup2(fds[1], STDERR_FILENO);
    close(fds[1]);
    struct err e = ERR_INIT;
    bool ok =
        proc_run(&(struct proc_spec){.argv = SH("echo crossed; echo lost >&2"),
                                     .out = {.mode = PROC_TO_FD, .fd = STDERR_FILENO},
                                     .err = {.mode = PROC_DISCARD}},
                 DEADLINE_MS, &r, &e);
    dup2(saved, STDERR_FILENO);
    close(saved);
    assert_true(ok);
    memset(got, 0, sizeof got);
    assert_int_equal(read(fds[0], got, sizeof got - 1), 8);
    assert_string_equal(got, "crossed\n");
    close(fds[0]);
    proc_result_clear(&r);
}

static void test_no_other_descriptor(void **state)
{
    (void)state;
    int open_fd = open("/dev/null", O_RDONLY); // without close-on-exec
    int high_fd = fcntl(open_fd, F_DUPFD, 200);
    expect_output(&(struct proc_spec){.argv = ARGV("/bin/ls", "/proc/self/fd"),
                                      .input = "x",
                                      .input_len = 1},
                  "0\n1\n2\n3\n"); // 3 is the directory it lists
    close(open_fd);
    close(high_fd);
}

static void do_nothing(int signo)
{
    (void)signo;
}

static void test_signals_are_reset(void **state)
{
    (void)state;
    sigset_t block, old;
    sigfillset(&block);
    sigprocmask(SIG_SETMASK, &block, &old);
    signal(SIGUSR1, SIG_IGN);
    signal(SIGHUP, SIG_IGN);
    signal(SIGUSR2, do_nothing);
    struct proc_result r;
    run(&(struct proc_spec){.argv = ARGV("/bin/grep", "-E",
                                         "^Sig(Blk|Ign):", "/proc/self/status")},
        &r);
    sigset_t now;
    sigprocmask(SIG_SETMASK, &old, &now);
    signal(SIGUSR1, SIG_DFL);
    signal(SIGHUP, SIG_DFL);
    signal(SIGUSR2, SIG_DFL);
    // 32 and 33 are the C library's own: nobody can reset them, and whoever
    // started this test (make does) may have left them ignored.
    unsigned long long blocked, ignored;
    assert_int_equal(
        sscanf(buf_str(&r.out), "SigBlk: %llx SigIgn: %llx", &blocked, &ignored), 2);
    assert_true(blocked == 0);
    assert_true((ignored & ~0x180000000ULL) == 0);
    assert_true(sigismember(&now, SIGUSR1)); // ours is as before
    proc_result_clear(&r);
}

static void expect_group(enum proc_group group, bool own_group, bool own_session)
{
    struct proc_result r;
    run(&(struct proc_spec){.argv = ARGV("/bin/cat", "/proc/self/stat"), .group = group},
        &r);
    int pid, pgrp, session;
    assert_int_equal(
        sscanf(buf_str(&r.out), "%d (cat) %*c %*d %d %d", &pid, &pgrp, &session), 3);
    assert_int_equal(pgrp, own_group ? pid : getpgrp());
    assert_int_equal(session, own_session ? pid : getsid(0));
    proc_result_clear(&r);
}

static void test_groups(void **state)
{
    (void)state;
    expect_group(PROC_NEW_GROUP, true, false);
    expect_group(PROC_NEW_SESSION, true, true);
    expect_group(PROC_SAME_GROUP, false, false);
}

static void test_change_of_user(void **state)
{
    (void)state;
    struct proc_user u;
    struct err e = ERR_INIT;
    assert_false(proc_user_find("no-such-user-here", &u, &e));
    assert_string_equal(e.msg, "there is no user no-such-user-here");
    assert_true(proc_user_find("root", &u, &e));
    assert_int_equal(u.uid, 0);
    assert_true(u.group_count >= 1);
    if (getuid() != 0) {
        expect_spawn_error(&(struct proc_spec){.argv = ARGV("/bin/true"), .user = &u},
                           "cannot run /bin/true: cannot change the user: "
                           "Operation not permitted");
        proc_user_clear(&u);
        return;
    }
    proc_user_clear(&u);
    assert_true(proc_user_find("nobody", &u, &e));
    // Of the groups exactly those named, also one that nobody is in.
    u.groups = realloc(u.groups, 2 * sizeof *u.groups);
    u.groups[0] = u.gid;
    u.groups[1] = 54321;
    u.group_count = 2;
    char want[64];
    snprintf(want, sizeof want, "%d %d\n%d\n%d 54321\n", (int)u.uid, (int)u.uid,
             (int)u.gid, (int)u.gid);
    expect_output(&(struct proc_spec){.argv = SH("echo $(id -u) $(id -ru); id -g; id -G"),
                                      .user = &u},
                  want);
    // With the rights of that user, not with ours.
    char dir[] = "/tmp/pgkin-proc-XXXXXX";
    assert_non_null(mkdtemp(dir));
    char message[128];
    snprintf(message, sizeof message,
             "cannot run /bin/true: cannot change to directory %s: Permission denied",
             dir);
    expect_spawn_error(
        &(struct proc_spec){.argv = ARGV("/bin/true"), .user = &u, .cwd = dir}, message);
    rmdir(dir);
    proc_user_clear(&u);
}

// The parent dies right after the start; the pipe shows when the child is gone.
static void expect_death_with_parent(const struct proc_user *user)
{
    int fds[2];
    assert_int_equal(pipe(fds), 0);
    pid_t middle = fork();
    if (middle == 0) {
        struct proc p;
        struct proc_spec spec = {.argv = ARGV("/bin/sleep", "1000"),
                                 .out = {.mode = PROC_TO_FD, .fd = fds[1]},
                                 .group = PROC_NEW_SESSION,
                                 .user = user,
                                 .death_signal = SIGKILL};
        _exit(proc_spawn(&p, &spec, NULL) ? 0 : 1);
    }
    close(fds[1]);
    int status;
    assert_int_equal(waitpid(middle, &status, 0), middle);
    assert_int_equal(status, 0);
    expect_eof(fds[0]);
    close(fds[0]);
}

static void test_death_signal(void **state)
{
    (void)state;
    expect_death_with_parent(NULL);
    struct proc_user u;
    if (getuid() == 0 && proc_user_find("nobody", &u, NULL)) {
        expect_death_with_parent(&u);
        proc_user_clear(&u);
    }
}

static void test_timeout_of_run(void **state)
{
    (void)state;
    struct proc_result r;
    struct err e = ERR_INIT;
    int64_t start = now_ms();
    assert_false(
        proc_run(&(struct proc_spec){.argv = SH("echo begun; sleep 1000")}, 100, &r, &e));
    assert_true(now_ms() - start >= 100);
    assert_string_equal(e.msg, "/bin/sh did not end within 100 ms");
    assert_int_equal(r.status.kind, PROC_KILLED);
    assert_int_equal(r.status.value, SIGTERM);
    proc_result_clear(&r);
}

static void test_child_that_ignores_term(void **state)
{
    (void)state;
    struct proc p;
    struct err e = ERR_INIT;
    struct proc_spec spec = {
        .argv = SH("trap '' TERM; echo ready; while :; do sleep 1000; done")};
    assert_true(proc_spawn(&p, &spec, &e));
    wait_for_output(&p, "ready");
    assert_false(proc_stop(&p, SIGTERM, 50));
    assert_int_equal(p.status.kind, PROC_KILLED);
    assert_int_equal(p.status.value, SIGKILL);
    assert_false(proc_signal(&p, 0, &e));
    assert_non_null(strstr(e.msg, "has ended"));
    assert_true(proc_stop(&p, SIGTERM, 50)); // again: nothing to do
    assert_true(proc_wait(&p, -1));
    proc_clear(&p);
    proc_clear(&p);
}

static void test_stop_within_grace(void **state)
{
    (void)state;
    struct proc p;
    struct proc_spec spec = {
        .argv =
            SH("trap 'echo bye; exit 5' INT; echo ready; while :; do sleep 0.01; done")};
    assert_true(proc_spawn(&p, &spec, NULL));
    wait_for_output(&p, "ready");
    assert_true(proc_stop(&p, SIGINT, DEADLINE_MS));
    assert_int_equal(p.status.kind, PROC_EXITED);
    assert_int_equal(p.status.value, 5);
    assert_string_equal(buf_str(&p.out.data), "ready\nbye\n");
    proc_clear(&p);
}

// One signal reaches the grandchildren too.
static void test_signal_group(void **state)
{
    (void)state;
    int fds[2];
    assert_int_equal(pipe(fds), 0);
    struct proc p;
    struct proc_spec spec = {.argv = SH("sleep 1000 & sleep 1000 & echo ready; wait"),
                             .err = {.mode = PROC_TO_FD, .fd = fds[1]}};
    assert_true(proc_spawn(&p, &spec, NULL));
    close(fds[1]);
    wait_for_output(&p, "ready");
    assert_true(proc_signal_group(&p, SIGKILL, NULL));
    expect_eof(fds[0]);
    assert_true(proc_wait(&p, DEADLINE_MS));
    assert_int_equal(p.status.value, SIGKILL);
    proc_clear(&p);
    close(fds[0]);
}

static void test_clear_kills(void **state)
{
    (void)state;
    int fds[2];
    assert_int_equal(pipe(fds), 0);
    struct proc p;
    struct proc_spec spec = {.argv = SH("sleep 1000 & echo ready; wait"),
                             .err = {.mode = PROC_TO_FD, .fd = fds[1]}};
    assert_true(proc_spawn(&p, &spec, NULL));
    close(fds[1]);
    wait_for_output(&p, "ready");
    proc_clear(&p);
    expect_eof(fds[0]);
    close(fds[0]);
    struct proc none = {0};
    proc_clear(&none);
}

static void test_grandchild_with_the_pipe(void **state)
{
    (void)state;
    struct proc_result r;
    int64_t start = now_ms();
    run(&(struct proc_spec){.argv = SH("sleep 1000 & echo $!")}, &r);
    assert_true(now_ms() - start < DEADLINE_MS / 2);
    pid_t left = atoi(buf_str(&r.out));
    assert_true(left > 1);
    assert_int_equal(kill(left, SIGKILL), 0); // was still there
    proc_result_clear(&r);

    // One that never stops writing must not keep us reading.
    run(&(struct proc_spec){.argv = SH("yes & echo $! >&2; sleep 0.05")}, &r);
    left = atoi(buf_str(&r.err));
    assert_true(left > 1);
    kill(left, SIGKILL);
    proc_result_clear(&r);

    int fds[2];
    assert_int_equal(pipe(fds), 0);
    run(&(struct proc_spec){.argv = SH("sleep 1000 & echo ok"),
                            .err = {.mode = PROC_TO_FD, .fd = fds[1]},
                            .kill_leftovers = true},
        &r);
    close(fds[1]);
    assert_string_equal(buf_str(&r.out), "ok\n");
    expect_eof(fds[0]);
    close(fds[0]);
    proc_result_clear(&r);
}

struct watcher {
    int closed[16];
    size_t count;
};

static void note_close(void *arg, int fd)
{
    struct watcher *w = arg;
    assert_true(fcntl(fd, F_GETFD) >= 0); // still open
    assert_in_range(w->count, 0, 15);
    w->closed[w->count++] = fd;
}

// As an event loop would do it: only poll() and proc_poll().
static void test_in_an_event_loop(void **state)
{
    (void)state;
    size_t size = 500000;
    char *input = malloc(size);
    memset(input, 'i', size);
    struct watcher w = {.count = 0};
    struct proc p;
    struct proc_spec spec = {.argv = ARGV("/bin/cat"),
                             .input = input,
                             .input_len = size,
                             .before_close = note_close,
                             .before_close_arg = &w};
    assert_true(proc_spawn(&p, &spec, NULL));
    memset(input, 'x', size); // was copied
    struct pollfd first[PROC_FDS_MAX];
    size_t watched = proc_fds(&p, first);
    assert_int_equal(watched, p.exit_fd >= 0 ? 4 : 3);
    for (size_t i = 0; i < watched; i++)
        assert_true(first[i].fd == p.exit_fd ||
                    (fcntl(first[i].fd, F_GETFL) & O_NONBLOCK) != 0);
    int64_t deadline = now_ms() + DEADLINE_MS;
    while (!proc_poll(&p)) {
        assert_true(now_ms() < deadline);
        struct pollfd fds[PROC_FDS_MAX];
        poll(fds, (nfds_t)proc_fds(&p, fds), p.exit_fd >= 0 ? 1000 : 5);
    }
    assert_int_equal(p.out.data.len, size);
    assert_int_equal(p.out.data.data[size - 1], 'i');
    assert_int_equal(proc_fds(&p, first), 0);
    assert_int_equal(w.count, watched); // each announced, and once
    proc_clear(&p);
    assert_int_equal(w.count, watched);
    free(input);
}

static void test_wait_with_timeout(void **state)
{
    (void)state;
    struct proc p;
    struct proc_spec spec = {.argv = ARGV("/bin/sleep", "1000"),
                             .out = {.mode = PROC_DISCARD},
                             .err = {.mode = PROC_DISCARD}};
    assert_true(proc_spawn(&p, &spec, NULL));
    int64_t start = now_ms();
    assert_false(proc_wait(&p, 0));
    assert_false(proc_wait(&p, 60));
    assert_true(now_ms() - start >= 60);
    assert_true(proc_signal(&p, SIGTERM, NULL));
    assert_true(proc_wait(&p, DEADLINE_MS));
    assert_int_equal(p.status.value, SIGTERM);
    proc_clear(&p);
}

static volatile sig_atomic_t alarms;

static void on_alarm(int signo)
{
    (void)signo;
    alarms++;
}

static void test_interrupted_system_calls(void **state)
{
    (void)state;
    struct sigaction sa = {.sa_handler = on_alarm}; // without SA_RESTART
    struct itimerval often = {{0, 2000}, {0, 2000}}, never = {0};
    sigaction(SIGALRM, &sa, NULL); // stays: one may still be on its way
    alarms = 0;
    setitimer(ITIMER_REAL, &often, NULL);
    char *input = malloc(1000000);
    memset(input, 'a', 1000000);
    struct proc_result r;
    run(&(struct proc_spec){.argv = SH("sleep 0.1; cat"),
                            .input = input,
                            .input_len = 1000000},
        &r);
    int64_t start = now_ms();
    struct err e = ERR_INIT;
    struct proc_result slow;
    assert_false(proc_run(&(struct proc_spec){.argv = ARGV("/bin/sleep", "1000")}, 100,
                          &slow, &e));
    assert_true(now_ms() - start >= 100); // signals do not shorten it
    setitimer(ITIMER_REAL, &never, NULL);
    assert_true(alarms > 5);
    assert_int_equal(r.out.len, 1000000);
    proc_result_clear(&r);
    proc_result_clear(&slow);
    free(input);
}

static void test_reaped_by_somebody_else(void **state)
{
    (void)state;
    signal(SIGCHLD, SIG_IGN);
    struct proc_result r;
    struct err e = ERR_INIT;
    bool ok = proc_run(&(struct proc_spec){.argv = SH("echo hi"), .kill_leftovers = true},
                       DEADLINE_MS, &r, &e);
    signal(SIGCHLD, SIG_DFL);
    assert_true(ok);
    assert_int_equal(r.status.kind, PROC_LOST);
    assert_string_equal(buf_str(&r.out), "hi\n");
    assert_false(proc_result_check(&r, "it", &e));
    proc_result_clear(&r);
}

// A daemon without standard streams: its pipes get their numbers.
static void test_parent_without_standard_streams(void **state)
{
    (void)state;
    pid_t pid = fork();
    if (pid == 0) {
        close(0);
        close(1);
        close(2);
        struct proc_result r;
        bool ok = proc_run(&(struct proc_spec){.argv = SH("cat; echo err >&2"),
                                               .input = "in",
                                               .input_len = 2},
                           DEADLINE_MS, &r, NULL);
        if (!ok || strcmp(buf_str(&r.out), "in") != 0 ||
            strcmp(buf_str(&r.err), "err\n") != 0)
            _exit(1);
        proc_result_clear(&r);
        ok = proc_run(&(struct proc_spec){.argv = SH("echo x && echo y >&2"),
                                          .out = {.mode = PROC_INHERIT},
                                          .err = {.mode = PROC_INHERIT}},
                      DEADLINE_MS, &r, NULL);
        _exit(ok && r.status.value == 0 ? 0 : 2);
    }
    int status;
    assert_int_equal(waitpid(pid, &status, 0), pid);
    assert_int_equal(status, 0);
}

static void no_program(void)
{
    struct proc p;
    proc_spawn(&p, &(struct proc_spec){0}, NULL);
}

static void test_no_program_is_a_bug(void **state)
{
    (void)state;
    expect_bug(no_program, "without a program");
}

#define TEST(name) cmocka_unit_test_setup_teardown(name, set_up, tear_down)

int main(void)
{
    const struct CMUnitTest tests[] = {
        TEST(test_output_and_status),
        TEST(test_status_text),
        TEST(test_environment_and_directory),
        TEST(test_search_in_path),
        TEST(test_spawn_errors),
        TEST(test_input_through_cat),
        TEST(test_input_nobody_reads),
        TEST(test_output_limits),
        TEST(test_output_elsewhere),
        TEST(test_no_other_descriptor),
        TEST(test_signals_are_reset),
        TEST(test_groups),
        TEST(test_change_of_user),
        TEST(test_death_signal),
        TEST(test_timeout_of_run),
        TEST(test_child_that_ignores_term),
        TEST(test_stop_within_grace),
        TEST(test_signal_group),
        TEST(test_clear_kills),
        TEST(test_grandchild_with_the_pipe),
        TEST(test_in_an_event_loop),
        TEST(test_wait_with_timeout),
        TEST(test_interrupted_system_calls),
        TEST(test_reaped_by_somebody_else),
        TEST(test_parent_without_standard_streams),
        TEST(test_no_program_is_a_bug),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
