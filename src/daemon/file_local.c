// SPDX-License-Identifier: Apache-2.0

#include "daemon/file_local.h"

#include <errno.h>
#include <fcntl.h>
#include <limits.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

#define PATH_MAX_BYTES 4000

static enum file_end refuse(struct err *e, const char *path, const char *why)
{
    err_set(e, "\"%.200s\" is refused: %s", path, why);
    return FILE_REFUSED;
}

static enum file_end fail(struct err *e, int errnum, const char *path)
{
    if (errnum == ENOENT)
        return FILE_MISSING;
    if (errnum == ELOOP || errnum == ENOTDIR)
        return refuse(e, path, "it leads through something that is no directory");
    err_errno(e, errnum, "cannot delete \"%.200s\"", path);
    return FILE_FAILED;
}

// The next name of the path; NULL with `why` filled when it is none.
static const char *next_name(const char **rest, char name[NAME_MAX + 1], const char **why)
{
    size_t n = strcspn(*rest, "/");
    *why = NULL;
    if (n == 0)
        *why = "it has an empty name in it";
    else if (n > NAME_MAX)
        *why = "a name in it is too long";
    else if ((*rest)[0] == '.' && (n == 1 || (n == 2 && (*rest)[1] == '.')))
        *why = "it has . or .. in it";
    if (*why != NULL)
        return NULL;
    memcpy(name, *rest, n);
    name[n] = '\0';
    *rest += n;
    return name;
}

// Only a plain file: a directory is not one file, and a link or a device was not
// put there by who stores files.
static enum file_end delete_in(int dir, const char *name, const char *path, struct err *e)
{
    struct stat st;
    if (fstatat(dir, name, &st, AT_SYMLINK_NOFOLLOW) != 0)
        return fail(e, errno, path);
    if (!S_ISREG(st.st_mode))
        return refuse(e, path, "it is not a plain file");
    if (unlinkat(dir, name, 0) != 0)
        return fail(e, errno, path);
    return FILE_DELETED;
}

enum file_end file_local_delete(const char *directory, const char *path, struct err *e)
{
    char name[NAME_MAX + 1];
    const char *rest = path, *why;
    enum file_end end;
    if (path[0] == '\0' || strlen(path) > PATH_MAX_BYTES)
        return refuse(e, path, path[0] == '\0' ? "it is empty" : "it is too long");
    int dir = open(directory, O_PATH | O_DIRECTORY | O_CLOEXEC);
    if (dir < 0) {
        // Not that the file is gone: the whole store is.
        err_errno(e, errno, "cannot open the directory of files");
        return FILE_FAILED;
    }
    for (;;) {
        if (next_name(&rest, name, &why) == NULL) {
            end = refuse(e, path, why);
            break;
        }
        if (*rest == '\0') {
            end = delete_in(dir, name, path, e);
            break;
        }
        rest++;
        int next = openat(dir, name, O_PATH | O_DIRECTORY | O_NOFOLLOW | O_CLOEXEC);
        if (next < 0) {
            end = fail(e, errno, path);
            // A bad name further on is no missing file.
            while (end == FILE_MISSING && rest != NULL) {
                if (next_name(&rest, name, &why) == NULL)
                    end = refuse(e, path, why);
                rest = *rest == '/' ? rest + 1 : NULL;
            }
            break;
        }
        close(dir);
        dir = next;
    }
    close(dir);
    return end;
}
