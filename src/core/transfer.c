// SPDX-License-Identifier: Apache-2.0
//
// libcurl says which sockets it wants watched and when it wants to be woken;
// libevent does that and tells it. What libcurl has finished is handed to its
// owner after libcurl has returned, so that owners may start and stop others.

#include "core/transfer.h"

#include <stdlib.h>
#include <sys/resource.h>

#include "core/buf.h"
#include "core/loop.h"

// More than thousands of requests need; not so many that a program that closes
// all descriptors one by one takes long about it.
#define OPEN_FILES_WANTED 65536

struct transfers {
    struct event_base *base;
    CURLM *multi;
    struct event *timer;
    size_t count; // under way
};

static void raise_open_files(void)
{
    struct rlimit limit;
    if (getrlimit(RLIMIT_NOFILE, &limit) != 0)
        return;
    rlim_t wanted =
        limit.rlim_max < OPEN_FILES_WANTED ? limit.rlim_max : OPEN_FILES_WANTED;
    if (limit.rlim_cur >= wanted)
        return;
    limit.rlim_cur = wanted;
    setrlimit(RLIMIT_NOFILE, &limit);
}

static void report_done(struct transfers *t)
{
    CURLMsg *msg;
    int left;
    while ((msg = curl_multi_info_read(t->multi, &left)) != NULL) {
        if (msg->msg != CURLMSG_DONE)
            continue;
        CURL *easy = msg->easy_handle;
        CURLcode code = msg->data.result; // gone with the next call
        struct transfer *x = NULL;
        curl_easy_getinfo(easy, CURLINFO_PRIVATE, (char **)&x);
        transfer_stop(x);
        x->done(x, code);
    }
}

static void act(struct transfers *t, curl_socket_t fd, int events)
{
    int running;
    CURLMcode code = curl_multi_socket_action(t->multi, fd, events, &running);
    if (code != CURLM_OK)
        BUG("libcurl: %s", curl_multi_strerror(code));
    report_done(t);
}

static void on_socket(evutil_socket_t fd, short what, void *arg)
{
    int events = 0;
    if (what & EV_READ)
        events |= CURL_CSELECT_IN;
    if (what & EV_WRITE)
        events |= CURL_CSELECT_OUT;
    act(arg, fd, events);
}

static void on_timer(evutil_socket_t fd, short what, void *arg)
{
    (void)fd;
    (void)what;
    act(arg, CURL_SOCKET_TIMEOUT, 0);
}

// libcurl: watch this socket for that. `known` is the event we gave it before.
static int watch_socket(CURL *easy, curl_socket_t fd, int what, void *arg, void *known)
{
    (void)easy;
    struct transfers *t = arg;
    struct event *ev = known;
    loop_event_clear(&ev);
    if (what != CURL_POLL_REMOVE) {
        short events = EV_PERSIST;
        if (what & CURL_POLL_IN)
            events |= EV_READ;
        if (what & CURL_POLL_OUT)
            events |= EV_WRITE;
        ev = loop_event_new(t->base, fd, events, on_socket, t);
        loop_event_add(ev, NULL);
    }
    curl_multi_assign(t->multi, fd, ev);
    return 0;
}

// libcurl: wake me after that time.
static int set_timer(CURLM *multi, long timeout_ms, void *arg)
{
    (void)multi;
    struct transfers *t = arg;
    if (timeout_ms < 0)
        event_del(t->timer);
    else
        loop_timer_start(t->timer, timeout_ms);
    return 0;
}

struct transfers *transfers_new(struct event_base *base, struct err *e)
{
    CURLcode code = curl_global_init(CURL_GLOBAL_DEFAULT);
    if (code != CURLE_OK) {
        err_set(e, "cannot start libcurl: %s", curl_easy_strerror(code));
        return NULL;
    }
    raise_open_files();
    struct transfers *t = xcalloc(1, sizeof *t);
    t->base = base;
    t->multi = curl_multi_init();
    if (t->multi == NULL)
        BUG("curl_multi_init failed");
    t->timer = loop_event_new(base, -1, 0, on_timer, t);
    curl_multi_setopt(t->multi, CURLMOPT_SOCKETFUNCTION, watch_socket);
    curl_multi_setopt(t->multi, CURLMOPT_SOCKETDATA, t);
    curl_multi_setopt(t->multi, CURLMOPT_TIMERFUNCTION, set_timer);
    curl_multi_setopt(t->multi, CURLMOPT_TIMERDATA, t);
    return t;
}

void transfers_free(struct transfers *t)
{
    if (t == NULL)
        return;
    if (t->count != 0)
        BUG("%zu transfers are under way", t->count);
    curl_multi_cleanup(t->multi);
    loop_event_clear(&t->timer);
    free(t);
    curl_global_cleanup();
}

CURL *transfer_easy_new(void)
{
    CURL *easy = curl_easy_init();
    if (easy == NULL)
        BUG("curl_easy_init failed");
    curl_easy_setopt(easy, CURLOPT_NOSIGNAL, 1L);
    curl_easy_setopt(easy, CURLOPT_PROXY, "");
    curl_easy_setopt(easy, CURLOPT_NETRC, (long)CURL_NETRC_IGNORED);
    // Without it, stopping waits for the thread that resolves the name.
    curl_easy_setopt(easy, CURLOPT_QUICK_EXIT, 1L);
    return easy;
}

bool transfer_start(struct transfers *t, struct transfer *x, struct err *e)
{
    if (x->under_way != NULL)
        BUG("the transfer is under way");
    curl_easy_setopt(x->easy, CURLOPT_PRIVATE, x);
    CURLMcode code = curl_multi_add_handle(t->multi, x->easy);
    if (code != CURLM_OK)
        return err_set(e, "cannot start a transfer: %s", curl_multi_strerror(code));
    x->under_way = t;
    t->count++;
    return true;
}

void transfer_stop(struct transfer *x)
{
    struct transfers *t = x->under_way;
    if (t == NULL)
        return;
    x->under_way = NULL;
    t->count--;
    curl_multi_remove_handle(t->multi, x->easy);
}
