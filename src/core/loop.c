// SPDX-License-Identifier: Apache-2.0

#include "core/loop.h"

#include <event2/util.h>
#include <time.h>

#include "core/err.h"

int64_t loop_now_ms(void)
{
    struct timespec ts;
    clock_gettime(CLOCK_MONOTONIC, &ts);
    return (int64_t)ts.tv_sec * 1000 + ts.tv_nsec / 1000000;
}

struct event *loop_event_new(struct event_base *base, evutil_socket_t fd, short what,
                             event_callback_fn fn, void *arg)
{
    struct event *ev = event_new(base, fd, what, fn, arg);
    if (ev == NULL)
        BUG("event_new failed");
    return ev;
}

void loop_event_add(struct event *ev, const struct timeval *timeout)
{
    if (event_add(ev, timeout) != 0)
        BUG("event_add failed");
}

void loop_timer_start(struct event *timer, int64_t ms)
{
    // Inside a callback libevent counts from the time it cached before that
    // callback, which may have taken long (a name lookup in libpq blocks).
    event_base_update_cache_time(event_get_base(timer));
    if (ms < 0)
        ms = 0;
    struct timeval tv = {.tv_sec = (time_t)(ms / 1000),
                         .tv_usec = (suseconds_t)(ms % 1000 * 1000)};
    loop_event_add(timer, &tv);
}

void loop_event_clear(struct event **ev)
{
    if (*ev != NULL)
        event_free(*ev);
    *ev = NULL;
}

int backoff_ceiling_ms(const struct backoff *b)
{
    int64_t ceiling = b->min_ms;
    for (unsigned i = 0; i < b->tries && ceiling < b->max_ms; i++)
        ceiling *= 2;
    return ceiling < b->max_ms ? (int)ceiling : b->max_ms;
}

int backoff_next_ms(struct backoff *b)
{
    uint32_t random;
    evutil_secure_rng_get_bytes(&random, sizeof random);
    int delay = (int)(random % ((uint32_t)backoff_ceiling_ms(b) + 1));
    b->tries++;
    return delay;
}

void backoff_reset(struct backoff *b)
{
    b->tries = 0;
}
