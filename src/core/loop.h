// SPDX-License-Identifier: Apache-2.0
//
// The few things about time that libevent leaves to its user: a monotonic
// clock in milliseconds, timers armed from now rather than from the moment the
// loop last looked at the clock, and retry delays.

#ifndef PGKIN_CORE_LOOP_H
#define PGKIN_CORE_LOOP_H

#include <event2/event.h>
#include <stdint.h>

// Monotonic: for differences only.
int64_t loop_now_ms(void);

// event_new() and event_add() that abort instead of failing for lack of memory.
struct event *loop_event_new(struct event_base *base, evutil_socket_t fd, short what,
                             event_callback_fn fn, void *arg);
void loop_event_add(struct event *ev, const struct timeval *timeout);

// (Re)arms a timer made with fd -1, `ms` from now.
void loop_timer_start(struct event *timer, int64_t ms);

// event_free() that takes NULL, and forgets the pointer.
void loop_event_clear(struct event **ev);

// Exponential backoff with full jitter: the n-th delay is drawn evenly from 0
// to min_ms * 2^n, at most max_ms, so that a thousand clients that lost the
// same server do not come back in step.
struct backoff {
    int min_ms;
    int max_ms;
    unsigned tries; // delays drawn since the last reset
};

int backoff_ceiling_ms(const struct backoff *b); // of the next delay
int backoff_next_ms(struct backoff *b);
void backoff_reset(struct backoff *b);

#endif
