// SPDX-License-Identifier: Apache-2.0

#include "core/http_gate.h"

#include <search.h>
#include <stdint.h>
#include <stdlib.h>
#include <string.h>

#include "core/buf.h"
#include "core/err.h"
#include "core/loop.h"

// Much less than the minute for which libcurl keeps an answer: the leader may
// have found one that is old already.
#define KNOWN_FOR_MS 2000

// There is one for each name that somebody inside has asked for.
struct http_gate_host {
    char *name; // first: what the tree is ordered by
    struct http_gate *gate;
    size_t guests;
    struct http_gate_guest *leader; // NULL: nobody asks
    int64_t known_until_ms;
    struct http_gate_list waiting;
    LIST_ENTRY(http_gate_host) link; // while it is in `opening`
    bool opening;
};

struct http_gate {
    void *hosts; // a tree of tsearch(3)
    void (*go)(struct http_gate_guest *guest);
    struct event *open_timer;
    LIST_HEAD(, http_gate_host) opening; // where somebody may go who waits
};

static int compare_hosts(const void *a, const void *b)
{
    const struct http_gate_host *x = a, *y = b;
    return strcmp(x->name, y->name);
}

static struct http_gate_host *find_host(struct http_gate *gate, const char *name)
{
    const struct http_gate_host key = {.name = (char *)(uintptr_t)name};
    struct http_gate_host **found = tfind(&key, &gate->hosts, compare_hosts);
    if (found != NULL)
        return *found;
    struct http_gate_host *host = xcalloc(1, sizeof *host);
    host->name = xstrdup(name);
    host->gate = gate;
    LIST_INIT(&host->waiting);
    if (tsearch(host, &gate->hosts, compare_hosts) == NULL)
        BUG("tsearch failed");
    return host;
}

static void host_free(struct http_gate_host *host)
{
    tdelete(host, &host->gate->hosts, compare_hosts);
    if (host->opening)
        LIST_REMOVE(host, link);
    free(host->name);
    free(host);
}

// Not at once: we may be inside libcurl, which must not be called again then.
static void open_soon(struct http_gate_host *host)
{
    if (host->opening || LIST_EMPTY(&host->waiting))
        return;
    host->opening = true;
    LIST_INSERT_HEAD(&host->gate->opening, host, link);
    loop_timer_start(host->gate->open_timer, 0);
}

static bool may_go(struct http_gate_host *host, struct http_gate_guest *guest)
{
    if (loop_now_ms() < host->known_until_ms)
        return true;
    if (host->leader == NULL)
        host->leader = guest;
    return host->leader == guest;
}

static void on_open(evutil_socket_t fd, short what, void *arg)
{
    (void)fd;
    (void)what;
    struct http_gate *gate = arg;
    struct http_gate_host *host;
    while ((host = LIST_FIRST(&gate->opening)) != NULL) {
        LIST_REMOVE(host, link);
        host->opening = false;
        // go() may end a guest, and with the last one the host.
        host->guests++;
        struct http_gate_guest *guest;
        while ((guest = LIST_FIRST(&host->waiting)) != NULL && may_go(host, guest)) {
            LIST_REMOVE(guest, link);
            guest->waiting = false;
            gate->go(guest);
        }
        if (--host->guests == 0)
            host_free(host);
    }
}

struct http_gate *http_gate_new(struct event_base *base,
                                void (*go)(struct http_gate_guest *guest))
{
    struct http_gate *gate = xcalloc(1, sizeof *gate);
    gate->go = go;
    gate->open_timer = loop_event_new(base, -1, 0, on_open, gate);
    LIST_INIT(&gate->opening);
    return gate;
}

void http_gate_free(struct http_gate *gate)
{
    if (gate == NULL)
        return;
    if (gate->hosts != NULL)
        BUG("somebody is in the gate");
    loop_event_clear(&gate->open_timer);
    free(gate);
}

bool http_gate_enter(struct http_gate *gate, struct http_gate_guest *guest,
                     const char *name)
{
    struct http_gate_host *host = find_host(gate, name);
    host->guests++;
    guest->host = host;
    guest->waiting = !may_go(host, guest);
    if (guest->waiting)
        LIST_INSERT_HEAD(&host->waiting, guest, link);
    return !guest->waiting;
}

static void stop_leading(struct http_gate_host *host, struct http_gate_guest *guest)
{
    if (host->leader == guest)
        host->leader = NULL;
    open_soon(host);
}

void http_gate_name_known(struct http_gate_guest *guest)
{
    if (guest->host == NULL)
        return;
    guest->host->known_until_ms = loop_now_ms() + KNOWN_FOR_MS;
    stop_leading(guest->host, guest);
}

void http_gate_leave(struct http_gate_guest *guest)
{
    struct http_gate_host *host = guest->host;
    if (host == NULL)
        return;
    guest->host = NULL;
    if (guest->waiting)
        LIST_REMOVE(guest, link);
    guest->waiting = false;
    stop_leading(host, guest);
    if (--host->guests == 0)
        host_free(host);
}

void http_gate_take_waiting(struct http_gate_guest *guest, struct http_gate_list *list)
{
    LIST_INIT(list);
    if (guest->host == NULL)
        return;
    struct http_gate_guest *one;
    while ((one = LIST_FIRST(&guest->host->waiting)) != NULL) {
        LIST_REMOVE(one, link);
        LIST_INSERT_HEAD(list, one, link);
    }
}

struct http_gate_guest *http_gate_next(struct http_gate_list *list)
{
    struct http_gate_guest *guest = LIST_FIRST(list);
    if (guest != NULL) {
        LIST_REMOVE(guest, link);
        guest->waiting = false;
    }
    return guest;
}
