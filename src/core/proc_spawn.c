// SPDX-License-Identifier: Apache-2.0
//
// The start of a child: everything up to the moment at which the program runs.
// Between fork and exec only async-signal-safe calls are made, because another
// thread may have held any lock at the fork; so all memory (the paths to try)
// is made before it. What goes wrong in the child comes back through a pipe
// that closes by itself when exec succeeds.

#include "core/proc.h"

#include <errno.h>
#include <fcntl.h>
#include <grp.h>
#include <pwd.h>
#include <signal.h>
#include <stdlib.h>
#include <string.h>
#include <sys/prctl.h>
#include <sys/resource.h>
#include <sys/stat.h>
#include <sys/syscall.h>
#include <sys/wait.h>
#include <unistd.h>

#define FALLBACK_PATH  "/usr/local/bin:/usr/bin:/bin"
#define CHILD_FAILED   127
#define FD_SEARCH_MAX  ((rlim_t)1 << 20)
#define FIRST_OTHER_FD 3

enum step {
    STEP_GROUP,
    STEP_STDIO,
    STEP_USER,
    STEP_CWD,
    STEP_DEATH_SIGNAL,
    STEP_EXEC,
};

static const char *const step_texts[] = {
    [STEP_GROUP] = "cannot make a process group",
    [STEP_STDIO] = "cannot set up standard input and output",
    [STEP_USER] = "cannot change the user",
    [STEP_CWD] = "cannot change to directory",
    [STEP_DEATH_SIGNAL] = "cannot ask for the parent death signal",
    [STEP_EXEC] = NULL,
};

struct failure {
    enum step step;
    int errnum;
};

// What the child needs after the fork, and the parent has to close then.
struct launch {
    const struct proc_spec *spec;
    char **paths;     // to try, in order; ends with NULL
    int stdio[3];     // become 0, 1 and 2
    bool borrowed[3]; // and are not ours to close
    int failure_fd;   // write end, in the child
    pid_t parent;
    sigset_t old_mask;
};

// ---------------------------------------------------------------- the child

_Noreturn static void fail(const struct launch *l, enum step step)
{
    struct failure f = {.step = step, .errnum = errno};
    ssize_t n;
    do
        n = write(l->failure_fd, &f, sizeof f);
    while (n < 0 && errno == EINTR);
    _exit(CHILD_FAILED);
}

// Handlers of the parent must not run here, and what the parent ignores must
// not stay ignored in the program.
static void reset_signals(void)
{
    struct sigaction sa = {.sa_handler = SIG_DFL};
    for (int signo = 1; signo < NSIG; signo++)
        sigaction(signo, &sa, NULL); // fails for KILL, STOP and libc's own: fine
}

static void join_group(const struct launch *l)
{
    int rc = 0;
    switch (l->spec->group) {
    case PROC_NEW_GROUP: rc = setpgid(0, 0); break;
    case PROC_NEW_SESSION: rc = setsid() < 0 ? -1 : 0; break;
    case PROC_SAME_GROUP: break;
    }
    if (rc != 0)
        fail(l, STEP_GROUP);
}

// In two rounds, because a source may be one of the targets: first out of the
// way, then into place, where dup2() takes away close-on-exec.
static void place_stdio(const struct launch *l)
{
    int moved[3];
    for (int i = 0; i < 3; i++) {
        moved[i] = fcntl(l->stdio[i], F_DUPFD_CLOEXEC, FIRST_OTHER_FD);
        if (moved[i] < 0 && errno == EBADF) // the parent runs without it
            moved[i] = open("/dev/null", O_RDWR | O_CLOEXEC);
        if (moved[i] < 0)
            fail(l, STEP_STDIO);
        if (moved[i] < FIRST_OTHER_FD) {
            moved[i] = fcntl(moved[i], F_DUPFD_CLOEXEC, FIRST_OTHER_FD);
            if (moved[i] < 0)
                fail(l, STEP_STDIO);
        }
    }
    for (int i = 0; i < 3; i++) {
        if (dup2(moved[i], i) < 0)
            fail(l, STEP_STDIO);
    }
}

static void change_user(const struct launch *l)
{
    const struct proc_user *u = l->spec->user;
    if (u == NULL)
        return;
    if (setgroups(u->group_count, u->groups) != 0 ||
        setresgid(u->gid, u->gid, u->gid) != 0 || setresuid(u->uid, u->uid, u->uid) != 0)
        fail(l, STEP_USER);
}

// After the change of user, which would clear it. A parent that died before
// the call sends nothing any more.
static void ask_death_signal(const struct launch *l)
{
    if (l->spec->death_signal == 0)
        return;
    if (prctl(PR_SET_PDEATHSIG, l->spec->death_signal) != 0)
        fail(l, STEP_DEATH_SIGNAL);
    if (getppid() != l->parent)
        _exit(CHILD_FAILED);
}

// Marked, not closed: the failure pipe is still needed.
static void mark_close_on_exec(void)
{
    if (close_range(FIRST_OTHER_FD, ~0U, CLOSE_RANGE_CLOEXEC) == 0)
        return;
    struct rlimit limit;
    if (getrlimit(RLIMIT_NOFILE, &limit) != 0 || limit.rlim_cur > FD_SEARCH_MAX)
        limit.rlim_cur = FD_SEARCH_MAX;
    for (int fd = FIRST_OTHER_FD; fd < (int)limit.rlim_cur; fd++)
        fcntl(fd, F_SETFD, FD_CLOEXEC);
}

static void exec_program(const struct launch *l)
{
    char *const *argv = (char *const *)l->spec->argv;
    char *const *env = l->spec->env != NULL ? (char *const *)l->spec->env : environ;
    int errnum = ENOENT;
    for (char **path = l->paths; *path != NULL; path++) {
        execve(*path, argv, env);
        if (errno == ENOENT || errno == ENOTDIR)
            continue;
        errnum = errno; // more to the point than that the rest is not there
        if (errno != EACCES)
            break;
    }
    errno = errnum;
}

_Noreturn static void run_child(const struct launch *l)
{
    reset_signals();
    join_group(l);
    place_stdio(l);
    change_user(l);
    if (l->spec->cwd != NULL && chdir(l->spec->cwd) != 0)
        fail(l, STEP_CWD);
    if (l->spec->umask != 0)
        umask(l->spec->umask);
    ask_death_signal(l);
    mark_close_on_exec();
    sigset_t none;
    sigemptyset(&none);
    sigprocmask(SIG_SETMASK, &none, NULL);
    exec_program(l);
    fail(l, STEP_EXEC);
}

// --------------------------------------------------------------- the parent

static void close_fd(int *fd)
{
    if (*fd >= 0)
        close(*fd);
    *fd = -1;
}

// Out of the way of 0, 1 and 2, in case the parent runs without one of them.
static bool keep_above_stdio(int *fd)
{
    if (*fd >= FIRST_OTHER_FD)
        return true;
    int moved = fcntl(*fd, F_DUPFD_CLOEXEC, FIRST_OTHER_FD);
    int errnum = errno;
    close(*fd);
    *fd = moved;
    errno = errnum;
    return moved >= 0;
}

static bool make_pipe(int *read_end, int *write_end, struct err *e)
{
    int fds[2];
    if (pipe2(fds, O_CLOEXEC) != 0)
        return err_errno(e, errno, "cannot make a pipe");
    *read_end = fds[0];
    *write_end = fds[1];
    if (!keep_above_stdio(read_end) || !keep_above_stdio(write_end))
        return err_errno(e, errno, "cannot make a pipe");
    return true;
}

static bool open_null(int *fd, struct err *e)
{
    *fd = open("/dev/null", O_RDWR | O_CLOEXEC);
    if (*fd < 0 || !keep_above_stdio(fd))
        return err_errno(e, errno, "cannot open /dev/null");
    return true;
}

static bool set_nonblocking(int fd)
{
    int flags = fcntl(fd, F_GETFL);
    return flags >= 0 && fcntl(fd, F_SETFL, flags | O_NONBLOCK) == 0;
}

static bool prepare_input(struct proc *p, struct launch *l, struct err *e)
{
    const struct proc_spec *spec = l->spec;
    if (spec->input == NULL)
        return open_null(&l->stdio[0], e);
    if (!make_pipe(&l->stdio[0], &p->in_fd, e))
        return false;
    buf_add(&p->input, spec->input, spec->input_len);
    return set_nonblocking(p->in_fd) || err_errno(e, errno, "cannot make a pipe");
}

static bool prepare_output(struct launch *l, int target, const struct proc_output *o,
                           struct proc_capture *c, struct err *e)
{
    switch (o->mode) {
    case PROC_CAPTURE:
        c->cap = o->cap != 0 ? o->cap : PROC_DEFAULT_CAP;
        if (!make_pipe(&c->fd, &l->stdio[target], e))
            return false;
        return set_nonblocking(c->fd) || err_errno(e, errno, "cannot make a pipe");
    case PROC_DISCARD: return open_null(&l->stdio[target], e);
    case PROC_INHERIT:
    case PROC_TO_FD:
        l->stdio[target] = o->mode == PROC_TO_FD ? o->fd : target;
        l->borrowed[target] = true;
        return true;
    }
    BUG("output mode %d", (int)o->mode);
}

static const char *find_path(const struct proc_spec *spec)
{
    const char *path = NULL;
    if (spec->env == NULL)
        path = getenv("PATH");
    for (size_t i = 0; spec->env != NULL && spec->env[i] != NULL; i++) {
        if (strncmp(spec->env[i], "PATH=", 5) == 0)
            path = spec->env[i] + 5;
    }
    return path != NULL && path[0] != '\0' ? path : FALLBACK_PATH;
}

// Empty elements of PATH, which would mean the working directory, are left out.
static char **list_paths(const struct proc_spec *spec)
{
    const char *program = spec->argv[0];
    const char *path = strchr(program, '/') != NULL ? NULL : find_path(spec);
    size_t n = 1;
    for (const char *s = path; s != NULL && *s != '\0'; s++)
        n += *s == ':';
    char **list = xcalloc(n + 1, sizeof *list);
    if (path == NULL) {
        list[0] = xstrdup(program);
        return list;
    }
    n = 0;
    while (*path != '\0') {
        size_t len = strcspn(path, ":");
        if (len > 0)
            list[n++] = xasprintf("%.*s/%s", (int)len, path, program);
        path += len + (path[len] == ':');
    }
    return list;
}

static pid_t fork_child(struct launch *l)
{
    // No handler of the parent may run in the child before it is reset there.
    sigset_t all;
    sigfillset(&all);
    pthread_sigmask(SIG_SETMASK, &all, &l->old_mask);
    l->parent = getpid();
    pid_t pid = fork();
    if (pid == 0)
        run_child(l);
    int errnum = errno;
    pthread_sigmask(SIG_SETMASK, &l->old_mask, NULL);
    errno = errnum;
    return pid;
}

// Waits until the program runs, or has failed to.
static bool await_exec(const struct proc_spec *spec, int fd, struct err *e)
{
    struct failure f;
    ssize_t n;
    do
        n = read(fd, &f, sizeof f);
    while (n < 0 && errno == EINTR);
    if (n == 0)
        return true;
    if (n < 0)
        return err_errno(e, errno, "cannot run %s", spec->argv[0]);
    if (n != sizeof f)
        BUG("%zd bytes from a child", n);
    const char *text = step_texts[f.step];
    if (text == NULL)
        return err_errno(e, f.errnum, "cannot run %s", spec->argv[0]);
    if (f.step == STEP_CWD)
        return err_errno(e, f.errnum, "cannot run %s: %s %s", spec->argv[0], text,
                         spec->cwd);
    return err_errno(e, f.errnum, "cannot run %s: %s", spec->argv[0], text);
}

static void launch_clear(struct launch *l)
{
    for (int i = 0; i < 3; i++) {
        if (!l->borrowed[i])
            close_fd(&l->stdio[i]);
    }
    close_fd(&l->failure_fd);
    for (char **path = l->paths; *path != NULL; path++)
        free(*path);
    free(l->paths);
}

static void proc_init(struct proc *p, const struct proc_spec *spec)
{
    *p = (struct proc){
        .status = {.kind = PROC_RUNNING},
        .out = {.fd = -1},
        .err = {.fd = -1, .keep_tail = true},
        .group = spec->group,
        .kill_leftovers = spec->kill_leftovers && spec->group != PROC_SAME_GROUP,
        .exit_fd = -1,
        .in_fd = -1,
        .before_close = spec->before_close,
        .before_close_arg = spec->before_close_arg,
    };
}

bool proc_spawn(struct proc *p, const struct proc_spec *spec, struct err *e)
{
    if (spec->argv == NULL || spec->argv[0] == NULL)
        BUG("a child without a program");
    proc_init(p, spec);
    struct launch l = {.spec = spec, .stdio = {-1, -1, -1}, .failure_fd = -1};
    l.paths = list_paths(spec);
    int failure_fd = -1;
    bool ok = prepare_input(p, &l, e) && prepare_output(&l, 1, &spec->out, &p->out, e) &&
              prepare_output(&l, 2, &spec->err, &p->err, e) &&
              make_pipe(&failure_fd, &l.failure_fd, e);
    if (!ok)
        goto out;
    p->pid = fork_child(&l);
    if (p->pid < 0) {
        ok = err_errno(e, errno, "cannot fork");
        goto out;
    }
    close_fd(&l.failure_fd);
    ok = await_exec(spec, failure_fd, e);
    if (ok)
        p->exit_fd = (int)syscall(SYS_pidfd_open, p->pid, 0);
    else
        while (waitpid(p->pid, NULL, 0) < 0 && errno == EINTR)
            continue;
out:
    if (!ok) {
        close_fd(&p->in_fd);
        close_fd(&p->out.fd);
        close_fd(&p->err.fd);
        buf_clear(&p->input);
        p->pid = 0;
        p->status.kind = PROC_LOST;
    }
    close_fd(&failure_fd);
    launch_clear(&l);
    return ok;
}

// -------------------------------------------------------------------- users

static bool find_groups(const char *name, struct proc_user *u)
{
    int n = 32;
    for (;;) {
        int room = n;
        u->groups = xrealloc(u->groups, (size_t)room * sizeof *u->groups);
        if (getgrouplist(name, u->gid, u->groups, &n) >= 0)
            break;
        if (n <= room)
            return false;
    }
    u->group_count = (size_t)n;
    return true;
}

bool proc_user_find(const char *name, struct proc_user *u, struct err *e)
{
    *u = (struct proc_user){0};
    struct passwd pw, *found = NULL;
    size_t size = 1024;
    char *text = xmalloc(size);
    int errnum;
    while ((errnum = getpwnam_r(name, &pw, text, size, &found)) == ERANGE) {
        size *= 2;
        text = xrealloc(text, size);
    }
    bool ok = found != NULL;
    if (ok) {
        u->uid = pw.pw_uid;
        u->gid = pw.pw_gid;
        ok =
            find_groups(name, u) || err_set(e, "cannot find the groups of user %s", name);
    } else if (errnum != 0 && errnum != ENOENT) {
        err_errno(e, errnum, "cannot look up user %s", name);
    } else {
        err_set(e, "there is no user %s", name);
    }
    if (!ok)
        proc_user_clear(u);
    free(text);
    return ok;
}

void proc_user_clear(struct proc_user *u)
{
    free(u->groups);
    *u = (struct proc_user){0};
}
