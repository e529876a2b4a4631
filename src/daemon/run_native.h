// SPDX-License-Identifier: Apache-2.0
//
// Handlers that are C functions of this process.

#ifndef PGKIN_DAEMON_RUN_NATIVE_H
#define PGKIN_DAEMON_RUN_NATIVE_H

#include "daemon/kind.h"
#include "pgkin.h"

struct native_handler {
    const char *name;
    pgkin_handler *fn;
    void *arg;
};

// noop, echo, sleep, fail: for trying things out and for measuring.
extern const struct native_handler native_builtins[];
extern const size_t native_builtin_count;

// The function that runs the command: the caller's, else a built-in one. NULL:
// this worker has none.
const struct native_handler *native_find(const struct runtime *rt,
                                         const struct command *c);

#endif
