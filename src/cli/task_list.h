// SPDX-License-Identifier: Apache-2.0
//
// Tasks as a list, the newest first: for `pgkin tasks` and `pgkin top`.

#ifndef PGKIN_CLI_TASK_LIST_H
#define PGKIN_CLI_TASK_LIST_H

#include <libpq-fe.h>
#include <stdbool.h>
#include <stddef.h>

#include "core/buf.h"
#include "core/err.h"

// NULL: any.
struct task_filter {
    const char *state;
    const char *queue;
    const char *command;
    int limit;
};

// Both append. *cut: not everything was searched, and there may be more.
bool task_list_add_text(PGconn *conn, const struct task_filter *f, size_t width,
                        struct buf *out, bool *cut, struct err *e);
bool task_list_add_json(PGconn *conn, const struct task_filter *f, struct buf *out,
                        bool *cut, struct err *e);

#endif
