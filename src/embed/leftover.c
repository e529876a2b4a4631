// SPDX-License-Identifier: Apache-2.0

#include "embed/leftover.h"

#include <ctype.h>
#include <dirent.h>
#include <errno.h>
#include <fcntl.h>
#include <limits.h>
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <time.h>
#include <unistd.h>

#include "core/buf.h"
#include "core/loop.h"
#include "embed/cluster.h"
#include "embed/place.h"

#define POLL_MS  20
#define MAX_PIDS 256

// Whether the process has `dir` as its working directory and is a server.
// Somebody's shell may stand in the directory too. A process that may not be
// looked at belongs to somebody else, and so is not ours.
static bool is_server_in(pid_t pid, const struct stat *dir)
{
    char path[64];
    char exe[PATH_MAX];
    struct stat st;

    snprintf(path, sizeof(path), "/proc/%ld/cwd", (long)pid);
    if (stat(path, &st) != 0 || st.st_dev != dir->st_dev || st.st_ino != dir->st_ino)
        return false;
    snprintf(path, sizeof(path), "/proc/%ld/exe", (long)pid);
    ssize_t n = readlink(path, exe, sizeof(exe) - 1);
    // On its way out, with its memory, and the shared memory in it, perhaps
    // still there: the working directory goes after that.
    if (n < 0)
        return errno == ENOENT;
    exe[n] = '\0';
    // An upgrade of the package replaces the file under a running server.
    char *deleted = strstr(exe, " (deleted)");
    if (deleted != NULL)
        *deleted = '\0';
    const char *base = strrchr(exe, '/');
    return base != NULL && strcmp(base, "/postgres") == 0;
}

size_t leftover_find(const char *data, pid_t *pids, size_t max)
{
    struct stat dir;
    size_t found = 0;
    if (stat(data, &dir) != 0)
        return 0;
    DIR *list = opendir("/proc");
    if (list == NULL)
        return 0;
    for (struct dirent *ent; (ent = readdir(list)) != NULL;) {
        if (!isdigit((unsigned char)ent->d_name[0]))
            continue;
        pid_t pid = (pid_t)strtol(ent->d_name, NULL, 10);
        if (!is_server_in(pid, &dir))
            continue;
        if (found < max)
            pids[found] = pid;
        found++;
    }
    closedir(list);
    return found;
}

pid_t leftover_postmaster(const char *data)
{
    char text[32];
    struct stat dir;
    char *path = place_path(data, "postmaster.pid");
    int fd = open(path, O_RDONLY | O_CLOEXEC | O_NOFOLLOW | O_NONBLOCK);
    free(path);
    if (fd < 0)
        return 0;
    ssize_t n = read(fd, text, sizeof(text) - 1);
    close(fd);
    if (n <= 0)
        return 0;
    text[n] = '\0';
    // Negative in a file that a server in single-user mode has written.
    long pid = labs(strtol(text, NULL, 10));
    if (pid <= 0 || pid > INT_MAX || stat(data, &dir) != 0)
        return 0;
    return is_server_in((pid_t)pid, &dir) ? (pid_t)pid : 0;
}

// False when interrupted; otherwise `gone` says whether nothing is left.
static bool wait_gone(const char *data, const struct leftover_wait *w, int timeout_ms,
                      bool *gone)
{
    int64_t deadline = loop_now_ms() + timeout_ms;
    for (;;) {
        *gone = leftover_find(data, NULL, 0) == 0;
        if (*gone || loop_now_ms() >= deadline)
            return true;
        if (w->interrupted != NULL && w->interrupted(w->arg))
            return false;
        nanosleep(&(struct timespec){.tv_nsec = POLL_MS * 1000000L}, NULL);
    }
}

static void signal_all(const char *data, int signo)
{
    pid_t pids[MAX_PIDS];
    size_t n = leftover_find(data, pids, MAX_PIDS);
    for (size_t i = 0; i < n && i < MAX_PIDS; i++)
        kill(pids[i], signo);
}

bool leftover_end(const char *data, const struct leftover_wait *w, struct log *log,
                  struct err *e)
{
    bool gone = false;
    size_t count = leftover_find(data, NULL, 0);
    pid_t postmaster = leftover_postmaster(data);

    if (count == 0)
        return true;
    if (postmaster != 0) {
        log_info(log, "waiting for an earlier server to stop", LOG_I("pid", postmaster));
        kill(postmaster, SIGINT);
        if (!wait_gone(data, w, w->fast_ms, &gone))
            return err_set(e, "interrupted");
        if (gone)
            return true;
    }
    log_warn(log, "ending server processes that an earlier run left behind",
             LOG_I("count", (int64_t)count));
    static const int signals[] = {SIGQUIT, SIGKILL};
    for (size_t i = 0; i < sizeof(signals) / sizeof(signals[0]); i++) {
        signal_all(data, signals[i]);
        if (!wait_gone(data, w, i == 0 ? w->quit_ms : w->kill_ms, &gone))
            return err_set(e, "interrupted");
        if (gone)
            return true;
    }
    pid_t pid = 0;
    leftover_find(data, &pid, 1);
    err_set(e, "a server process of an earlier run in %s does not end (pid %ld)", data,
            (long)pid);
    return err_hint(e, "see what it is doing with: ps -fp %ld", (long)pid);
}

bool leftover_remove_files(const char *data, const char *socket_dir, struct log *log,
                           struct err *e)
{
    static const char sock[] = ".s.PGSQL." CLUSTER_PORT;
    char *paths[] = {
        place_path(data, "postmaster.pid"),
        place_path(socket_dir, sock),
        xasprintf("%s/%s.lock", socket_dir, sock),
    };
    bool ok = true;
    for (size_t i = 0; i < sizeof(paths) / sizeof(paths[0]); i++) {
        if (ok && unlink(paths[i]) == 0)
            log_info(log, "removed a stale file", LOG_S("path", paths[i]));
        else if (ok && errno != ENOENT)
            ok = err_errno(e, errno, "cannot remove the stale file %s", paths[i]);
        free(paths[i]);
    }
    return ok;
}
