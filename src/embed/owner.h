// SPDX-License-Identifier: Apache-2.0
//
// The operating system user that runs the server and owns its files.
// PostgreSQL refuses to run as root, so root needs another one; everybody else
// is the owner themselves.

#ifndef PGKIN_EMBED_OWNER_H
#define PGKIN_EMBED_OWNER_H

#include <stdbool.h>
#include <sys/types.h>

#include "core/err.h"

struct owner {
    char *name;
    char *home;
    uid_t uid;
    gid_t gid;
    bool other;         // not the user of this process: to be switched to
    gid_t *root_groups; // while switched: what to go back to
    int root_group_count;
};

// As root: `user` if not NULL, else PGKIN_SERVER_USER, else who owns `dir`
// (unless that is root, or there is no `dir`), else `postgres`. For anybody
// else it is the current user, and naming another one is an error.
bool owner_resolve(struct owner *o, const char *user, const char *dir, struct err *e);
void owner_clear(struct owner *o);

// Between these two the process has the owner's rights on files and no
// others (a no-op when it is the owner). Calls do not nest. Not for
// programs to be started: those drop root for good.
bool owner_enter(struct owner *o, struct err *e);
void owner_leave(struct owner *o);

#endif
