// SPDX-License-Identifier: Apache-2.0
//
// Names are looked up once. libcurl looks one up in a thread of its own for every
// request that does not find it in the cache: a thousand requests to one host
// that start together would be a thousand threads with the same question. The
// gate lets the first of them go ahead; the others follow when it has the answer,
// and find it in the cache.
//
//     enter ──> goes, as the leader or because the name is known
//       └─────> waits ──> goes            the leader has the answer, or has left
//                 └─────> shares a failure of the leader

#ifndef PGKIN_CORE_HTTP_GATE_H
#define PGKIN_CORE_HTTP_GATE_H

#include <event2/event.h>
#include <stdbool.h>
#include <sys/queue.h>

struct http_gate;
struct http_gate_host;

LIST_HEAD(http_gate_list, http_gate_guest);

// One request, as the gate sees it; a part of the request.
struct http_gate_guest {
    struct http_gate_host *host; // NULL: has not entered, or has left
    bool waiting;
    LIST_ENTRY(http_gate_guest) link; // while it waits
};

// `go` is called by the loop for a guest that has waited.
struct http_gate *http_gate_new(struct event_base *base,
                                void (*go)(struct http_gate_guest *guest));
void http_gate_free(struct http_gate *gate); // nobody may be inside; NULL is fine

// True: go now. False: wait for go().
bool http_gate_enter(struct http_gate *gate, struct http_gate_guest *guest,
                     const char *name);

// The guest has an answer. May be called from within libcurl's callbacks.
void http_gate_name_known(struct http_gate_guest *guest);

// The guest has come to its end, whatever it did. Nothing happens when it is not
// inside.
void http_gate_leave(struct http_gate_guest *guest);

// Moves those who wait behind this guest into `list`, because they fail as it
// does; http_gate_next() then gives them one by one, but for those that have left
// in the meantime. NULL: that was the last.
void http_gate_take_waiting(struct http_gate_guest *guest, struct http_gate_list *list);
struct http_gate_guest *http_gate_next(struct http_gate_list *list);

#endif
