// SPDX-License-Identifier: Apache-2.0

#include "embed/place.h"

#include <ctype.h>
#include <errno.h>
#include <fcntl.h>
#include <pwd.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <sys/un.h>
#include <unistd.h>

#include "embed/cluster.h"

#define SOCKET_NAME ".s.PGSQL." CLUSTER_PORT

char *place_path(const char *dir, const char *name)
{
    return xasprintf("%s/%s", dir, name);
}

bool cluster_default_dir(struct buf *out, struct err *e)
{
    const char *set = getenv("PGKIN_DATA");
    const char *xdg = getenv("XDG_DATA_HOME");
    const char *home = getenv("HOME");
    if (set != NULL && set[0] != '\0') {
        buf_adds(out, set);
        return true;
    }
    if (geteuid() == 0) {
        buf_adds(out, "/var/lib/pgkin");
        return true;
    }
    // The XDG rules: a relative path is to be ignored.
    if (xdg != NULL && xdg[0] == '/') {
        buf_addf(out, "%s/pgkin", xdg);
        return true;
    }
    if (home == NULL || home[0] != '/') {
        const struct passwd *pw = getpwuid(geteuid());
        home = pw != NULL ? pw->pw_dir : NULL;
    }
    if (home == NULL || home[0] != '/') {
        err_set(e, "no directory for the private cluster: HOME is not set");
        return err_hint(e, "choose one with --data DIR or PGKIN_DATA");
    }
    buf_addf(out, "%s/.local/share/pgkin", home);
    return true;
}

bool place_socket_fits(const char *dir)
{
    struct sockaddr_un addr;
    return strlen(dir) + 1 + strlen(SOCKET_NAME) < sizeof(addr.sun_path) &&
           strchr(dir, ',') == NULL;
}

// The first line of DIR/socket. False with errno 0 when there is no such file.
static bool read_record(const char *dir, char *line, size_t size)
{
    char *path = place_path(dir, "socket");
    int fd = open(path, O_RDONLY | O_CLOEXEC | O_NOFOLLOW);
    free(path);
    if (fd < 0) {
        errno = errno == ENOENT ? 0 : errno;
        return false;
    }
    ssize_t n = read(fd, line, size - 1);
    close(fd);
    if (n < 0)
        return false;
    line[n] = '\0';
    line[strcspn(line, "\n")] = '\0';
    // What is not a usable name is as good as no record.
    errno = 0;
    return line[0] == '/' && place_socket_fits(line);
}

// Anybody can make directories in /tmp: only one that belongs to the owner of
// the cluster, and to nobody else, is the right one.
static bool is_private_dir(const char *path, uid_t uid)
{
    struct stat st;
    return lstat(path, &st) == 0 && S_ISDIR(st.st_mode) && st.st_uid == uid &&
           (st.st_mode & 077) == 0;
}

bool place_find_socket_dir(const char *dir, struct buf *out, struct err *e)
{
    char line[sizeof(((struct sockaddr_un *)0)->sun_path)];
    struct stat st;
    struct stat there;

    if (place_socket_fits(dir)) {
        buf_adds(out, dir);
        return true;
    }
    if (stat(dir, &st) != 0)
        return err_errno(e, errno, "cannot look into %s", dir);
    if (!read_record(dir, line, sizeof(line))) {
        if (errno != 0)
            return err_errno(e, errno, "cannot read %s/socket", dir);
        err_set(e, "the private cluster in %s has no socket yet", dir);
        return err_hint(e, "start it with: pgkin start");
    }
    // Absent: it does not run, and connecting will say so.
    if (lstat(line, &there) == 0 && !is_private_dir(line, st.st_uid)) {
        err_set(e, "%s does not belong to the owner of %s alone", line, dir);
        return err_hint(e, "remove %s and start again: pgkin start", line);
    }
    buf_adds(out, line);
    return true;
}

static bool write_record(const char *dir, const char *name, struct err *e)
{
    bool ok = false;
    char *path = place_path(dir, "socket");
    char *temp = place_path(dir, "socket.new");
    int fd = -1;
    struct buf line = BUF_INIT;

    buf_addf(&line, "%s\n", name);
    if (unlink(temp) != 0 && errno != ENOENT)
        goto fail;
    fd = open(temp, O_WRONLY | O_CREAT | O_EXCL | O_CLOEXEC, 0600);
    if (fd < 0 || write(fd, line.data, line.len) != (ssize_t)line.len || fsync(fd) != 0 ||
        rename(temp, path) != 0)
        goto fail;
    ok = true;
    goto out;
fail:
    err_errno(e, errno, "cannot write %s", path);
out:
    if (fd >= 0)
        close(fd);
    buf_clear(&line);
    free(temp);
    free(path);
    return ok;
}

bool place_make_socket_dir(const char *dir, struct buf *out, struct err *e)
{
    char line[sizeof(((struct sockaddr_un *)0)->sun_path)];
    // The random part, not the name, keeps others from being there first.
    char made[] = "/tmp/pgkin-XXXXXX";

    if (place_socket_fits(dir)) {
        buf_adds(out, dir);
        return true;
    }
    // The same one as last time, so that connection strings stay valid.
    if (read_record(dir, line, sizeof(line)) && is_private_dir(line, geteuid())) {
        buf_adds(out, line);
        return true;
    }
    if (mkdtemp(made) == NULL)
        return err_errno(e, errno, "cannot make a directory for the socket in /tmp");
    if (!write_record(dir, made, e)) {
        rmdir(made);
        return false;
    }
    buf_adds(out, made);
    return true;
}

void place_add_conninfo(struct buf *out, const char *key, const char *value)
{
    if (out->len > 0)
        buf_addc(out, ' ');
    buf_addf(out, "%s='", key);
    for (const char *p = value; *p != '\0'; p++) {
        if (*p == '\'' || *p == '\\')
            buf_addc(out, '\\');
        buf_addc(out, *p);
    }
    buf_addc(out, '\'');
}

// In /tmp the name of the directory proves nothing once it has gone, so there
// libpq is told whose process has to be at the other end.
static void add_require_peer(const char *dir, struct buf *out)
{
    struct stat st;
    if (place_socket_fits(dir) || stat(dir, &st) != 0)
        return;
    const struct passwd *pw = getpwuid(st.st_uid);
    if (pw != NULL)
        place_add_conninfo(out, "requirepeer", pw->pw_name);
}

bool place_conninfo(const char *dir, const char *dbname, struct buf *out, struct err *e)
{
    struct buf sock = BUF_INIT;
    struct buf info = BUF_INIT;
    bool ok = place_find_socket_dir(dir, &sock, e);
    if (ok) {
        place_add_conninfo(&info, "host", buf_str(&sock));
        place_add_conninfo(&info, "port", CLUSTER_PORT);
        place_add_conninfo(&info, "user", CLUSTER_ROLE);
        place_add_conninfo(&info, "dbname", dbname);
        add_require_peer(dir, &info);
        buf_add(out, info.data, info.len);
    }
    buf_clear(&info);
    buf_clear(&sock);
    return ok;
}

// `dir` as an absolute path without links, when there is a cluster in it.
// Caller frees; NULL with `e` filled otherwise.
static char *resolve_existing(const char *dir, struct err *e)
{
    char *version = place_path(dir, "data/PG_VERSION");
    char *real = NULL;
    if (access(version, F_OK) != 0 && (errno == EACCES || errno == EPERM)) {
        err_errno(e, errno, "cannot look into the private cluster in %s", dir);
        err_hint(e, "only its owner and root can use it");
    } else if (access(version, F_OK) != 0) {
        err_set(e, "there is no private cluster in %s", dir);
        err_hint(e, "start it with: pgkin start");
    } else if ((real = realpath(dir, NULL)) == NULL) {
        err_errno(e, errno, "cannot look into %s", dir);
    }
    free(version);
    return real;
}

bool cluster_conninfo(const char *dir, struct buf *out, struct err *e)
{
    char *real = resolve_existing(dir, e);
    bool ok = real != NULL && place_conninfo(real, CLUSTER_DATABASE, out, e);
    free(real);
    return ok;
}

bool cluster_url(const char *dir, struct buf *out, struct err *e)
{
    struct buf sock = BUF_INIT;
    char *real = resolve_existing(dir, e);
    bool ok = real != NULL && place_find_socket_dir(real, &sock, e);
    if (ok) {
        buf_adds(out, "postgresql://" CLUSTER_ROLE "@/" CLUSTER_DATABASE "?host=");
        for (const char *p = buf_str(&sock); *p != '\0'; p++) {
            if (isalnum((unsigned char)*p) || strchr("/-._~", *p) != NULL)
                buf_addc(out, *p);
            else
                buf_addf(out, "%%%02X", (unsigned char)*p);
        }
    }
    buf_clear(&sock);
    free(real);
    return ok;
}
