// SPDX-License-Identifier: Apache-2.0

#include "core/sdnotify.h"

#include <stddef.h>
#include <stdlib.h>
#include <string.h>
#include <sys/socket.h>
#include <sys/un.h>
#include <unistd.h>

bool sdnotify_send(const char *state)
{
    const char *path = getenv("NOTIFY_SOCKET");
    struct sockaddr_un addr = {.sun_family = AF_UNIX};
    if (path == NULL || (path[0] != '/' && path[0] != '@'))
        return false;
    size_t len = strlen(path);
    if (len >= sizeof(addr.sun_path))
        return false;
    memcpy(addr.sun_path, path, len);
    // A name that begins with @ is in the abstract namespace: no file.
    if (path[0] == '@')
        addr.sun_path[0] = '\0';
    int fd = socket(AF_UNIX, SOCK_DGRAM | SOCK_CLOEXEC, 0);
    if (fd < 0)
        return false;
    ssize_t n = sendto(fd, state, strlen(state), MSG_NOSIGNAL, (struct sockaddr *)&addr,
                       (socklen_t)(offsetof(struct sockaddr_un, sun_path) + len));
    close(fd);
    return n == (ssize_t)strlen(state);
}
