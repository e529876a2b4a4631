// SPDX-License-Identifier: Apache-2.0
//
// What an earlier run may have left in a data directory: a postmaster that is
// still shutting down, backends whose postmaster was killed, a pid file.
//
// The pid file alone proves nothing: after a reboot, or in a container, its
// number may belong to any process. Every process of a server has its working
// directory in the data directory, and that is what is looked for in /proc.

#ifndef PGKIN_EMBED_LEFTOVER_H
#define PGKIN_EMBED_LEFTOVER_H

#include <stdbool.h>
#include <stddef.h>
#include <sys/types.h>

#include "core/err.h"
#include "core/log.h"

// The server processes of a data directory. Returns how many; `pids` gets the
// first `max` of them. Sees only what the caller may look at: call it as the
// owner.
size_t leftover_find(const char *data, pid_t *pids, size_t max);

// The postmaster that data/postmaster.pid names, if it is one of the above;
// else 0.
pid_t leftover_postmaster(const char *data);

struct leftover_wait {
    int fast_ms; // for a postmaster that is asked to shut down
    int quit_ms; // then, and for orphans, until SIGQUIT becomes SIGKILL
    int kill_ms; // after that
    bool (*interrupted)(void *arg); // may be NULL
    void *arg;
};

// Ends whatever still runs in the data directory, and waits until it is gone.
// The caller holds the lock on the cluster's directory, so none of it is in
// use. Needs the right to signal the server's processes.
bool leftover_end(const char *data, const struct leftover_wait *wait, struct log *log,
                  struct err *e);

// Removes the pid file, and the socket with its lock file, which would keep a
// server from starting if their number is now some other process. Only after
// leftover_end(). To be called with the rights of the owner.
bool leftover_remove_files(const char *data, const char *socket_dir, struct log *log,
                           struct err *e);

#endif
