// SPDX-License-Identifier: Apache-2.0
//
// The life of a child once it runs (its start is in proc_spawn.c). The child
// stays a zombie until everything that needs its process id is done: as long
// as it is not reaped, neither the id nor that of its group can belong to
// somebody else.

#include "core/proc.h"

#include <errno.h>
#include <fcntl.h>
#include <limits.h>
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/wait.h>
#include <time.h>
#include <unistd.h>

#define READ_CHUNK       ((size_t)16384)
#define READ_AT_ONCE     ((size_t)1 << 20) // then others in the loop have their turn
#define RUN_GRACE_MS     2000
#define POLL_INTERVAL_MS 10 // without a pidfd

static int64_t now_ms(void)
{
    struct timespec ts;
    clock_gettime(CLOCK_MONOTONIC, &ts);
    return (int64_t)ts.tv_sec * 1000 + ts.tv_nsec / 1000000;
}

static void close_announced(struct proc *p, int *fd)
{
    if (*fd < 0)
        return;
    if (p->before_close != NULL)
        p->before_close(p->before_close_arg, *fd);
    close(*fd);
    *fd = -1;
}

static void drop_front(struct buf *b, size_t keep)
{
    memmove(b->data, b->data + b->len - keep, keep);
    b->len = keep;
    b->data[keep] = '\0';
}

// The tail may grow to twice its size before it is cut, so that not every
// read moves all of it.
static void capture_add(struct proc_capture *c, const char *data, size_t len)
{
    c->total += len;
    if (!c->keep_tail) {
        size_t room = c->cap - c->data.len;
        buf_add(&c->data, data, len < room ? len : room);
        return;
    }
    buf_add(&c->data, data, len);
    if (c->data.len / 2 > c->cap)
        drop_front(&c->data, c->cap);
}

// Reads what is there, about `max` bytes at most.
static void capture_read(struct proc *p, struct proc_capture *c, size_t max)
{
    char chunk[READ_CHUNK];
    for (size_t done = 0; c->fd >= 0 && done < max;) {
        ssize_t n = read(c->fd, chunk, sizeof chunk);
        if (n > 0) {
            capture_add(c, chunk, (size_t)n);
            done += (size_t)n;
        } else if (n == 0 || (errno != EINTR && errno != EAGAIN)) {
            close_announced(p, &c->fd);
        } else if (errno == EAGAIN) {
            return;
        }
    }
}

// What the child wrote before its end is in the pipe, and that is all there
// can be of it: a grandchild that goes on writing is not followed.
static void capture_finish(struct proc *p, struct proc_capture *c)
{
    if (c->fd >= 0) {
        int size = fcntl(c->fd, F_GETPIPE_SZ);
        capture_read(p, c, size > 0 ? (size_t)size : READ_AT_ONCE);
    }
    close_announced(p, &c->fd);
    if (c->data.len > c->cap)
        drop_front(&c->data, c->cap);
}

// write(2) without SIGPIPE, whatever the process does about that signal.
static ssize_t write_quietly(int fd, const char *data, size_t len)
{
    sigset_t pipe_set, pending, old;
    sigemptyset(&pipe_set);
    sigaddset(&pipe_set, SIGPIPE);
    sigpending(&pending);
    pthread_sigmask(SIG_BLOCK, &pipe_set, &old);
    ssize_t n = write(fd, data, len);
    int errnum = errno;
    if (n < 0 && errnum == EPIPE && !sigismember(&pending, SIGPIPE)) {
        struct timespec at_once = {0};
        while (sigtimedwait(&pipe_set, NULL, &at_once) < 0 && errno == EINTR)
            continue;
    }
    pthread_sigmask(SIG_SETMASK, &old, NULL);
    errno = errnum;
    return n;
}

// A child that does not want its input is no error.
static void feed_input(struct proc *p)
{
    while (p->in_fd >= 0 && p->input_done < p->input.len) {
        ssize_t n = write_quietly(p->in_fd, p->input.data + p->input_done,
                                  p->input.len - p->input_done);
        if (n >= 0)
            p->input_done += (size_t)n;
        else if (errno == EAGAIN)
            return;
        else if (errno != EINTR)
            break;
    }
    close_announced(p, &p->in_fd);
    buf_clear(&p->input);
    p->input_done = 0;
}

enum life {
    ALIVE,
    ENDED, // and still a zombie
    GONE,  // reaped by somebody else: its id may be in use again
};

static enum life look_at(const struct proc *p)
{
    siginfo_t info = {0};
    if (waitid(P_PID, (id_t)p->pid, &info, WEXITED | WNOHANG | WNOWAIT) != 0)
        return errno == ECHILD ? GONE : ALIVE;
    return info.si_pid != 0 ? ENDED : ALIVE;
}

static struct proc_status reap(pid_t pid)
{
    int status;
    pid_t got;
    do
        got = waitpid(pid, &status, 0);
    while (got < 0 && errno == EINTR);
    if (got != pid)
        return (struct proc_status){.kind = PROC_LOST};
    if (WIFSIGNALED(status))
        return (struct proc_status){.kind = PROC_KILLED, .value = WTERMSIG(status)};
    return (struct proc_status){.kind = PROC_EXITED, .value = WEXITSTATUS(status)};
}

static void finish(struct proc *p, enum life life)
{
    if (p->kill_leftovers && life == ENDED)
        kill(-p->pid, SIGKILL);
    capture_finish(p, &p->out);
    capture_finish(p, &p->err);
    close_announced(p, &p->in_fd);
    buf_clear(&p->input);
    close_announced(p, &p->exit_fd);
    p->status = life == ENDED ? reap(p->pid) : (struct proc_status){.kind = PROC_LOST};
}

size_t proc_fds(const struct proc *p, struct pollfd fds[PROC_FDS_MAX])
{
    const struct pollfd all[PROC_FDS_MAX] = {
        {.fd = p->in_fd, .events = POLLOUT},
        {.fd = p->out.fd, .events = POLLIN},
        {.fd = p->err.fd, .events = POLLIN},
        {.fd = p->exit_fd, .events = POLLIN},
    };
    size_t n = 0;
    for (size_t i = 0; i < PROC_FDS_MAX; i++) {
        if (all[i].fd >= 0)
            fds[n++] = all[i];
    }
    return n;
}

bool proc_poll(struct proc *p)
{
    if (p->status.kind != PROC_RUNNING)
        return true;
    // Asked before the pipes are read: what it wrote before its end is then
    // certainly in them.
    enum life life = look_at(p);
    if (life != ALIVE) {
        finish(p, life);
        return true;
    }
    feed_input(p);
    capture_read(p, &p->out, READ_AT_ONCE);
    capture_read(p, &p->err, READ_AT_ONCE);
    return false;
}

bool proc_wait(struct proc *p, int64_t timeout_ms)
{
    int64_t deadline = timeout_ms >= 0 ? now_ms() + timeout_ms : 0;
    while (!proc_poll(p)) {
        int64_t left = INT_MAX;
        if (timeout_ms >= 0)
            left = deadline - now_ms();
        if (left <= 0)
            return false;
        if (p->exit_fd < 0 && left > POLL_INTERVAL_MS)
            left = POLL_INTERVAL_MS;
        struct pollfd fds[PROC_FDS_MAX];
        size_t n = proc_fds(p, fds);
        poll(fds, (nfds_t)n, left < INT_MAX ? (int)left : INT_MAX);
    }
    return true;
}

static bool send_signal(const struct proc *p, pid_t target, int signo, struct err *e)
{
    if (p->status.kind != PROC_RUNNING)
        return err_set(e, "process %d has ended", (int)p->pid);
    if (kill(target, signo) != 0)
        return err_errno(e, errno, "cannot signal process %d", (int)p->pid);
    return true;
}

bool proc_signal(struct proc *p, int signo, struct err *e)
{
    return send_signal(p, p->pid, signo, e);
}

bool proc_signal_group(struct proc *p, int signo, struct err *e)
{
    return send_signal(p, p->group == PROC_SAME_GROUP ? p->pid : -p->pid, signo, e);
}

// A child that we may not signal (it has become another user) is not waited
// for: that could take for ever.
static void kill_group(struct proc *p)
{
    if (proc_signal_group(p, SIGKILL, NULL))
        proc_wait(p, -1);
}

bool proc_stop(struct proc *p, int signo, int64_t grace_ms)
{
    if (proc_poll(p))
        return true;
    if (proc_signal_group(p, signo, NULL) && proc_wait(p, grace_ms))
        return true;
    kill_group(p);
    return false;
}

void proc_clear(struct proc *p)
{
    if (p->pid <= 0)
        return;
    kill_group(p);
    close_announced(p, &p->in_fd);
    close_announced(p, &p->out.fd);
    close_announced(p, &p->err.fd);
    close_announced(p, &p->exit_fd);
    buf_clear(&p->input);
    buf_clear(&p->out.data);
    buf_clear(&p->err.data);
}

const char *proc_status_text(struct proc_status s, char out[PROC_STATUS_TEXT_MAX])
{
    const char *name;
    switch (s.kind) {
    case PROC_RUNNING: snprintf(out, PROC_STATUS_TEXT_MAX, "still running"); break;
    case PROC_EXITED:
        snprintf(out, PROC_STATUS_TEXT_MAX, "exited with status %d", s.value);
        break;
    case PROC_KILLED:
        name = sigdescr_np(s.value);
        snprintf(out, PROC_STATUS_TEXT_MAX, "killed by signal %d (%s)", s.value,
                 name != NULL ? name : "unknown");
        break;
    case PROC_LOST: snprintf(out, PROC_STATUS_TEXT_MAX, "ended, nobody knows how"); break;
    }
    return out;
}

static void take_output(struct proc_capture *c, struct buf *out, bool *cut)
{
    *cut = c->total > c->data.len;
    *out = c->data;
    c->data = BUF_INIT;
}

bool proc_run(const struct proc_spec *spec, int64_t timeout_ms, struct proc_result *r,
              struct err *e)
{
    *r = (struct proc_result){0};
    struct proc p;
    if (!proc_spawn(&p, spec, e))
        return false;
    bool ok = proc_wait(&p, timeout_ms);
    if (!ok) {
        err_set(e, "%s did not end within %lld ms", spec->argv[0], (long long)timeout_ms);
        proc_stop(&p, SIGTERM, RUN_GRACE_MS);
    }
    r->status = p.status;
    take_output(&p.out, &r->out, &r->out_cut);
    take_output(&p.err, &r->err, &r->err_cut);
    proc_clear(&p);
    return ok;
}

void proc_result_clear(struct proc_result *r)
{
    buf_clear(&r->out);
    buf_clear(&r->err);
    *r = (struct proc_result){0};
}

bool proc_result_check(const struct proc_result *r, const char *what, struct err *e)
{
    if (r->status.kind == PROC_EXITED && r->status.value == 0)
        return true;
    char status[PROC_STATUS_TEXT_MAX];
    proc_status_text(r->status, status);
    const char *text = buf_str(&r->err);
    size_t len = r->err.len;
    while (len > 0 && strchr(" \t\r\n", text[len - 1]) != NULL)
        len--;
    size_t start = len;
    while (start > 0 && text[start - 1] != '\n')
        start--;
    if (start == len)
        return err_set(e, "%s %s", what, status);
    return err_set(e, "%s %s: %.*s", what, status, (int)(len - start), text + start);
}
