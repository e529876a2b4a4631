// SPDX-License-Identifier: Apache-2.0
//
// "Q" and "Q:N", as given to a worker.

#ifndef PGKIN_DAEMON_QUEUE_OPTION_H
#define PGKIN_DAEMON_QUEUE_OPTION_H

#include "daemon/daemon.h"

struct queue_options {
    struct daemon_queue_option *list; // names owned
    size_t count;
};

bool queue_options_add(struct queue_options *o, const char *text, struct err *e);
void queue_options_clear(struct queue_options *o);

#endif
