// SPDX-License-Identifier: Apache-2.0

#include "embed/owner.h"

#include <errno.h>
#include <grp.h>
#include <pwd.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

#include "core/buf.h"

#define DEFAULT_USER "postgres"

static void take(struct owner *o, const struct passwd *pw)
{
    o->name = xstrdup(pw->pw_name);
    o->home = xstrdup(pw->pw_dir);
    o->uid = pw->pw_uid;
    o->gid = pw->pw_gid;
}

static bool resolve_self(struct owner *o, const char *user, struct err *e)
{
    const struct passwd *pw = getpwuid(geteuid());
    if (pw == NULL) {
        err_set(e, "user id %ld has no name, which PostgreSQL needs", (long)geteuid());
        return err_hint(e, "add a line for it to /etc/passwd");
    }
    if (user != NULL && strcmp(user, pw->pw_name) != 0) {
        err_set(e, "only root can run the server as user %s", user);
        return err_hint(e, "unset PGKIN_SERVER_USER");
    }
    take(o, pw);
    return true;
}

static bool resolve_other(struct owner *o, const char *user, const char *dir,
                          struct err *e)
{
    struct stat st;
    const struct passwd *pw;

    if (user == NULL && stat(dir, &st) == 0 && st.st_uid != 0) {
        pw = getpwuid(st.st_uid);
        if (pw == NULL)
            return err_set(e, "%s belongs to user id %ld, which has no name", dir,
                           (long)st.st_uid);
    } else {
        if (user == NULL)
            user = DEFAULT_USER;
        errno = 0;
        pw = getpwnam(user);
        if (pw == NULL) {
            err_set(e, "there is no user %s to run the PostgreSQL server as", user);
            return err_hint(e, "PostgreSQL does not run as root: name another user with "
                               "PGKIN_SERVER_USER");
        }
    }
    if (pw->pw_uid == 0) {
        err_set(e, "the PostgreSQL server does not run as %s", pw->pw_name);
        return err_hint(e, "name another user with PGKIN_SERVER_USER");
    }
    take(o, pw);
    o->other = true;
    return true;
}

bool owner_resolve(struct owner *o, const char *user, const char *dir, struct err *e)
{
    const char *set = getenv("PGKIN_SERVER_USER");
    *o = (struct owner){0};
    if (user == NULL && set != NULL && set[0] != '\0')
        user = set;
    return geteuid() == 0 ? resolve_other(o, user, dir, e) : resolve_self(o, user, e);
}

void owner_clear(struct owner *o)
{
    free(o->name);
    free(o->home);
    free(o->root_groups);
    *o = (struct owner){0};
}

bool owner_enter(struct owner *o, struct err *e)
{
    if (!o->other)
        return true;
    int n = getgroups(0, NULL);
    if (n < 0)
        return err_errno(e, errno, "cannot read the groups of this process");
    o->root_groups = xcalloc((size_t)n, sizeof(*o->root_groups));
    o->root_group_count = getgroups(n, o->root_groups);
    if (o->root_group_count < 0 || initgroups(o->name, o->gid) != 0 ||
        setegid(o->gid) != 0 || seteuid(o->uid) != 0) {
        int saved = errno;
        owner_leave(o);
        return err_errno(e, saved, "cannot become user %s", o->name);
    }
    return true;
}

void owner_leave(struct owner *o)
{
    if (!o->other)
        return;
    // Going on with half of the rights would be worse than ending here.
    if (seteuid(0) != 0 || setegid(getgid()) != 0 ||
        (o->root_group_count >= 0 &&
         setgroups((size_t)o->root_group_count, o->root_groups) != 0))
        BUG("cannot become root again");
    free(o->root_groups);
    o->root_groups = NULL;
    o->root_group_count = 0;
}
