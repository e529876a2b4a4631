// SPDX-License-Identifier: Apache-2.0
//
// The directory of a private cluster as a thing to take and to give back: made
// when it is not there, checked when it is, locked while it is in use, and
// removed again when nothing came of it.

#ifndef PGKIN_EMBED_DIR_H
#define PGKIN_EMBED_DIR_H

#include <stdbool.h>
#include <stddef.h>

#include "core/err.h"
#include "embed/owner.h"

struct dir {
    char *path;  // absolute, without links
    int lock_fd; // -1: not taken
    char **made; // directories made on the way, outermost first
    size_t made_count;
    bool given;          // was root's, and empty
    struct owner *owner; // borrowed
};

// Takes the directory for this process. `path` may be relative and need not
// exist. `owner` is borrowed until dir_release(). On failure everything is as
// it was before.
bool dir_take(struct dir *d, const char *path, struct owner *owner, struct err *e);

// Gives the lock back. Without `keep` what was made, here and by the cluster
// in it, is removed too, but never anything else.
void dir_release(struct dir *d, bool keep);

// Removes a tree. True when it is gone, also if it was not there. Follows no
// links.
bool dir_remove_tree(const char *path, struct err *e);

#endif
