// SPDX-License-Identifier: Apache-2.0
//
// What initdb and the server have in common as children of ours: a clean
// environment, and output from which the reason of a failure is to be found.

#ifndef PGKIN_EMBED_CHILD_H
#define PGKIN_EMBED_CHILD_H

#include <stdbool.h>
#include <sys/types.h>

#include "core/buf.h"
#include "core/err.h"
#include "core/log.h"
#include "embed/owner.h"

// Who runs what, where, and what to do while waiting. All borrowed.
struct child_context {
    struct owner *owner;
    const char *dir;    // of the cluster
    const char *data;   // dir/data
    const char *bindir; // of the server
    struct log *log;
    bool (*interrupted)(void *arg); // may be NULL
    void *interrupted_arg;
};

bool child_interrupted(const struct child_context *x);

// The environment of this process without what would reach into the server:
// PG*, LC_* and LANG*, what systemd says to us alone (the server would report
// READY in our name), DATABASE_URL (which may hold a password). When the owner
// is somebody else, with their HOME and USER. Caller frees.
char **child_environment(const struct owner *o);
void child_environment_free(char **env);

// Takes PG* (but not PGKIN_*) out of the environment of this process, where
// they would send its own connections elsewhere.
void child_clean_own_environment(void);

// What went wrong, out of a program's output: the last few lines that complain,
// without their time stamps; with `or_last`, if there are none, the last line.
// Appends one line, or nothing.
void child_add_reason(const char *text, bool or_last, struct buf *out);

// The same of a log file from an offset on, without `or_last`: true when there
// was a complaint. `out` is empty before.
bool child_add_log_reason(const char *path, off_t from, struct buf *out);

// A hint for reasons that have a usual remedy. Leaves `e` alone otherwise.
void child_hint_for(const char *reason, const char *dir, struct err *e);

#endif
