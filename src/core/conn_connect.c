// SPDX-License-Identifier: Apache-2.0
//
// From nothing to a session that is ready: the connection string, an attempt
// with its time limit, session setup.

#include <stdlib.h>
#include <string.h>

#include "core/conn_impl.h"
#include "core/conninfo.h"

// The user's own options come last, so that they win.
static char *join_options(const char *ours, const char *users)
{
    if (ours == NULL)
        return NULL;
    return users != NULL ? xasprintf("%s %s", ours, users) : xstrdup(ours);
}

bool conn_connect_prepare(struct conn *c, struct err *e)
{
    struct buf with_defaults = BUF_INIT;
    struct buf shown = BUF_INIT;
    struct buf full = BUF_INIT;
    char *user_options = NULL;
    char *options = NULL;
    char *timeout = NULL;
    bool ok = false;

    if (!conninfo_check(c->opt.conninfo, e) ||
        !conninfo_with_defaults(c->opt.conninfo, &with_defaults, e))
        goto out;
    user_options = conninfo_get(c->opt.conninfo, "options");
    options = join_options(c->opt.options, user_options);
    const struct conninfo_param params[] = {
        {.key = "fallback_application_name", .value = c->opt.app_name},
        {.key = "options", .value = options, .force = true},
        // The texts in this program are UTF-8, whatever PGCLIENTENCODING says.
        {.key = "client_encoding", .value = "UTF8", .force = true},
    };
    if (!conninfo_with_params(buf_str(&with_defaults), params,
                              sizeof params / sizeof params[0], &full, e))
        goto out;
    timeout = conninfo_get(c->opt.conninfo, "connect_timeout");
    if (timeout != NULL) {
        long seconds = strtol(timeout, NULL, 10);
        if (seconds > 0 && seconds <= 3600)
            c->opt.connect_timeout_ms = (int)seconds * 1000;
    }
    conninfo_redact(c->opt.conninfo, &shown);
    c->shown = buf_detach(&shown);
    c->conninfo = buf_detach(&full);
    c->hosts = conninfo_count_hosts(c->conninfo);
    ok = true;
out:
    free(timeout);
    free(options);
    free(user_options);
    buf_clear(&with_defaults);
    buf_clear(&full);
    buf_clear(&shown);
    return ok;
}

// ----------------------------------------------------------- session setup

static void setup_done(struct conn *c, PGresult *res, const struct err *e, void *arg);

// `list` decides whether it is part of setup or comes among the requests.
static void add_setup(struct conn *c, const char *sql, struct request_list *list)
{
    struct request *r =
        request_new(c, &(struct conn_request){.sql = sql, .done = setup_done});
    r->internal = true;
    TAILQ_INSERT_TAIL(list, r, link);
    if (list == &c->setup)
        c->setup_left++;
}

// The one statement made in C: LISTEN takes no parameter.
static void add_listen(struct conn *c, const char *channel, struct request_list *list)
{
    struct buf sql = BUF_INIT;
    buf_adds(&sql, "listen \"");
    for (const char *p = channel; *p != '\0'; p++) {
        if (*p == '"')
            buf_addc(&sql, '"');
        buf_addc(&sql, *p);
    }
    buf_addc(&sql, '"');
    add_setup(c, buf_str(&sql), list);
    buf_clear(&sql);
}

void conn_listen(struct conn *c, const char *channel)
{
    struct channel *ch;
    STAILQ_FOREACH(ch, &c->channels, link)
    {
        if (strcmp(ch->name, channel) == 0)
            return;
    }
    ch = xcalloc(1, sizeof *ch);
    ch->name = xstrdup(channel);
    STAILQ_INSERT_TAIL(&c->channels, ch, link);
    if (c->state == CONN_STARTING)
        add_listen(c, channel, &c->setup);
    else if (conn_is_up(c))
        add_listen(c, channel, &c->queue);
    conn_kick(c);
}

static void session_up(struct conn *c)
{
    int64_t now = loop_now_ms();
    event_del(c->ev_timer);
    conn_set_state(c, CONN_IDLE);
    log_info(c->opt.log, c->was_up ? "reconnected" : "connected",
             LOG_S("conn", c->opt.name), LOG_I("tries", (int64_t)c->tries + 1),
             LOG_I("after_ms", now - c->outage_since_ms),
             LOG_I("pid", PQbackendPID(c->pg)));
    c->was_up = true;
    c->tries = 0;
    c->up_since_ms = now;
    conn_kick(c);
    if (c->opt.on_up != NULL)
        c->opt.on_up(c, c->opt.arg);
}

static void setup_done(struct conn *c, PGresult *res, const struct err *e, void *arg)
{
    (void)arg;
    if (res == NULL)
        return; // the session is gone: whoever ended it has reported that
    if (e != NULL) {
        struct err why = *e;
        err_wrap(&why, "session setup");
        conn_fail(c, &why);
        return;
    }
    if (c->state == CONN_STARTING && --c->setup_left == 0)
        session_up(c);
}

static void session_start(struct conn *c)
{
    conn_set_state(c, CONN_STARTING);
    struct err e = ERR_INIT;
    bool ok = PQsetnonblocking(c->pg, 1) == 0 && PQenterPipelineMode(c->pg) == 1;
    if (!ok)
        conn_libpq_error(c->pg, &e);
    if (!ok || !conn_watch(c, &e)) {
        conn_fail(c, &e);
        return;
    }
    for (const char *const *sql = c->opt.session_sql; sql != NULL && *sql != NULL; sql++)
        add_setup(c, *sql, &c->setup);
    struct channel *ch;
    STAILQ_FOREACH(ch, &c->channels, link)
    {
        add_listen(c, ch->name, &c->setup);
    }
    if (c->setup_left == 0)
        session_up(c);
    else
        conn_pump(c, true);
}

// ---------------------------------------------------------------- attempts

static void on_connect_io(evutil_socket_t fd, short what, void *arg);

static void wait_for(struct conn *c, short what)
{
    c->ev_read = loop_event_new(c->base, PQsocket(c->pg), what, on_connect_io, c);
    loop_event_add(c->ev_read, NULL);
}

static void attempt_failed(struct conn *c)
{
    struct err e = ERR_INIT;
    conn_libpq_error(c->pg, &e);
    conn_fail(c, &e);
}

static void on_connect_io(evutil_socket_t fd, short what, void *arg)
{
    (void)fd;
    (void)what;
    struct conn *c = arg;
    conn_enter(c);
    // libpq may close this socket and open another, for the next address.
    loop_event_clear(&c->ev_read);
    switch (PQconnectPoll(c->pg)) {
    case PGRES_POLLING_READING: wait_for(c, EV_READ); break;
    case PGRES_POLLING_WRITING: wait_for(c, EV_WRITE); break;
    case PGRES_POLLING_OK: session_start(c); break;
    default: attempt_failed(c); break;
    }
    conn_leave(c);
}

void conn_connect_start(struct conn *c)
{
    struct err e = ERR_INIT;
    struct buf conninfo = BUF_INIT;
    if (!conninfo_rotate_hosts(c->conninfo, c->first_host, &conninfo, &e))
        BUG("a connection string that was good before: %s", e.msg);
    loop_timer_start(c->ev_timer, c->opt.connect_timeout_ms);
    c->pg = PQconnectStart(buf_str(&conninfo));
    buf_clear(&conninfo);
    if (c->pg == NULL)
        BUG("out of memory in PQconnectStart");
    PQsetNoticeReceiver(c->pg, conn_notice_receive, c);
    if (PQstatus(c->pg) == CONNECTION_BAD)
        attempt_failed(c);
    else
        wait_for(c, EV_WRITE); // as libpq's manual wants it
}

static void attempt_too_late(struct conn *c)
{
    struct err e = ERR_INIT;
    const char *host = c->pg != NULL ? PQhost(c->pg) : NULL;
    err_set(&e, "no %s from %s within %d ms",
            c->state == CONN_STARTING ? "session" : "connection",
            host != NULL && host[0] != '\0' ? host : "the server",
            c->opt.connect_timeout_ms);
    c->first_host = (c->first_host + 1) % c->hosts;
    conn_fail(c, &e);
}

void conn_connect_timer(struct conn *c)
{
    switch (c->state) {
    case CONN_WAITING:
        conn_set_state(c, CONN_CONNECTING);
        conn_connect_start(c);
        break;
    case CONN_CONNECTING:
    case CONN_STARTING: attempt_too_late(c); break;
    default: BUG("a timer in state %d of connection %s", (int)c->state, c->opt.name);
    }
}
