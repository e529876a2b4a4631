// SPDX-License-Identifier: Apache-2.0
//
// Notifications, and what producers are told about whether to send them.
//
// A notification is a hint. That they arrive at all is not taken on trust: now
// and then the worker sends one to itself. When it does not come back the worker
// polls, and says so. Behind a pooler it polls in any case: pgbouncer in
// transaction mode says OK to LISTEN, and then a notification reaches whoever
// happens to have the session.

#include <inttypes.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "daemon/impl.h"

#define PROBE_EVERY_MS 30000
#define PROBE_LIMIT_MS 3000

static void tell(struct daemon *d, bool works)
{
    struct conn_params p = CONN_PARAMS_INIT;
    struct err e = ERR_INIT;
    conn_params_add_int64(&p, d->control.worker_id);
    conn_params_add_bool(&p, works);
    conn_request(d->control.conn,
                 &(struct conn_request){.query = "worker_listening", .params = &p}, &e);
}

static void set_works(struct daemon *d, bool works)
{
    struct listen *l = &d->listen;
    if (d->control.worker_id != 0)
        tell(d, works);
    if (works && l->said)
        log_info(d->log, "notifications arrive again");
    if (!works && !l->said && !d->opt.poll_only)
        log_warn(d->log, "notifications cannot be relied on: polling instead",
                 LOG_S("why", l->pooled ? "there is a pooler in between"
                                        : "one to ourselves did not arrive"));
    l->said = !works && !d->opt.poll_only;
    bool news = works && !l->works;
    l->works = works;
    atomic_store(&d->listening, works);
    // Those that sleep have not told anybody yet.
    for (size_t i = 0; news && i < d->queue_count; i++)
        queue_kick(d->queues[i]);
}

void listen_open(struct daemon *d)
{
    static const char *const channels[] = {"worker_tasks", "worker_queue_change",
                                           "worker_task_changed", "worker_status"};
    if (d->opt.poll_only)
        return;
    for (size_t i = 0; i < sizeof channels / sizeof channels[0]; i++)
        conn_listen(pump_conn(d), channels[i]);
}

#define PROBE_SIZE 64

static void write_probe(const struct daemon *d, char text[PROBE_SIZE])
{
    snprintf(text, PROBE_SIZE, "probe %" PRId64 " %u", d->control.worker_id,
             d->listen.probe);
}

static void send_probe(struct daemon *d)
{
    struct conn_params p = CONN_PARAMS_INIT;
    struct err e = ERR_INIT;
    char text[PROBE_SIZE];
    d->listen.probe++;
    write_probe(d, text);
    conn_params_add_text(&p, text);
    d->listen.awaited = true;
    d->listen.sent_ms = loop_now_ms();
    conn_request(d->control.conn,
                 &(struct conn_request){.query = "listen_probe", .params = &p}, &e);
}

void listen_probe(struct daemon *d)
{
    struct listen *l = &d->listen;
    if (d->opt.poll_only || l->pooled || !conn_is_up(pump_conn(d)) ||
        d->control.worker_id == 0)
        return;
    int64_t age = loop_now_ms() - l->sent_ms;
    if (l->awaited && age > PROBE_LIMIT_MS) {
        l->awaited = false;
        set_works(d, false);
    }
    if (!l->awaited && (l->probe == 0 || age > PROBE_EVERY_MS))
        send_probe(d);
}

void listen_begin(struct daemon *d)
{
    if (d->opt.poll_only || d->listen.pooled)
        set_works(d, false);
    else
        listen_probe(d);
}

static void on_backend_pid(struct conn *conn, PGresult *res, const struct err *e,
                           void *arg)
{
    struct daemon *d = arg;
    if (e != NULL)
        return;
    d->listen.pooled = (int)conn_result_int64(res, 0, 0) != conn_backend_pid(conn);
    if (d->listen.pooled)
        set_works(d, false);
    else
        listen_probe(d);
}

void listen_up(struct daemon *d)
{
    struct err e = ERR_INIT;
    conn_request(
        pump_conn(d),
        &(struct conn_request){.query = "backend_pid", .done = on_backend_pid, .arg = d},
        &e);
    // Whatever was committed meanwhile notified nobody.
    d->listen.awaited = false;
    d->listen.probe = 0;
    for (size_t i = 0; i < d->queue_count; i++) {
        d->queues[i]->published = -1;
        queue_kick(d->queues[i]);
    }
}

void listen_down(struct daemon *d)
{
    d->listen.works = false;
    atomic_store(&d->listening, false);
}

static void on_probe(struct daemon *d, const char *payload)
{
    char text[PROBE_SIZE];
    write_probe(d, text);
    if (strcmp(payload, text) != 0)
        return;
    d->listen.awaited = false;
    if (!d->listen.works || d->listen.said)
        set_works(d, true);
}

void listen_notified(struct daemon *d, const char *channel, const char *payload)
{
    struct queue *q;
    if (strcmp(channel, "worker_tasks") == 0) {
        q = daemon_find_queue(d, payload);
        if (q != NULL) {
            q->told = true;
            queue_kick(q);
        }
    } else if (strcmp(channel, "worker_queue_change") == 0) {
        control_read_registry(d);
    } else if (strcmp(channel, "worker_task_changed") == 0) {
        if (strcmp(payload, "cancel") == 0)
            control_read_cancels(d);
    } else if (strcmp(channel, "worker_status") == 0) {
        on_probe(d, payload);
    }
}

// ------------------------------------------------------------------- publish

// As producers read them: see worker.publish_loop().
static const int codes[] = {
    [QUEUE_RUNNING] = 0,
    [QUEUE_IDLE] = 1,
    [QUEUE_SCHEDULED] = 2,
    [QUEUE_SATURATED] = 3,
};

static void on_published(struct conn *conn, PGresult *res, const struct err *e, void *arg)
{
    (void)conn;
    (void)res;
    struct queue *q = arg;
    if (e != NULL) {
        log_debug(q->d->log, "cannot publish the state of a queue",
                  LOG_S("queue", q->name), LOG_S("error", e->msg));
        q->published = -1;
    }
    queue_published(q);
}

void listen_publish(struct queue *q, enum queue_state state)
{
    struct daemon *d = q->d;
    struct conn_params p = CONN_PARAMS_INIT;
    struct err e = ERR_INIT;
    q->published = (int)state;
    conn_params_add_int64(&p, q->id);
    conn_params_add_int64(&p, codes[state]);
    conn_request(
        pump_conn(d),
        &(struct conn_request){
            .query = "publish_loop", .params = &p, .done = on_published, .arg = q},
        &e);
}
