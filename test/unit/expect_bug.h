// SPDX-License-Identifier: Apache-2.0
//
// expect_bug(): the call must end in BUG() with this text. It runs in a child,
// because BUG() aborts. Include after cmocka.h.

#ifndef PGKIN_TEST_EXPECT_BUG_H
#define PGKIN_TEST_EXPECT_BUG_H

#include <signal.h>
#include <string.h>
#include <sys/resource.h>
#include <sys/wait.h>
#include <unistd.h>

static inline void expect_bug(void (*call)(void), const char *text)
{
    int fds[2];
    assert_int_equal(pipe(fds), 0);
    pid_t pid = fork();
    if (pid == 0) {
        struct rlimit no_core = {0};
        setrlimit(RLIMIT_CORE, &no_core);
        signal(SIGABRT, SIG_DFL);
        dup2(fds[1], STDERR_FILENO);
        call();
        _exit(0);
    }
    assert_true(pid > 0);
    close(fds[1]);
    char said[1024];
    size_t len = 0;
    ssize_t n;
    while (len < sizeof said - 1 &&
           (n = read(fds[0], said + len, sizeof said - 1 - len)) > 0)
        len += (size_t)n;
    said[len] = '\0';
    close(fds[0]);
    int status;
    assert_int_equal(waitpid(pid, &status, 0), pid);
    assert_true(WIFSIGNALED(status));
    assert_int_equal(WTERMSIG(status), SIGABRT);
    if (strstr(said, text) == NULL)
        fail_msg("expected a bug \"%s\", got: %s", text, said);
}

#endif
