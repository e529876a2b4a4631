// SPDX-License-Identifier: Apache-2.0

#include "embed/server.h"

#include <errno.h>
#include <fcntl.h>
#include <libpq-fe.h>
#include <signal.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

#include "core/loop.h"
#include "embed/cluster.h"
#include "embed/place.h"

#define PING_EVERY_MS 10
#define QUIT_MS       2000
#define STOP_SLICE_MS 20
#define LOG_MAX_BYTES (16 << 20)
#define RECOVERY_MS   5000 // how often a long recovery is mentioned

// Opens the log file for appending; one that has become long makes room. With
// the rights of the owner. -1 with `e` filled on failure.
static int open_log(struct server *s, const char *path, struct err *e)
{
    struct stat st;
    if (lstat(path, &st) == 0 && st.st_size > LOG_MAX_BYTES) {
        char *old = xasprintf("%s.old", path);
        if (rename(path, old) != 0)
            err_clear(e); // then it goes on growing: no reason not to start
        free(old);
    }
    int fd = open(path, O_WRONLY | O_APPEND | O_CREAT | O_CLOEXEC | O_NOFOLLOW, 0600);
    if (fd < 0) {
        err_errno(e, errno, "cannot write %s", path);
        return -1;
    }
    s->log_from = lseek(fd, 0, SEEK_END);
    return fd;
}

// A name in the list that unix_socket_directories is.
static char *quote_socket_setting(const char *dir)
{
    struct buf b = BUF_INIT;
    buf_adds(&b, "unix_socket_directories=\"");
    for (const char *p = dir; *p != '\0'; p++) {
        if (*p == '"')
            buf_addc(&b, '"');
        buf_addc(&b, *p);
    }
    buf_addc(&b, '"');
    return buf_detach(&b);
}

bool server_spawn(struct server *s, const struct child_context *x, const char *socket_dir,
                  const char *log_file, struct err *e)
{
    char *program = place_path(x->bindir, "postgres");
    char *sockets = quote_socket_setting(socket_dir);
    const char *const argv[] = {program,
                                "-D",
                                x->data,
                                "-p",
                                CLUSTER_PORT,
                                "-c",
                                sockets,
                                "-c",
                                "listen_addresses=",
                                "-c",
                                "unix_socket_permissions=0700",
                                NULL};
    char **env = child_environment(x->owner);
    struct proc_user user = {0};
    int fd = -1;
    *s = (struct server){0};

    if (x->owner->other && !proc_user_find(x->owner->name, &user, e))
        goto out;
    if (!owner_enter(x->owner, e))
        goto out;
    fd = open_log(s, log_file, e);
    owner_leave(x->owner);
    if (fd < 0)
        goto out;
    struct proc_spec spec = {.argv = argv,
                             .env = (const char *const *)env,
                             .cwd = x->dir,
                             .out = {.mode = PROC_TO_FD, .fd = fd},
                             .err = {.mode = PROC_TO_FD, .fd = fd},
                             .group = PROC_NEW_SESSION,
                             .user = x->owner->other ? &user : NULL,
                             .umask = 077,
                             .death_signal = SIGINT};
    s->spawned = proc_spawn(&s->proc, &spec, e);
out:
    if (fd >= 0)
        close(fd);
    proc_user_clear(&user);
    child_environment_free(env);
    free(sockets);
    free(program);
    return s->spawned;
}

bool server_ended(struct server *s)
{
    return !s->spawned || proc_poll(&s->proc);
}

bool server_report_end(const struct server *s, struct err *e)
{
    char text[PROC_STATUS_TEXT_MAX];
    return err_set(e, "the server %s%s", s->proc.status.kind == PROC_KILLED ? "was " : "",
                   proc_status_text(s->proc.status, text));
}

// It ended before it was up: then all it has logged is about that.
static bool report_failed_start(const struct server *s, const char *dir,
                                const char *log_file, struct err *e)
{
    struct buf reason = BUF_INIT;
    if (child_add_log_reason(log_file, s->log_from, &reason))
        err_set(e, "the server says: %s", reason.data);
    else
        server_report_end(s, e);
    err_hint(e, "see %s", log_file);
    child_hint_for(buf_str(&reason), dir, e);
    buf_clear(&reason);
    return false;
}

static bool report_silence(const struct server *s, const char *log_file, int timeout_ms,
                           struct err *e)
{
    struct buf reason = BUF_INIT;
    bool more = child_add_log_reason(log_file, s->log_from, &reason);
    err_set(e, "the server does not answer after %d ms%s%s", timeout_ms, more ? ": " : "",
            buf_str(&reason));
    buf_clear(&reason);
    return err_hint(e, "see %s", log_file);
}

bool server_wait_ready(struct server *s, const struct child_context *x,
                       const char *conninfo, const char *log_file, int timeout_ms,
                       struct err *e)
{
    int64_t begun = loop_now_ms();
    int64_t sign_of_life = begun;
    int64_t mentioned = begun;
    for (;;) {
        if (proc_wait(&s->proc, PING_EVERY_MS))
            return report_failed_start(s, x->dir, log_file, e);
        PGPing answer = PQping(conninfo);
        int64_t now = loop_now_ms();
        if (answer == PQPING_OK)
            return true;
        if (child_interrupted(x))
            return err_set(e, "interrupted");
        if (answer == PQPING_REJECT)
            sign_of_life = now;
        if (now - sign_of_life > timeout_ms)
            return report_silence(s, log_file, timeout_ms, e);
        if (answer == PQPING_REJECT && now - mentioned > RECOVERY_MS) {
            mentioned = now;
            log_info(x->log, "the server is recovering", LOG_I("after_ms", now - begun));
        }
    }
}

// True when the server ended within the time.
static bool wait_end(struct server *s, int timeout_ms, bool (*hurry)(void *arg),
                     void *arg)
{
    int64_t deadline = loop_now_ms() + timeout_ms;
    while (!proc_wait(&s->proc, STOP_SLICE_MS))
        if (loop_now_ms() >= deadline || (hurry != NULL && hurry(arg)))
            return false;
    return true;
}

bool server_stop(struct server *s, int timeout_ms, bool (*hurry)(void *arg), void *arg)
{
    bool clean = true;
    if (!s->spawned)
        return true;
    if (!server_ended(s)) {
        proc_signal(&s->proc, SIGINT, NULL);
        clean = wait_end(s, timeout_ms, hurry, arg);
        if (!clean) {
            proc_signal(&s->proc, SIGQUIT, NULL);
            wait_end(s, QUIT_MS, NULL, NULL);
        }
    }
    proc_clear(&s->proc); // kills what still runs
    s->spawned = false;
    return clean;
}
