// SPDX-License-Identifier: Apache-2.0

#include "core/secret.h"

#include <errno.h>
#include <fcntl.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

#define PREFIX       "secret:"
#define NAME_MAX_LEN 255

bool secret_is_reference(const char *text)
{
    return strncmp(text, PREFIX, strlen(PREFIX)) == 0;
}

// No slash, so it stays in the directory; no dot in front, so it is neither the
// directory itself nor something hidden beside the secrets.
static bool is_name(const char *s)
{
    static const char allowed[] =
        "ABCDEFGHIJKLMNOPQRSTUVWXYZabcdefghijklmnopqrstuvwxyz0123456789_.-";
    size_t len = strlen(s);
    return len > 0 && len <= NAME_MAX_LEN && s[0] != '.' && strspn(s, allowed) == len;
}

static bool find_directory(const struct conf *c, const char **out, struct err *e)
{
    const char *dir = conf_get_string(c, "credentials.directory");
    if (dir == NULL)
        dir = getenv("CREDENTIALS_DIRECTORY");
    if (dir == NULL || dir[0] == '\0') {
        err_set(e, "there is no credentials directory");
        return err_hint(e, "set credentials.directory or PGKIN_CREDENTIALS");
    }
    if (dir[0] != '/')
        return err_set(e, "the credentials directory %s is not an absolute path", dir);
    *out = dir;
    return true;
}

// Reads one byte more than is allowed, to see that there is more.
static bool read_all(int fd, const char *name, struct buf *out, struct err *e)
{
    struct stat st;
    if (fstat(fd, &st) != 0)
        return err_errno(e, errno, "cannot read secret %s", name);
    if (!S_ISREG(st.st_mode))
        return err_set(e, "secret %s is not a regular file", name);
    size_t start = out->len;
    // In one piece: a buffer that moves leaves copies behind.
    buf_reserve(out, SECRET_SIZE_MAX + 1);
    size_t size = 0;
    while (size <= SECRET_SIZE_MAX) {
        ssize_t n = read(fd, out->data + start + size, SECRET_SIZE_MAX + 1 - size);
        if (n < 0 && errno == EINTR)
            continue;
        if (n < 0)
            return err_errno(e, errno, "cannot read secret %s", name);
        if (n == 0)
            break;
        size += (size_t)n;
    }
    if (size > SECRET_SIZE_MAX)
        return err_set(e, "secret %s has more than %d bytes", name, SECRET_SIZE_MAX);
    if (memchr(out->data + start, '\0', size) != NULL)
        return err_set(e, "secret %s has a zero byte", name);
    if (size > 0 && out->data[start + size - 1] == '\n')
        size--;
    if (size > 0 && out->data[start + size - 1] == '\r')
        size--;
    out->len = start + size;
    out->data[out->len] = '\0';
    return true;
}

bool secret_read(const struct conf *c, const char *reference, struct buf *out,
                 struct err *e)
{
    // The text is not shown: somebody may have written the secret itself.
    if (!secret_is_reference(reference) || !is_name(reference + strlen(PREFIX)))
        return err_set(e, "a secret is written secret:NAME, with a name of letters, "
                          "digits, _, . and -");
    const char *name = reference + strlen(PREFIX);
    const char *dir_path = NULL;
    if (!find_directory(c, &dir_path, e))
        return err_wrap(e, "cannot read secret %s", name);
    int dir = open(dir_path, O_RDONLY | O_DIRECTORY | O_CLOEXEC);
    if (dir < 0)
        return err_errno(e, errno, "cannot read secret %s: %s", name, dir_path);
    // Links are followed, because Kubernetes makes such files of links; a pipe
    // does not make us wait.
    int fd = openat(dir, name, O_RDONLY | O_NONBLOCK | O_NOCTTY | O_CLOEXEC);
    int errnum = errno;
    close(dir);
    if (fd < 0)
        return err_errno(e, errnum, "cannot read secret %s in %s", name, dir_path);
    bool ok = read_all(fd, name, out, e);
    close(fd);
    return ok;
}

void secret_clear(struct buf *b)
{
    if (b->data != NULL)
        explicit_bzero(b->data, b->cap);
    buf_clear(b);
}
