// SPDX-License-Identifier: Apache-2.0

#include "embed/initdb.h"

#include <errno.h>
#include <fcntl.h>
#include <locale.h>
#include <signal.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "core/loop.h"
#include "core/proc.h"
#include "embed/cluster.h"
#include "embed/dir.h"
#include "embed/leftover.h"
#include "embed/place.h"

#define INITDB_TIMEOUT_MS 300000
#define WAIT_SLICE_MS     20

// Where the server listens is not here: that is on its command line, at every
// start, since the directory may move.
static const char settings[] =
    "\n"
    "# Written by pgkin when this cluster was made; yours to change from then on.\n"
    "max_connections = 100\n"
    "shared_buffers = 128MB\n"
    "fsync = on\n"
    "full_page_writes = on\n"
    "max_wal_size = 1GB\n"
    "# Queue tables change all the time: look after them often.\n"
    "autovacuum_naptime = 10s\n"
    "logging_collector = off\n"
    "log_destination = 'stderr'\n"
    "log_line_prefix = '%m [%p] '\n"
    "log_checkpoints = off\n";

static const char hba[] =
    "# Written by pgkin when this cluster was made; yours to change from then on.\n"
    "# Only operating system users that pg_ident.conf maps to a role get in.\n"
    "local all all peer map=pgkin\n"
    "local replication all peer map=pgkin\n";

static bool write_file(const char *dir, const char *name, int flags, const void *data,
                       size_t len, struct err *e)
{
    char *path = place_path(dir, name);
    bool ok = false;
    int fd = open(path, O_WRONLY | O_CLOEXEC | O_NOFOLLOW | flags, 0600);
    if (fd < 0)
        goto out;
    for (size_t done = 0; done < len;) {
        ssize_t n = write(fd, (const char *)data + done, len - done);
        if (n < 0)
            goto out;
        done += (size_t)n;
    }
    ok = fsync(fd) == 0;
out:
    if (!ok)
        err_errno(e, errno, "cannot write %s", path);
    if (fd >= 0)
        close(fd);
    free(path);
    return ok;
}

static bool sync_directory(const char *path, struct err *e)
{
    int fd = open(path, O_RDONLY | O_DIRECTORY | O_CLOEXEC);
    bool ok = fd >= 0 && fsync(fd) == 0;
    if (!ok)
        err_errno(e, errno, "cannot sync %s", path);
    if (fd >= 0)
        close(fd);
    return ok;
}

static void add_ident_line(struct buf *out, const char *user)
{
    buf_addf(out, "pgkin \"%s\" " CLUSTER_ROLE "\n", user);
}

bool initdb_write_ident(const char *data, const char *owner, const char *self,
                        struct err *e)
{
    struct buf text = BUF_INIT;
    char *path = place_path(data, "pg_ident.conf");
    char *temp = place_path(data, "pg_ident.conf.new");
    buf_adds(&text, "# Written by pgkin at every start.\n");
    add_ident_line(&text, owner);
    if (strcmp(self, owner) != 0)
        add_ident_line(&text, self);
    if (strcmp(owner, "root") != 0 && strcmp(self, "root") != 0)
        add_ident_line(&text, "root");
    unlink(temp);
    bool ok =
        write_file(data, "pg_ident.conf.new", O_CREAT | O_EXCL, text.data, text.len, e);
    if (ok && rename(temp, path) != 0)
        ok = err_errno(e, errno, "cannot write %s", path);
    free(temp);
    free(path);
    buf_clear(&text);
    return ok;
}

// After a killed `pgkin start` its initdb has been killed too, but not what
// initdb had started.
static bool remove_leftover(const struct child_context *x, const char *data_new,
                            struct err *e)
{
    const struct leftover_wait wait = {.quit_ms = 1000,
                                       .kill_ms = 5000,
                                       .interrupted = x->interrupted,
                                       .arg = x->interrupted_arg};
    if (!owner_enter(x->owner, e))
        return false;
    bool ok = leftover_end(data_new, &wait, x->log, e) && dir_remove_tree(data_new, e);
    owner_leave(x->owner);
    return ok;
}

// Byte order for comparisons, and characters as Unicode knows them where the
// system has such a locale.
static const char *choose_ctype(void)
{
    locale_t loc = newlocale(LC_CTYPE_MASK, "C.UTF-8", (locale_t)0);
    if (loc == (locale_t)0)
        return "--lc-ctype=C";
    freelocale(loc);
    return "--lc-ctype=C.UTF-8";
}

static bool wait_end(const struct child_context *x, struct proc *p, struct err *e)
{
    int64_t deadline = loop_now_ms() + INITDB_TIMEOUT_MS;
    while (!proc_wait(p, WAIT_SLICE_MS)) {
        if (child_interrupted(x))
            return err_set(e, "interrupted");
        if (loop_now_ms() > deadline)
            return err_set(e, "initdb did not end within %d s", INITDB_TIMEOUT_MS / 1000);
    }
    if (p->status.kind == PROC_EXITED && p->status.value == 0)
        return true;

    char text[PROC_STATUS_TEXT_MAX];
    struct buf reason = BUF_INIT;
    child_add_reason(buf_str(&p->err.data), true, &reason);
    if (reason.len > 0)
        err_set(e, "initdb failed: %s", reason.data);
    else
        err_set(e, "initdb %s", proc_status_text(p->status, text));
    child_hint_for(buf_str(&reason), x->dir, e);
    buf_clear(&reason);
    return false;
}

static bool run_program(const struct child_context *x, const char *data_new,
                        struct err *e)
{
    char *program = place_path(x->bindir, "initdb");
    const char *const argv[] = {program,
                                "--pgdata",
                                data_new,
                                "--username",
                                CLUSTER_ROLE,
                                "--auth-local=peer",
                                "--auth-host=reject",
                                "--encoding=UTF8",
                                "--locale=C",
                                choose_ctype(),
                                "--data-checksums",
                                "--no-instructions",
                                NULL};
    char **env = child_environment(x->owner);
    struct proc_user user = {0};
    struct proc p;
    // Not SIGTERM: then initdb would clean up, at a time when the next try may
    // already be at work under the same name.
    struct proc_spec spec = {.argv = argv,
                             .env = (const char *const *)env,
                             .cwd = x->dir,
                             .out = {.mode = PROC_DISCARD},
                             .group = PROC_NEW_SESSION,
                             .umask = 077,
                             .death_signal = SIGKILL};
    bool ok = !x->owner->other || proc_user_find(x->owner->name, &user, e);
    if (!ok)
        goto out;
    spec.user = x->owner->other ? &user : NULL;
    ok = proc_spawn(&p, &spec, e);
    if (!ok)
        goto out;
    ok = wait_end(x, &p, e);
    proc_clear(&p);
out:
    proc_user_clear(&user);
    child_environment_free(env);
    free(program);
    return ok;
}

// With the rights of the owner.
static bool finish(const struct child_context *x, const char *data_new, struct err *e)
{
    if (!write_file(data_new, "postgresql.conf", O_APPEND, settings, sizeof(settings) - 1,
                    e) ||
        !write_file(data_new, "pg_hba.conf", O_TRUNC, hba, sizeof(hba) - 1, e) ||
        !sync_directory(data_new, e))
        return false;
    if (rename(data_new, x->data) != 0)
        return err_errno(e, errno, "cannot rename %s to %s", data_new, x->data);
    return sync_directory(x->dir, e);
}

bool initdb_run(const struct child_context *x, struct err *e)
{
    char *data_new = place_path(x->dir, "data.new");
    bool ok = false;
    if (!remove_leftover(x, data_new, e))
        goto out;
    log_info(x->log, "making a new cluster", LOG_S("dir", x->dir),
             LOG_S("bindir", x->bindir));
    ok = run_program(x, data_new, e) && owner_enter(x->owner, e);
    if (ok) {
        ok = finish(x, data_new, e);
        owner_leave(x->owner);
    }
    if (!ok)
        remove_leftover(&(struct child_context){.owner = x->owner, .log = x->log},
                        data_new, NULL);
out:
    free(data_new);
    return ok;
}
