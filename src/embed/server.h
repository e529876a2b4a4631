// SPDX-License-Identifier: Apache-2.0
//
// The postmaster as a child process: started, waited for, ended.

#ifndef PGKIN_EMBED_SERVER_H
#define PGKIN_EMBED_SERVER_H

#include <stdbool.h>
#include <sys/types.h>

#include "core/err.h"
#include "core/proc.h"
#include "embed/child.h"

struct server {
    struct proc proc;
    bool spawned;   // proc is valid and owed a proc_clear()
    off_t log_from; // where in the log file this run begins
};

// Runs postgres on x->data with its socket in `socket_dir` and its output at
// the end of `log_file`. It gets SIGINT, which is a fast shutdown, when this
// process dies.
bool server_spawn(struct server *s, const struct child_context *x, const char *socket_dir,
                  const char *log_file, struct err *e);

// Waits until it answers. `conninfo` names any database. False when it has
// ended (with what its log says), has shown no sign of life for `timeout_ms`,
// or on interruption. A server that says it is recovering is waited for.
bool server_wait_ready(struct server *s, const struct child_context *x,
                       const char *conninfo, const char *log_file, int timeout_ms,
                       struct err *e);

// True when it has ended.
bool server_ended(struct server *s);

// Fills `e` with how it ended. Returns false.
bool server_report_end(const struct server *s, struct err *e);

// Ends it: a fast shutdown, after `timeout_ms` or when `hurry` says so an
// immediate one, then SIGKILL. True when the fast shutdown was enough.
bool server_stop(struct server *s, int timeout_ms, bool (*hurry)(void *arg), void *arg);

#endif
