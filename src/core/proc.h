// SPDX-License-Identifier: Apache-2.0
//
// Child processes, on plain POSIX calls: nothing here needs an event loop, and
// nothing blocks one. A child gets exactly what its spec says: its own process
// group, an explicit environment, default signal handling, no file descriptor
// besides 0, 1 and 2. Its output is kept up to a limit and read to the end, so
// that a chatty child neither fills the memory nor blocks on a full pipe.
//
// Three ways to use it:
//   - proc_run(): run it, wait for it, get its output.
//   - proc_spawn(), then proc_wait() now and then.
//   - in an event loop: watch the descriptors that proc_fds() names, call
//     proc_poll() whenever one of them is ready and stop watching a descriptor
//     when spec.before_close says so.
//
// The child is over when it has ended, not when its pipes are closed: a
// grandchild that keeps them open is not waited for.

#ifndef PGKIN_CORE_PROC_H
#define PGKIN_CORE_PROC_H

#include <poll.h>
#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>
#include <sys/types.h>

#include "core/buf.h"
#include "core/err.h"

#define PROC_DEFAULT_CAP ((size_t)1 << 20)

enum proc_group {
    PROC_NEW_GROUP,   // leads a new process group
    PROC_NEW_SESSION, // leads a new session (and so a new group): no terminal
    PROC_SAME_GROUP,  // stays in ours: gets the terminal's Ctrl-C
};

enum proc_output_mode {
    PROC_CAPTURE, // a pipe; up to `cap` bytes are kept
    PROC_DISCARD, // /dev/null
    PROC_INHERIT, // ours
    PROC_TO_FD,   // `fd`, which is borrowed
};

struct proc_output {
    enum proc_output_mode mode;
    int fd;     // for PROC_TO_FD
    size_t cap; // for PROC_CAPTURE; 0: PROC_DEFAULT_CAP
};

// Whom to become. All of it is set, nothing of the parent's rights is kept.
struct proc_user {
    uid_t uid;
    gid_t gid;
    gid_t *groups;
    size_t group_count;
};

// Everything is borrowed until proc_spawn() returns. Zero is a sensible value
// of each field but argv.
struct proc_spec {
    const char *const *argv; // ends with NULL; argv[0] without a slash is searched
                             // in the PATH of `env`
    const char *const *env;  // "NAME=value", ends with NULL; NULL: ours
    const char *cwd;         // NULL: ours
    const void *input;       // standard input, copied; NULL: /dev/null
    size_t input_len;
    struct proc_output out; // standard output: the first `cap` bytes are kept
    struct proc_output err; // standard error: the last `cap` bytes are kept
    enum proc_group group;
    const struct proc_user *user; // NULL: ours
    mode_t umask;                 // 0: ours

    // Sent to the child when the *thread* that spawned it ends; 0: none.
    int death_signal;

    // As soon as the child itself has ended, kill what is left of its group.
    // Not with PROC_SAME_GROUP.
    bool kill_leftovers;

    // Called before a descriptor that proc_fds() has named is closed.
    void (*before_close)(void *arg, int fd);
    void *before_close_arg;
};

struct proc_status {
    enum {
        PROC_RUNNING,
        PROC_EXITED, // value: exit status
        PROC_KILLED, // value: signal
        PROC_LOST,   // somebody else has reaped it
    } kind;
    int value;
};

// One captured stream.
struct proc_capture {
    int fd; // -1: not captured, or at its end
    size_t cap;
    bool keep_tail;
    struct buf data;
    uint64_t total; // bytes seen; more than data.len: it was cut
};

// Read what you like; change nothing. Output is complete, and cut to its
// limit, when the status is no longer PROC_RUNNING.
struct proc {
    pid_t pid;
    struct proc_status status;
    struct proc_capture out;
    struct proc_capture err;

    enum proc_group group;
    bool kill_leftovers;
    int exit_fd; // a pidfd; -1: the kernel has none, or the child has ended
    int in_fd;   // -1: all input is written, or nobody reads it
    struct buf input;
    size_t input_done;
    void (*before_close)(void *arg, int fd);
    void *before_close_arg;
};

// Starts a child. True means that the program really runs: a missing file, a
// missing directory or a refused change of user is an error here. `p` needs
// no initialisation; after true, proc_clear() is owed (and harmless else).
bool proc_spawn(struct proc *p, const struct proc_spec *spec, struct err *e);

// Descriptors to watch, with the events to watch them for; returns how many.
// All are non-blocking. Without a pidfd the end of the child cannot be watched
// for: then call proc_poll() also after SIGCHLD or now and then.
#define PROC_FDS_MAX 4
size_t proc_fds(const struct proc *p, struct pollfd fds[PROC_FDS_MAX]);

// Does what can be done without waiting: writes input, reads output, looks
// whether the child has ended. True when it has.
bool proc_poll(struct proc *p);

// The same, waiting for the end up to `timeout_ms` (negative: for ever). False
// when the time is over.
bool proc_wait(struct proc *p, int64_t timeout_ms);

// Sends a signal to the child, or to its whole group (with PROC_SAME_GROUP to
// the child alone). Fails when the child has ended.
bool proc_signal(struct proc *p, int signo, struct err *e);
bool proc_signal_group(struct proc *p, int signo, struct err *e);

// Sends `signo` to the group, waits up to `grace_ms`, then kills the group and
// waits for the end. True when the grace was enough.
bool proc_stop(struct proc *p, int signo, int64_t grace_ms);

// Frees. A child that still runs is killed with its group, and reaped. A struct
// that is all zeros is fine.
void proc_clear(struct proc *p);

// "exited with status 3", "killed by signal 9 (Killed)". Returns `out`.
#define PROC_STATUS_TEXT_MAX 64
const char *proc_status_text(struct proc_status s, char out[PROC_STATUS_TEXT_MAX]);

struct proc_result {
    struct proc_status status;
    struct buf out; // empty when the spec does not capture it
    struct buf err;
    bool out_cut; // there was more than the limit
    bool err_cut;
};

// Runs a child to its end. True when it ended by itself within `timeout_ms`
// (negative: no limit), however it ended. At the limit it is sent SIGTERM,
// two seconds later SIGKILL, and that is an error. `r` is filled also then, as
// far as known; caller frees it with proc_result_clear() in any case.
bool proc_run(const struct proc_spec *spec, int64_t timeout_ms, struct proc_result *r,
              struct err *e);
void proc_result_clear(struct proc_result *r);

// True for exit status 0. Else an error that says how `what` ended, with the
// last line of its standard error.
bool proc_result_check(const struct proc_result *r, const char *what, struct err *e);

// Fills `u` from the system's user database, groups included; caller frees
// with proc_user_clear().
bool proc_user_find(const char *name, struct proc_user *u, struct err *e);
void proc_user_clear(struct proc_user *u);

#endif
