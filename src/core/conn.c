// SPDX-License-Identifier: Apache-2.0
//
// Life, state and loss of a connection. Memory is freed only when no callback
// is on the stack (conn_enter, conn_leave), and whoever calls back compares
// `epoch` afterwards: so a callback may do anything.

#include "core/conn.h"

#include <stdlib.h>
#include <unistd.h>

#include "core/conn_impl.h"
#include "core/conninfo.h"

static const char *const state_names[] = {
    [CONN_CLOSED] = "closed",     [CONN_CONNECTING] = "connecting",
    [CONN_STARTING] = "starting", [CONN_IDLE] = "idle",
    [CONN_BUSY] = "busy",         [CONN_WAITING] = "waiting",
    [CONN_CLOSING] = "closing",
};

static const struct machine_transition transitions[] = {
    {CONN_CLOSED, CONN_CONNECTING, "opened"},
    {CONN_CONNECTING, CONN_STARTING, "the server accepted"},
    {CONN_CONNECTING, CONN_WAITING, "refused, or over the time limit"},
    {CONN_STARTING, CONN_IDLE, "session set up"},
    {CONN_STARTING, CONN_WAITING, "setup failed, or over the time limit"},
    {CONN_IDLE, CONN_BUSY, "request sent"},
    {CONN_IDLE, CONN_WAITING, "connection lost"},
    {CONN_BUSY, CONN_IDLE, "all requests answered"},
    {CONN_BUSY, CONN_WAITING, "connection lost, or a deadline"},
    {CONN_WAITING, CONN_CONNECTING, "backoff over"},
    {CONN_CONNECTING, CONN_CLOSING, "closed by its owner"},
    {CONN_STARTING, CONN_CLOSING, "closed by its owner"},
    {CONN_IDLE, CONN_CLOSING, "closed by its owner"},
    {CONN_BUSY, CONN_CLOSING, "closed by its owner"},
    {CONN_WAITING, CONN_CLOSING, "closed by its owner"},
    {CONN_CLOSING, CONN_CLOSED, "all requests answered"},
};

static const struct machine machine = {
    .name = "connection",
    .states = state_names,
    .state_count = sizeof state_names / sizeof state_names[0],
    .transitions = transitions,
    .transition_count = sizeof transitions / sizeof transitions[0],
};

const struct machine *conn_machine(void)
{
    return &machine;
}

void conn_set_state(struct conn *c, enum conn_state to)
{
    const char *why = machine_step(&machine, (int)c->state, (int)to);
    log_debug(c->opt.log, "connection state", LOG_S("conn", c->opt.name),
              LOG_S("from", state_names[c->state]), LOG_S("to", state_names[to]),
              LOG_S("why", why));
    c->state = to;
}

// -------------------------------------------------------------------- life

static void on_timer(evutil_socket_t fd, short what, void *arg)
{
    (void)fd;
    (void)what;
    struct conn *c = arg;
    conn_enter(c);
    conn_connect_timer(c);
    conn_leave(c);
}

static void on_kick(evutil_socket_t fd, short what, void *arg)
{
    (void)fd;
    (void)what;
    struct conn *c = arg;
    conn_enter(c);
    if (c->state == CONN_CONNECTING && c->pg == NULL)
        conn_connect_start(c);
    else if (c->state == CONN_STARTING || conn_is_up(c))
        conn_pump(c, true);
    conn_leave(c);
}

void conn_kick(struct conn *c)
{
    event_active(c->ev_kick, EV_TIMEOUT, 0);
}

static int or_default(int value, int fallback)
{
    return value > 0 ? value : fallback;
}

static char *copy_or_null(const char *s)
{
    return s != NULL ? xstrdup(s) : NULL;
}

static void copy_options(struct conn *c, const struct conn_options *o)
{
    c->opt = *o;
    c->opt.name = xstrdup(o->name != NULL ? o->name : "connection");
    c->opt.conninfo = xstrdup(o->conninfo != NULL ? o->conninfo : "");
    c->opt.app_name = copy_or_null(o->app_name);
    c->opt.options = copy_or_null(o->options);
    c->opt.connect_timeout_ms = or_default(o->connect_timeout_ms, 10000);
    c->opt.stable_ms = or_default(o->stable_ms, 5000);
    c->backoff.min_ms = or_default(o->backoff_min_ms, 100);
    c->backoff.max_ms = or_default(o->backoff_max_ms, 5000);
}

static void destroy(struct conn *c)
{
    struct channel *ch;
    while ((ch = STAILQ_FIRST(&c->channels)) != NULL) {
        STAILQ_REMOVE_HEAD(&c->channels, link);
        free(ch->name);
        free(ch);
    }
    loop_event_clear(&c->ev_timer);
    loop_event_clear(&c->ev_kick);
    free((char *)c->opt.name);
    free((char *)c->opt.conninfo);
    free((char *)c->opt.app_name);
    free((char *)c->opt.options);
    free(c->conninfo);
    free(c->shown);
    free(c->prepared);
    free(c);
}

struct conn *conn_new(struct event_base *base, const struct conn_options *o,
                      struct err *e)
{
    struct conn *c = xcalloc(1, sizeof *c);
    c->base = base;
    c->fd = -1;
    TAILQ_INIT(&c->setup);
    TAILQ_INIT(&c->queue);
    TAILQ_INIT(&c->sent);
    TAILQ_INIT(&c->dead);
    STAILQ_INIT(&c->channels);
    STAILQ_INIT(&c->notices);
    copy_options(c, o);
    c->prepared = xcalloc(pgkin_asset_count, sizeof c->prepared[0]);
    if (!conn_connect_prepare(c, e)) {
        destroy(c);
        return NULL;
    }
    c->ev_timer = loop_event_new(base, -1, 0, on_timer, c);
    c->ev_kick = loop_event_new(base, -1, 0, on_kick, c);
    return c;
}

void conn_enter(struct conn *c)
{
    c->depth++;
}

void conn_leave(struct conn *c)
{
    if (--c->depth == 0 && c->freed)
        destroy(c);
}

bool conn_open(struct conn *c, struct err *e)
{
    if (c->state != CONN_CLOSED || c->freed)
        return err_set(e, "connection %s is %s", c->opt.name, state_names[c->state]);
    c->outage_since_ms = loop_now_ms();
    c->outage_reported = false;
    c->was_up = false;
    c->tries = 0;
    backoff_reset(&c->backoff);
    conn_set_state(c, CONN_CONNECTING);
    conn_kick(c);
    return true;
}

// -------------------------------------------------------------------- loss

static void disconnect(struct conn *c)
{
    // The events go before their descriptor does.
    loop_event_clear(&c->ev_read);
    loop_event_clear(&c->ev_write);
    event_del(c->ev_timer);
    if (c->fd >= 0)
        close(c->fd);
    c->fd = -1;
    PQfinish(c->pg);
    c->pg = NULL;
    c->epoch++;
    conn_unsettle(c);
}

// The owner's requests end with a session; without one they go on waiting.
static void bury_requests(struct conn *c, bool queue_too)
{
    TAILQ_CONCAT(&c->dead, &c->sent, link);
    TAILQ_CONCAT(&c->dead, &c->setup, link);
    if (queue_too)
        TAILQ_CONCAT(&c->dead, &c->queue, link);
}

// One line for an outage, however many attempts it takes. True when this was it.
static bool report_down(struct conn *c, bool was_up, const struct err *why, int delay_ms)
{
    if (c->outage_reported) {
        log_debug(c->opt.log, "connection attempt failed", LOG_S("conn", c->opt.name),
                  LOG_S("error", why->msg), LOG_I("tries", c->tries),
                  LOG_I("next_in_ms", delay_ms));
        return false;
    }
    c->outage_reported = true;
    log_warn(c->opt.log, was_up ? "connection lost" : "cannot connect",
             LOG_S("conn", c->opt.name), LOG_S("to", was_up ? NULL : c->shown),
             LOG_S("error", why->msg));
    return true;
}

void conn_fail(struct conn *c, const struct err *why)
{
    struct err reason = *why; // `why` may be part of what goes now
    bool was_up = conn_is_up(c);
    disconnect(c);
    conn_set_state(c, CONN_WAITING);
    if (was_up) {
        c->outage_since_ms = loop_now_ms();
        c->outage_reported = false;
        c->tries = 0;
        if (c->outage_since_ms - c->up_since_ms >= c->opt.stable_ms)
            backoff_reset(&c->backoff);
    } else {
        c->tries++;
    }
    int delay_ms = backoff_next_ms(&c->backoff);
    loop_timer_start(c->ev_timer, delay_ms);
    bool reported = report_down(c, was_up, &reason, delay_ms);

    uint64_t epoch = c->epoch;
    bury_requests(c, was_up);
    request_answer_lost(c, reason.msg);
    if (reported && c->epoch == epoch && c->opt.on_down != NULL)
        c->opt.on_down(c, &reason, c->opt.arg);
}

void conn_drop(struct conn *c, const char *why)
{
    if (!conn_is_up(c))
        return;
    struct err e = ERR_INIT;
    err_set(&e, "%s", why);
    conn_enter(c);
    conn_fail(c, &e);
    conn_leave(c);
}

static void close_entered(struct conn *c)
{
    if (c->state != CONN_CLOSED && c->state != CONN_CLOSING) {
        disconnect(c);
        conn_set_state(c, CONN_CLOSING);
        bury_requests(c, true);
        request_answer_lost(c, "the connection was closed");
        conn_set_state(c, CONN_CLOSED);
    }
}

void conn_close(struct conn *c)
{
    conn_enter(c);
    close_entered(c);
    conn_leave(c);
}

void conn_free(struct conn *c)
{
    if (c == NULL)
        return;
    conn_enter(c);
    close_entered(c);
    // Inside a callback of a close that is under way: finish that one's work.
    request_answer_lost(c, "the connection was closed");
    c->freed = true;
    conn_leave(c);
}

// --------------------------------------------------------------- questions

enum conn_state conn_get_state(const struct conn *c)
{
    return c->state;
}

bool conn_is_up(const struct conn *c)
{
    return c->state == CONN_IDLE || c->state == CONN_BUSY;
}

size_t conn_pending(const struct conn *c)
{
    return c->pending;
}

unsigned conn_tries(const struct conn *c)
{
    return c->tries;
}

int conn_backend_pid(const struct conn *c)
{
    return conn_is_up(c) ? PQbackendPID(c->pg) : 0;
}

int conn_server_version(const struct conn *c)
{
    return conn_is_up(c) ? PQserverVersion(c->pg) : 0;
}

const char *conn_name(const struct conn *c)
{
    return c->opt.name;
}

bool conn_outcome_unknown(const struct conn *c)
{
    return c->answering != NULL && c->answering->sent;
}
