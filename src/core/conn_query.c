// SPDX-License-Identifier: Apache-2.0
//
// The traffic of a session. libpq reads from the socket also while it writes,
// to keep both ends from waiting for each other, so there is no such thing as
// "only" a writable socket: every event sends what it can and then looks at
// what has come in.

#include <errno.h>
#include <fcntl.h>

#include "core/conn_impl.h"

// -------------------------------------------------------------------- events

// Also when writable: libpq takes writing to a dead socket for success, and
// only reading tells.
static void on_io(evutil_socket_t fd, short what, void *arg)
{
    (void)fd;
    struct conn *c = arg;
    conn_enter(c);
    if (what & EV_WRITE)
        c->want_write = false;
    conn_pump(c, PQconsumeInput(c->pg) == 1);
    conn_leave(c);
}

// The events are on a descriptor of our own. libpq closes its own as soon as
// it reads the end, and the callbacks of the last answers may then open
// something under the same number.
bool conn_watch(struct conn *c, struct err *e)
{
    c->fd = fcntl(PQsocket(c->pg), F_DUPFD_CLOEXEC, 3);
    if (c->fd < 0)
        return err_errno(e, errno, "cannot duplicate a descriptor");
    c->ev_read = loop_event_new(c->base, c->fd, EV_READ | EV_PERSIST, on_io, c);
    c->ev_write = loop_event_new(c->base, c->fd, EV_WRITE | EV_PERSIST, on_io, c);
    loop_event_add(c->ev_read, NULL);
    return true;
}

void conn_unsettle(struct conn *c)
{
    c->want_write = false;
    c->setup_left = 0;
    err_clear(&c->fatal);
    conn_notice_clear(c);
    request_forget_prepared(c);
}

// What to wait for, from what is under way.
static void settle(struct conn *c)
{
    bool busy = !TAILQ_EMPTY(&c->sent);
    if (c->want_write)
        loop_event_add(c->ev_write, NULL);
    else
        event_del(c->ev_write);
    if (conn_is_up(c) && busy != (c->state == CONN_BUSY))
        conn_set_state(c, busy ? CONN_BUSY : CONN_IDLE);
}

// ---------------------------------------------------------------------- send

static bool flush(struct conn *c, struct err *e)
{
    int rc = PQflush(c->pg);
    c->want_write = rc > 0;
    if (rc < 0)
        conn_libpq_error(c->pg, e);
    return rc >= 0;
}

static struct request_list *source(struct conn *c)
{
    return c->state == CONN_STARTING ? &c->setup : &c->queue;
}

// While the socket takes no more, requests wait here and not in libpq's buffer,
// and libpq is not asked in vain: each time it moves all that it still has.
static bool send_queued(struct conn *c, struct err *e)
{
    struct request_list *list = source(c);
    struct request *r;
    if (c->want_write)
        return true;
    if (!flush(c, e))
        return false;
    while (!c->want_write && (r = TAILQ_FIRST(list)) != NULL) {
        TAILQ_REMOVE(list, r, link);
        TAILQ_INSERT_TAIL(&c->sent, r, link);
        if (!request_send(c, r, e) || !flush(c, e))
            return false;
    }
    return true;
}

// ------------------------------------------------------------------- receive

// False when a callback ended the session.
static bool take_results(struct conn *c)
{
    uint64_t epoch = c->epoch;
    struct request *r;
    int nulls = 0;
    while ((r = TAILQ_FIRST(&c->sent)) != NULL && !PQisBusy(c->pg)) {
        PGresult *res = PQgetResult(c->pg);
        if (!conn_notice_deliver(c)) {
            PQclear(res);
            return false;
        }
        if (res != NULL) {
            nulls = 0;
            request_take_result(c, r, res);
        } else if (PQstatus(c->pg) == CONNECTION_BAD) {
            break;
        } else if (++nulls > 2) {
            // One ends the results of a statement. More: libpq has nothing to
            // wait for although we have, and this loop would not end.
            struct err e = ERR_INIT;
            err_set(&e, "out of step with the server");
            conn_fail(c, &e);
        }
        if (c->epoch != epoch)
            return false;
    }
    return true;
}

static bool take_notifications(struct conn *c)
{
    uint64_t epoch = c->epoch;
    PGnotify *n;
    while ((n = PQnotifies(c->pg)) != NULL) {
        if (c->opt.on_notify != NULL)
            c->opt.on_notify(c, n->relname, n->extra, n->be_pid, c->opt.arg);
        PQfreemem(n);
        if (c->epoch != epoch)
            return false;
    }
    return conn_notice_deliver(c);
}

void conn_pump(struct conn *c, bool alive)
{
    struct err e = ERR_INIT;
    if (!alive)
        conn_libpq_error(c->pg, &e);
    if (!take_results(c))
        return;
    // After a fatal error the server only hangs up. What is not sent now can
    // be answered as not sent.
    if (alive && c->fatal.code == ERR_NONE)
        alive = send_queued(c, &e);
    if (!take_results(c) || !take_notifications(c))
        return;
    if (PQstatus(c->pg) == CONNECTION_BAD && alive) {
        conn_libpq_error(c->pg, &e);
        alive = false;
    }
    if (!alive) {
        // What the server said last tells more than that it hung up.
        conn_fail(c, c->fatal.code != ERR_NONE ? &c->fatal : &e);
        return;
    }
    settle(c);
    // After a FATAL there is nothing to send to: the end of the session is on
    // its way, and until it comes a kick would only lead back here.
    if (!c->want_write && c->fatal.code == ERR_NONE && !TAILQ_EMPTY(source(c)))
        conn_kick(c);
}

// ------------------------------------------------------------------ requests

static void on_deadline(evutil_socket_t fd, short what, void *arg)
{
    (void)fd;
    (void)what;
    struct request *r = arg;
    struct conn *c = r->conn;
    struct err e = ERR_INIT;
    conn_enter(c);
    r->expired = true;
    if (conn_is_up(c)) {
        err_set(&e, "a request was not answered within %d ms", r->deadline_ms);
        conn_fail(c, &e);
    } else {
        TAILQ_REMOVE(&c->queue, r, link);
        TAILQ_INSERT_TAIL(&c->dead, r, link);
        request_answer_lost(c, "");
    }
    conn_leave(c);
}

static const struct asset *find_query(const char *name)
{
    struct buf path = BUF_INIT;
    buf_addf(&path, "sql/queries/%s.sql", name);
    const struct asset *a = asset_find(buf_str(&path));
    buf_clear(&path);
    return a;
}

static bool check_request(const struct conn *c, const struct conn_request *r,
                          const struct asset **asset, struct err *e)
{
    if ((r->query == NULL) == (r->sql == NULL))
        BUG("connection %s: a request needs either a query or a text", c->opt.name);
    if (c->state == CONN_CLOSED || c->state == CONN_CLOSING)
        return err_set(e, "connection %s is closed", c->opt.name);
    if (r->params != NULL && r->params->count > CONN_PARAMS_MAX)
        return err_set(e, "a statement cannot have %d parameters", r->params->count);
    *asset = r->query != NULL ? find_query(r->query) : NULL;
    if (r->query != NULL && *asset == NULL)
        return err_set(e, "there is no query named %s", r->query);
    return true;
}

bool conn_request(struct conn *c, const struct conn_request *r, struct err *e)
{
    const struct asset *asset = NULL;
    bool ok = check_request(c, r, &asset, e);
    if (ok) {
        struct request *q = request_new(c, r);
        q->asset = asset;
        if (r->params != NULL) {
            q->params = *r->params;
            *r->params = CONN_PARAMS_INIT;
        }
        if (r->deadline_ms > 0) {
            q->deadline = loop_event_new(c->base, -1, 0, on_deadline, q);
            loop_timer_start(q->deadline, r->deadline_ms);
        }
        TAILQ_INSERT_TAIL(&c->queue, q, link);
        c->pending++;
        conn_kick(c);
    } else if (r->params != NULL) {
        conn_params_clear(r->params);
    }
    return ok;
}
