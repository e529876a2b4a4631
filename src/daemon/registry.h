// SPDX-License-Identifier: Apache-2.0
//
// Queues and commands as the database had them when it was last asked. A
// registry never changes: a newer one takes its place, and tasks that began
// under the old one keep it alive.

#ifndef PGKIN_DAEMON_REGISTRY_H
#define PGKIN_DAEMON_REGISTRY_H

#include <libpq-fe.h>

#include "core/arena.h"
#include "core/err.h"
#include "daemon/kind.h"

struct registry_queue {
    const char *name;
    int id;
    int default_concurrency;
    int top_concurrency; // 0: no limit
};

struct registry {
    size_t refs;
    struct arena arena;
    const char *installation_id;
    struct registry_queue *queues; // by name
    size_t queue_count;
    struct command *commands; // by name
    size_t command_count;
};

// Reads the result of the query `work_registry`. One reference is the caller's.
struct registry *registry_parse(const PGresult *res, struct err *e);
struct registry *registry_ref(struct registry *r);
void registry_unref(struct registry *r); // NULL is allowed

const struct command *registry_find(const struct registry *r, const char *command);

// Do tasks of this line run in the database?
bool registry_lane_is_sql(const struct registry *r, int lane);

// Is it run by SQL, in the database?
bool command_is_sql(const struct command *c);

#endif
