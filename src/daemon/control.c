// SPDX-License-Identifier: Apache-2.0
//
// What a worker does besides tasks. Twice a second it says that it lives; once a
// second it does a round of maintenance, looks into the queues that sleep, and
// asks whether any of its tasks was canceled. All of it is safe to be done by
// many at once, and none of it is needed for what the database guarantees.
//
// The heartbeat goes over the connection of the exchange, which is never kept
// waiting; maintenance may take its time on the other.

#include <inttypes.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "core/json.h"
#include "daemon/impl.h"

#define TICK_MS        500
#define REGISTRY_TICKS 20 // 10 s
#define UNKNOWN_TICKS  10
#define UNKNOWN_MS     60000
#define ANSWER_MS      10000
#define FIBERS_KEPT    16
#define FIBER_IDLE_MS  60000
#define FIBER_SPARE_MS 500

typedef void answer_fn(struct conn *conn, PGresult *res, const struct err *e, void *arg);

static void request(struct daemon *d, struct conn *conn, const char *query,
                    struct conn_params *p, answer_fn *done)
{
    struct err e = ERR_INIT;
    if (!conn_request(
            conn,
            &(struct conn_request){.query = query, .params = p, .done = done, .arg = d},
            &e))
        log_err(d->log, LOG_DEBUG, query, &e);
}

static void log_failure(const struct daemon *d, const char *what, const PGresult *res,
                        const struct err *e)
{
    // That a connection was lost is told once, by its owner.
    if (res != NULL)
        log_warn(d->log, what, LOG_S("error", e->msg),
                 LOG_S("sqlstate", conn_sqlstate(res)));
}

// ---------------------------------------------------------- register and beat

static void on_registered(struct conn *conn, PGresult *res, const struct err *e,
                          void *arg)
{
    (void)conn;
    struct daemon *d = arg;
    d->control.registering = false;
    if (e != NULL) {
        log_failure(d, "cannot register", res, e);
        if (res != NULL &&
            (conn_sqlstate_is(res, "42883") || conn_sqlstate_is(res, "3F000") ||
             conn_sqlstate_is(res, "42501"))) {
            struct err bad = *e;
            if (conn_sqlstate_is(res, "42501"))
                err_hint(&bad, "the role needs worker_service_user");
            else
                err_hint(&bad, "install the schema with: pgkin migrate");
            daemon_fail(d, &bad);
        }
        return;
    }
    d->control.worker_id = conn_result_int64(res, 0, 0);
    d->control.beat_ms = d->control.report_ms = loop_now_ms();
    daemon_registered(d, d->control.worker_id);
}

static void register_worker(struct daemon *d)
{
    struct conn_params p = CONN_PARAMS_INIT;
    d->control.registering = true;
    conn_params_add_text(&p, d->name);
    conn_params_add_text(&p, d->host);
    conn_params_add_int64(&p, getpid());
    request(d, pump_conn(d), "worker_register", &p, on_registered);
}

static void on_beaten(struct conn *conn, PGresult *res, const struct err *e, void *arg)
{
    (void)conn;
    struct daemon *d = arg;
    d->control.beating = false;
    if (e != NULL) {
        log_failure(d, "heartbeat failed", res, e);
        if (res != NULL && conn_sqlstate_is(res, "25006"))
            conn_drop(pump_conn(d), "the server is read-only");
        return;
    }
    d->control.beat_ms = loop_now_ms();
    if (PQgetvalue(res, 0, 0)[0] == 't')
        return;
    log_warn(d->log, "this worker was given up by the others: its tasks are theirs now",
             LOG_I("worker", d->control.worker_id));
    d->control.worker_id = 0;
    daemon_lost(d);
}

static void beat(struct daemon *d)
{
    struct control *c = &d->control;
    struct conn_params p = CONN_PARAMS_INIT;
    if (c->worker_id == 0) {
        if (!c->registering && d->state != DAEMON_LEAVING)
            register_worker(d);
    } else if (!c->beating) {
        c->beating = true;
        conn_params_add_int64(&p, c->worker_id);
        request(d, pump_conn(d), "worker_beat", &p, on_beaten);
    }
}

// --------------------------------------------------------------- maintenance

static void on_maintained(struct conn *conn, PGresult *res, const struct err *e,
                          void *arg)
{
    (void)conn;
    struct daemon *d = arg;
    d->control.maintaining = false;
    if (e != NULL) {
        log_failure(d, "maintenance failed", res, e);
        if (res != NULL && conn_sqlstate_is(res, "25006"))
            conn_drop(d->control.conn, "the server is read-only");
        return;
    }
    int recovered = (int)conn_result_int64(res, 0, 0);
    if (recovered > 0) {
        log_info(d->log, "tasks recovered from workers that are gone",
                 LOG_I("tasks", recovered));
        control_look(d);
    }
}

static void maintain(struct daemon *d, bool all)
{
    struct conn_params p = CONN_PARAMS_INIT;
    if (d->control.maintaining)
        return;
    d->control.maintaining = true;
    if (all) {
        conn_params_add_null(&p);
        request(d, d->control.conn, "stop_overdue", NULL, NULL);
        request(d, d->control.conn, "queue_maintain", &p, on_maintained);
    } else {
        request(d, d->control.conn, "worker_recover", NULL, on_maintained);
    }
}

// Claims whose answer never came: the server may have leased tasks to us that
// we do not know of, and nobody else would ever take them.
static void add_leases(const struct attempt_list *l, int64_t *ids, size_t *n)
{
    for (const struct attempt_private *a = l->first; a != NULL; a = a->next)
        ids[(*n)++] = a->pub.task.lease_id;
}

// Those whose ends the server has not heard of yet are known too.
static void add_ends(const struct exchange *x, int64_t *ids, size_t *n)
{
    exchange_get_leases(x, ids + *n);
    *n += x->lease_count;
}

static void release_unknown(struct daemon *d)
{
    struct conn_params p = CONN_PARAMS_INIT;
    size_t n = 0, most = 1 + d->pump.ends.lease_count;
    for (size_t i = 0; i < PUMP_CARRIERS; i++)
        most += d->pump.carriers[i].ends.lease_count;
    for (size_t i = 0; i < d->queue_count; i++)
        most += d->queues[i]->waiting.count + d->queues[i]->running.count;
    int64_t *ids = xcalloc(most, sizeof *ids);
    for (size_t i = 0; i < d->queue_count; i++) {
        add_leases(&d->queues[i]->waiting, ids, &n);
        add_leases(&d->queues[i]->running, ids, &n);
    }
    add_ends(&d->pump.ends, ids, &n);
    for (size_t i = 0; i < PUMP_CARRIERS; i++)
        add_ends(&d->pump.carriers[i].ends, ids, &n);
    conn_params_add_int64(&p, d->control.worker_id);
    conn_params_add_int64s(&p, ids, n);
    free(ids);
    request(d, d->control.conn, "release_unknown", &p, NULL);
}

void control_expect_unknown(struct daemon *d)
{
    d->control.unknown_until_ms = loop_now_ms() + UNKNOWN_MS;
}

static void on_lost(struct conn *conn, PGresult *res, const struct err *e, void *arg)
{
    (void)conn;
    struct daemon *d = arg;
    if (e == NULL)
        return;
    log_failure(d, "a lease could not be given up", res, e);
    control_expect_unknown(d);
}

void control_lose_leases(struct daemon *d, const struct exchange *ends)
{
    struct conn_params p = CONN_PARAMS_INIT;
    int64_t *ids = xcalloc(ends->lease_count, sizeof *ids);
    exchange_get_leases(ends, ids);
    conn_params_add_int64(&p, d->control.worker_id);
    conn_params_add_int64s(&p, ids, ends->lease_count);
    free(ids);
    request(d, d->control.conn, "lose_leases", &p, on_lost);
}

// ------------------------------------------------------------------ registry

static void on_registry(struct conn *conn, PGresult *res, const struct err *e, void *arg)
{
    (void)conn;
    struct daemon *d = arg;
    struct err bad = ERR_INIT;
    struct registry *r;
    d->control.reading = false;
    if (e != NULL) {
        log_failure(d, "cannot read the registry", res, e);
        d->control.reread = true; // at the next tick
        return;
    }
    r = registry_parse(res, &bad);
    if (r == NULL)
        log_err(d->log, LOG_ERROR, "cannot read the registry", &bad);
    else
        daemon_use_registry(d, r);
    if (d->control.reread)
        control_read_registry(d);
}

void control_read_registry(struct daemon *d)
{
    d->control.reread = d->control.reading;
    if (d->control.reading)
        return;
    d->control.reading = true;
    request(d, d->control.conn, "work_registry", NULL, on_registry);
}

// ---------------------------------------------------------------------- look

static struct queue *find_queue_id(struct daemon *d, int id)
{
    for (size_t i = 0; i < d->queue_count; i++)
        if (d->queues[i]->id == id)
            return d->queues[i];
    return NULL;
}

static void take_look(struct daemon *d, struct queue *q, const char *lanes, int due_in_ms)
{
    bool sql = false, other = false;
    for (const char *p = lanes; *p != '\0'; p++) {
        if (*p < '0' || *p > '9')
            continue;
        char *end;
        int lane = (int)strtol(p, &end, 10);
        if (registry_lane_is_sql(d->registry, lane))
            sql = true;
        for (size_t i = 0; i < q->lane_count; i++)
            other = other || q->lanes[i] == lane;
        p = end - 1;
    }
    queue_looked(q, sql, other, due_in_ms);
}

static void on_looked(struct conn *conn, PGresult *res, const struct err *e, void *arg)
{
    (void)conn;
    struct daemon *d = arg;
    d->control.looking = false;
    if (e != NULL) {
        log_failure(d, "cannot look for work", res, e);
        for (size_t i = 0; i < d->queue_count; i++)
            d->queues[i]->sql_asked = false; // the next tick asks again
        return;
    }
    for (int row = 0; row < PQntuples(res); row++) {
        struct queue *q = find_queue_id(d, (int)conn_result_int64(res, row, 0));
        int64_t due = PQgetisnull(res, row, 2) ? -1 : conn_result_int64(res, row, 2);
        if (q == NULL)
            continue;
        if (!PQgetisnull(res, row, 2) && due < 0)
            due = 0;
        if (due > 3600 * 1000)
            due = -1; // this is asked again long before
        take_look(d, q, PQgetvalue(res, row, 1), (int)due);
    }
    if (d->control.look_again)
        control_look(d);
}

void control_look(struct daemon *d)
{
    struct conn_params p = CONN_PARAMS_INIT;
    size_t n = 0;
    d->control.look_again = d->control.looking;
    if (d->control.looking || d->queue_count == 0 || !daemon_may_claim(d))
        return;
    int64_t *ids = xcalloc(d->queue_count, sizeof *ids);
    for (size_t i = 0; i < d->queue_count; i++) {
        const struct queue *q = d->queues[i];
        if (!q->gone &&
            (q->sql_asked || q->state == QUEUE_IDLE || q->state == QUEUE_SCHEDULED))
            ids[n++] = q->id;
    }
    if (n > 0) {
        d->control.looking = true;
        conn_params_add_int64s(&p, ids, n);
        request(d, pump_conn(d), "look", &p, on_looked);
    }
    free(ids);
}

// ------------------------------------------------------------------- cancels

static void on_cancels(struct conn *conn, PGresult *res, const struct err *e, void *arg)
{
    (void)conn;
    struct daemon *d = arg;
    if (e != NULL) {
        log_failure(d, "cannot ask for canceled tasks", res, e);
        return;
    }
    for (int row = 0; row < PQntuples(res); row++) {
        struct attempt_private *a = attempt_find(d, conn_result_int64(res, row, 0),
                                                 conn_result_int64(res, row, 1));
        if (a != NULL && a->stop == STOP_NONE) {
            log_info(d->log, "stopping a canceled task",
                     LOG_I("task", a->pub.task.task_id),
                     LOG_S("command", a->pub.task.command));
            attempt_stop(a, STOP_CANCEL);
        }
    }
}

void control_read_cancels(struct daemon *d)
{
    struct conn_params p = CONN_PARAMS_INIT;
    size_t held = 0;
    for (size_t i = 0; i < d->queue_count; i++)
        held += d->queues[i]->waiting.count + d->queues[i]->running.count;
    if (held == 0 || d->control.worker_id == 0)
        return;
    conn_params_add_int64(&p, d->control.worker_id);
    request(d, pump_conn(d), "cancel_requests", &p, on_cancels);
}

// ------------------------------------------------------- progress and reports

void control_report_progress(struct daemon *d, int64_t task_id, int64_t lease_id,
                             double fraction, const char *message)
{
    struct conn_params p = CONN_PARAMS_INIT;
    char text[JSON_DOUBLE_MAX];
    if (d->control.worker_id == 0)
        return;
    json_format_double(fraction, text);
    conn_params_add_int64(&p, task_id);
    conn_params_add_int64(&p, lease_id);
    conn_params_add_text(&p, text);
    conn_params_add_text(&p, message);
    request(d, d->control.conn, "report_progress", &p, NULL);
}

// The columns of sql/queries/report.sql are the fields of the line.
static void on_report(struct conn *conn, PGresult *res, const struct err *e, void *arg)
{
    (void)conn;
    struct daemon *d = arg;
    if (e != NULL) {
        log_failure(d, "cannot report", res, e);
        return;
    }
    for (int row = 0; row < PQntuples(res); row++) {
        if (daemon_find_queue(d, PQgetvalue(res, row, 0)) == NULL)
            continue;
        struct log_field fields[16] = {{0}};
        size_t n = 1;
        for (int col = 0; col < PQnfields(res) && n < 16; col++)
            fields[n++] = LOG_S(PQfname(res, col), PQgetvalue(res, row, col));
        log_write(d->log, LOG_INFO, "report", fields, n);
    }
}

static void report(struct daemon *d)
{
    int64_t every_ms = conf_get_int(d->opt.conf, "work.report_every");
    struct conn_params p = CONN_PARAMS_INIT;
    int64_t since_ms = loop_now_ms() - d->control.report_ms;
    if (every_ms == 0 || since_ms < every_ms)
        return;
    d->control.report_ms += since_ms;
    conn_params_add_int64(&p, since_ms);
    request(d, d->control.conn, "report", &p, on_report);
}

// ----------------------------------------------------------------- exclusive

static void on_exclusive(struct conn *conn, PGresult *res, const struct err *e, void *arg)
{
    (void)conn;
    struct daemon *d = arg;
    struct err taken = ERR_INIT;
    if (e != NULL)
        return;
    d->control.exclusive_held = PQgetvalue(res, 0, 0)[0] == 't';
    if (d->control.exclusive_held) {
        for (size_t i = 0; i < d->queue_count; i++)
            queue_kick(d->queues[i]);
    } else if (d->state == DAEMON_STARTING) {
        err_set(&taken, "another worker is already running");
        daemon_fail(d, &taken);
    }
}

static void ask_exclusive(struct daemon *d)
{
    if (d->opt.exclusive && !d->control.exclusive_held)
        request(d, d->control.conn, "worker_exclusive", NULL, on_exclusive);
}

// ---------------------------------------------------------------------- tick

// How long a fiber may keep a connection it does not use. Where there are many,
// or one cannot get any, other queues and other clients need them more.
static int64_t fiber_idle_ms(const struct daemon *d)
{
    size_t idle = 0;
    for (size_t i = 0; i < d->queue_count; i++)
        for (size_t k = 0; k < d->queues[i]->fiber_count; k++) {
            const struct fiber *f = d->queues[i]->fibers[k];
            idle += f->state == FIBER_IDLE;
            if (f->state == FIBER_BUSY && !conn_is_up(f->conn) && conn_tries(f->conn) > 0)
                return FIBER_SPARE_MS;
        }
    return idle > FIBERS_KEPT ? FIBER_SPARE_MS : FIBER_IDLE_MS;
}

static void on_tick(evutil_socket_t fd, short what, void *arg)
{
    (void)fd;
    (void)what;
    struct daemon *d = arg;
    struct control *c = &d->control;
    c->ticks++;
    if (d->opt.on_tick != NULL)
        d->opt.on_tick(d->opt.arg);
    beat(d);
    if (c->worker_id == 0)
        return;
    if (conn_is_up(c->conn)) {
        ask_exclusive(d);
        report(d);
        maintain(d, c->ticks % 2 == 0);
        if (c->ticks % REGISTRY_TICKS == 0 || d->registry == NULL || c->reread)
            control_read_registry(d);
        if (c->ticks % UNKNOWN_TICKS == 0 && loop_now_ms() < c->unknown_until_ms)
            release_unknown(d);
    }
    listen_probe(d);
    if (c->ticks % 2 == 0 || !d->listen.works)
        control_look(d);
    if (c->ticks % 2 == 0)
        control_read_cancels(d);
    int64_t idle_ms = fiber_idle_ms(d);
    for (size_t i = 0; i < d->queue_count; i++) {
        struct queue *q = d->queues[i];
        queue_give_back(q);
        queue_rest_fibers(q, idle_ms);
        if (q->state == QUEUE_SATURATED && q->published == QUEUE_RUNNING)
            listen_publish(q, QUEUE_SATURATED);
    }
}

static void on_up(struct conn *conn, void *arg)
{
    (void)conn;
    struct daemon *d = arg;
    atomic_store(&d->connected, true);
    ask_exclusive(d);
    control_read_registry(d);
}

static void on_down(struct conn *conn, const struct err *why, void *arg)
{
    struct daemon *d = arg;
    atomic_store(&d->connected, false);
    d->control.exclusive_held = false;
    log_warn(d->log, "connection lost", LOG_S("connection", conn_name(conn)),
             LOG_S("error", why->msg));
}

bool control_open(struct daemon *d, struct err *e)
{
    d->control.conn = daemon_new_conn(d, "control", on_up, on_down, NULL, d, false, e);
    if (d->control.conn == NULL || !conn_open(d->control.conn, e))
        return false;
    d->control.tick = loop_event_new(d->base, -1, EV_PERSIST, on_tick, d);
    loop_event_add(d->control.tick, &(struct timeval){.tv_usec = TICK_MS * 1000});
    beat(d);
    return true;
}

void control_close(struct daemon *d)
{
    loop_event_clear(&d->control.tick);
    conn_free(d->control.conn);
    d->control.conn = NULL;
}

// ------------------------------------------------------------------ sign off

static void on_signed_off(struct conn *conn, PGresult *res, const struct err *e,
                          void *arg)
{
    (void)conn;
    struct daemon *d = arg;
    if (e != NULL)
        log_failure(d, "cannot sign off", res, e);
    else if (strcmp(PQgetvalue(res, 0, 0), "0") != 0)
        log_info(d->log, "handed back", LOG_S("tasks", PQgetvalue(res, 0, 0)));
    daemon_signed_off(d);
}

void control_sign_off(struct daemon *d)
{
    struct conn_params p = CONN_PARAMS_INIT;
    struct err e = ERR_INIT;
    if (d->control.worker_id == 0 || !conn_is_up(pump_conn(d))) {
        daemon_signed_off(d); // the others find out by themselves
        return;
    }
    conn_params_add_int64(&p, d->control.worker_id);
    if (!conn_request(pump_conn(d),
                      &(struct conn_request){.query = "worker_stop",
                                             .params = &p,
                                             .deadline_ms = ANSWER_MS,
                                             .done = on_signed_off,
                                             .arg = d},
                      &e))
        daemon_signed_off(d);
}
