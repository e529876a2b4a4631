// SPDX-License-Identifier: Apache-2.0

#include "embed/dir.h"

#include <dirent.h>
#include <errno.h>
#include <fcntl.h>
#include <ftw.h>
#include <limits.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/file.h>
#include <sys/stat.h>
#include <time.h>
#include <unistd.h>

#include "core/buf.h"
#include "embed/place.h"

#define LOCK_NAME "pgkin.pid"

static int remove_entry(const char *path, const struct stat *st, int flag,
                        struct FTW *ftw)
{
    (void)st;
    (void)flag;
    (void)ftw;
    return remove(path);
}

bool dir_remove_tree(const char *path, struct err *e)
{
    if (nftw(path, remove_entry, 16, FTW_DEPTH | FTW_PHYS) != 0 && errno != ENOENT)
        return err_errno(e, errno, "cannot remove %s", path);
    return true;
}

static bool cannot_make(const char *path, int errnum, struct err *e)
{
    err_errno(e, errnum, "cannot make the directory %s", path);
    return err_hint(e, "choose another place with --data DIR or PGKIN_DATA");
}

// One directory, if it is not there. The umask hides it from others; but what
// root makes on the way has to be passable for the owner.
static bool make_one(struct dir *d, const char *path, bool last, struct err *e)
{
    if (mkdir(path, 0700) != 0) {
        if (errno == EEXIST)
            return true;
        // On a read-only file system also for directories that exist.
        struct stat st;
        int saved = errno;
        return stat(path, &st) == 0 ? true : cannot_make(path, saved, e);
    }
    d->made = xrealloc(d->made, (d->made_count + 1) * sizeof(*d->made));
    d->made[d->made_count++] = xstrdup(path);
    if (!d->owner->other)
        return true;
    if (last ? lchown(path, d->owner->uid, d->owner->gid) != 0 : chmod(path, 0755) != 0)
        return cannot_make(path, errno, e);
    return true;
}

static bool make_path(struct dir *d, const char *path, struct err *e)
{
    bool ok = true;
    char *copy = xstrdup(path);
    for (char *p = copy + 1; ok && *p != '\0'; p++) {
        if (*p != '/')
            continue;
        *p = '\0';
        ok = make_one(d, copy, false, e);
        *p = '/';
    }
    ok = ok && make_one(d, copy, true, e);
    free(copy);
    return ok;
}

// Whether the directory has anything besides `known` names (and lost+found).
static bool find_others(const char *path, const char *const *known, bool *found,
                        struct err *e)
{
    DIR *list = opendir(path);
    if (list == NULL)
        return err_errno(e, errno, "cannot read the directory %s", path);
    *found = false;
    for (struct dirent *ent; !*found && (ent = readdir(list)) != NULL;) {
        const char *const *k = known;
        while (*k != NULL && strcmp(*k, ent->d_name) != 0)
            k++;
        *found = *k == NULL && strcmp(ent->d_name, ".") != 0 &&
                 strcmp(ent->d_name, "..") != 0 && strcmp(ent->d_name, "lost+found") != 0;
    }
    closedir(list);
    return true;
}

// --data /etc, or --data ~, must not make that directory ours.
static bool check_content(const char *path, struct err *e)
{
    // What a start that was killed early may have left.
    static const char *const ours[] = {LOCK_NAME,    "data.new",   "socket",
                                       "socket.new", "server.log", "server.log.old",
                                       NULL};
    struct stat st;
    bool others = false;
    char *version = place_path(path, "data/PG_VERSION");
    bool cluster = stat(version, &st) == 0;
    free(version);
    if (cluster)
        return true;
    if (!find_others(path, ours, &others, e))
        return false;
    if (!others)
        return true;
    err_set(e, "%s is neither empty nor a private cluster", path);
    return err_hint(e, "choose a directory of its own with --data DIR or PGKIN_DATA");
}

// A directory of root's is fine as long as there is nothing in it, for then
// it was made for us (mkdir, mktemp -d, a mounted volume).
static bool take_from_root(struct dir *d, struct err *e)
{
    static const char *const none[] = {NULL};
    bool others = false;
    const struct owner *o = d->owner;
    if (!find_others(d->path, none, &others, e))
        return false;
    if (!others) {
        if (lchown(d->path, o->uid, o->gid) != 0)
            return err_errno(e, errno, "cannot give %s to user %s", d->path, o->name);
        d->given = true;
        return true;
    }
    if (!check_content(d->path, e))
        return false;
    err_set(e, "%s belongs to root, but its server runs as %s", d->path, o->name);
    return err_hint(e, "chown -R %s: '%s'", o->name, d->path);
}

static bool check_owner(struct dir *d, struct err *e)
{
    struct stat st;
    const struct owner *o = d->owner;

    if (stat(d->path, &st) != 0)
        return err_errno(e, errno, "cannot look at %s", d->path);
    if (!S_ISDIR(st.st_mode))
        return cannot_make(d->path, ENOTDIR, e);
    if ((st.st_mode & 0300) != 0300) {
        err_set(e, "%s is read-only", d->path);
        return err_hint(
            e, "make it writable (chmod u+wx) or choose another one with --data DIR");
    }
    if (st.st_uid == o->uid)
        return true;
    if (!o->other || st.st_uid != 0) {
        err_set(e, "%s does not belong to user %s", d->path, o->name);
        return err_hint(e,
                        "change its owner or choose another directory with --data DIR");
    }
    return take_from_root(d, e);
}

// The owner has to get there: which directory on the way keeps them out?
static bool check_reachable(const struct dir *d, struct err *e)
{
    char *copy = xstrdup(d->path);
    bool ok = true;
    for (char *p = copy + 1; ok; p++) {
        char c = *p;
        if (c != '/' && c != '\0')
            continue;
        *p = '\0';
        ok = faccessat(AT_FDCWD, copy, X_OK, AT_EACCESS) == 0;
        if (!ok) {
            int saved = errno;
            err_errno(e, saved, "user %s, who runs the server, cannot enter %s",
                      d->owner->name, copy);
            err_hint(e, "choose another directory with --data DIR or PGKIN_DATA");
        }
        *p = c;
        if (c == '\0')
            break;
    }
    free(copy);
    return ok;
}

static void sleep_ms(long ms)
{
    nanosleep(&(struct timespec){.tv_nsec = ms * 1000000}, NULL);
}

// The holder writes its pid just after it has got the lock.
static bool report_holder(const struct dir *d, int fd, struct err *e)
{
    char text[32];
    for (int i = 0; i < 20; i++) {
        ssize_t n = pread(fd, text, sizeof(text) - 1, 0);
        text[n > 0 ? n : 0] = '\0';
        long pid = strtol(text, NULL, 10);
        if (pid > 0)
            return err_set(e, "another pgkin start is using %s (pid %ld)", d->path, pid);
        sleep_ms(10);
    }
    return err_set(e, "another pgkin start is using %s", d->path);
}

static bool lock_once(struct dir *d, const char *path, bool *again, struct err *e)
{
    struct stat mine;
    struct stat there;
    char text[32];

    int fd = open(path, O_RDWR | O_CREAT | O_CLOEXEC | O_NOFOLLOW, 0600);
    if (fd < 0) {
        err_errno(e, errno, "cannot write to %s", d->path);
        return err_hint(e, "choose another directory with --data DIR or PGKIN_DATA");
    }
    if (flock(fd, LOCK_EX | LOCK_NB) != 0) {
        if (errno == EWOULDBLOCK)
            report_holder(d, fd, e);
        else
            err_errno(e, errno, "cannot lock %s", path);
        close(fd);
        return false;
    }
    // Somebody may have removed the file between open and flock.
    if (fstat(fd, &mine) != 0 || stat(path, &there) != 0 || mine.st_ino != there.st_ino) {
        close(fd);
        *again = true;
        return true;
    }
    d->lock_fd = fd;
    int n = snprintf(text, sizeof(text), "%ld\n", (long)getpid());
    if (ftruncate(fd, 0) != 0 || pwrite(fd, text, (size_t)n, 0) != n)
        return err_errno(e, errno, "cannot write %s", path);
    return true;
}

static bool lock(struct dir *d, struct err *e)
{
    char *path = place_path(d->path, LOCK_NAME);
    bool ok;
    bool again;
    do {
        again = false;
        ok = lock_once(d, path, &again, e);
    } while (ok && again);
    free(path);
    return ok;
}

static char *make_absolute(const char *path, struct err *e)
{
    char cwd[PATH_MAX];
    char *abs;
    if (path[0] == '\0') {
        err_usage(e, "the name of the data directory is empty");
        return NULL;
    }
    if (path[0] == '/') {
        abs = xstrdup(path);
    } else if (getcwd(cwd, sizeof(cwd)) != NULL) {
        abs = place_path(cwd, path);
    } else {
        err_errno(e, errno, "cannot find out the current directory");
        return NULL;
    }
    size_t len = strlen(abs);
    while (len > 1 && abs[len - 1] == '/')
        abs[--len] = '\0';
    return abs;
}

static bool take_inside(struct dir *d, struct err *e)
{
    return check_reachable(d, e) && check_content(d->path, e) && lock(d, e) &&
           (chmod(d->path, 0700) == 0 ||
            err_errno(e, errno, "cannot make %s private", d->path));
}

bool dir_take(struct dir *d, const char *path, struct owner *owner, struct err *e)
{
    bool ok = false;
    char *abs = make_absolute(path, e);
    *d = (struct dir){.lock_fd = -1, .owner = owner};
    if (abs == NULL)
        return false;
    if (!make_path(d, abs, e))
        goto out;
    d->path = realpath(abs, NULL);
    if (d->path == NULL) {
        err_errno(e, errno, "cannot look at %s", abs);
        goto out;
    }
    if (!check_owner(d, e) || !owner_enter(owner, e))
        goto out;
    ok = take_inside(d, e);
    owner_leave(owner);
out:
    if (!ok)
        dir_release(d, false);
    free(abs);
    return ok;
}

static void remove_ours(const struct dir *d)
{
    static const char *const files[] = {"server.log", "socket", "socket.new"};
    struct buf sock = BUF_INIT;
    if (!place_socket_fits(d->path) && place_find_socket_dir(d->path, &sock, NULL))
        rmdir(buf_str(&sock));
    buf_clear(&sock);
    for (size_t i = 0; i < sizeof(files) / sizeof(files[0]); i++) {
        char *path = place_path(d->path, files[i]);
        unlink(path);
        free(path);
    }
    // Last: whoever comes next must find either our lock or nothing.
    char *path = place_path(d->path, LOCK_NAME);
    unlink(path);
    free(path);
}

void dir_release(struct dir *d, bool keep)
{
    if (d->lock_fd >= 0) {
        if (!keep && owner_enter(d->owner, NULL)) {
            remove_ours(d);
            owner_leave(d->owner);
        } else if (ftruncate(d->lock_fd, 0) != 0) {
            // A stale pid is only a number in a message; the lock decides.
        }
        close(d->lock_fd);
    }
    if (!keep && d->given && d->path != NULL && lchown(d->path, 0, 0) != 0) {
        // It was empty and still is; nothing depends on its owner.
    }
    // Directories that are not empty stay, rmdir() sees to that.
    while (d->made_count > 0) {
        char *path = d->made[--d->made_count];
        if (!keep)
            rmdir(path);
        free(path);
    }
    free(d->made);
    free(d->path);
    *d = (struct dir){.lock_fd = -1};
}
