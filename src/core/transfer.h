// SPDX-License-Identifier: Apache-2.0
//
// libcurl on the event loop: any number of transfers, of any protocol, without a
// thread and without waiting. HTTP requests have an interface of their own
// (http.h) on top of this one; e-mail uses it directly.
//
//     x.easy = transfer_easy_new();          and its options
//     x.done = on_done;
//     transfer_start(transfers, &x, e);      on_done is called once, by the loop
//
// Names are resolved by libcurl's threads. SIGPIPE must be ignored by the
// process: libcurl leaves signals alone here.

#ifndef PGKIN_CORE_TRANSFER_H
#define PGKIN_CORE_TRANSFER_H

#include <curl/curl.h>
#include <event2/event.h>
#include <stdbool.h>

#include "core/err.h"

struct transfers;

// One transfer; lives in something of its owner's.
struct transfer {
    CURL *easy; // the owner's; its CURLOPT_PRIVATE is used here
    // Called by the loop, never from within transfer_start(). The transfer is
    // over then, and may be started again or freed.
    void (*done)(struct transfer *x, CURLcode code);
    struct transfers *under_way; // NULL: not started, or over
};

// Borrows the base. Raises the limit of open files as far as may be.
struct transfers *transfers_new(struct event_base *base, struct err *e);
void transfers_free(struct transfers *t); // none may be under way; NULL is fine

// An easy handle that uses no proxy, no signals, no .netrc, and that can be
// thrown away while its name is still being resolved. Never NULL.
CURL *transfer_easy_new(void);

bool transfer_start(struct transfers *t, struct transfer *x, struct err *e);

// Ends it at once; done() is not called. Nothing happens when it is over. Not
// from within a callback of libcurl.
void transfer_stop(struct transfer *x);

#endif
