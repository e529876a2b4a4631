// SPDX-License-Identifier: Apache-2.0
//
// The trace that a task belongs to, handed on to what runs it: the member
// "traceparent" of the task's headers, as W3C Trace Context defines it.

#ifndef PGKIN_DAEMON_TRACEPARENT_H
#define PGKIN_DAEMON_TRACEPARENT_H

#include <stdbool.h>

#define TRACEPARENT_SIZE 56 // with its NUL

// False when the headers (JSON; may be NULL) have none, or one that is not valid:
// a trace is not worth failing for.
bool traceparent_find(const char *headers, char out[TRACEPARENT_SIZE]);

#endif
