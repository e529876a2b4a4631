// SPDX-License-Identifier: Apache-2.0
//
// pgkin_worker: the worker (daemon/daemon.h) for programs that link with us.

#include <stdatomic.h>
#include <stdlib.h>
#include <string.h>

#include "core/buf.h"
#include "core/conf.h"
#include "core/log.h"
#include "daemon/daemon.h"
#include "daemon/queue_option.h"
#include "daemon/run_native.h"
#include "lib/public.h"

struct pgkin_worker {
    struct daemon *daemon; // made by run
    _Atomic(struct daemon *) running;
    atomic_int stops; // asked for before it ran
    struct daemon_options opt;
    struct queue_options queues;
    struct native_handler *natives;
    struct log log;
    struct conf conf;
    void (*log_line)(void *arg, enum pgkin_log_level level, const char *line);
    void *log_arg;
};

static void write_log(void *arg, enum log_level level, const char *line, size_t len)
{
    pgkin_worker *w = arg;
    (void)len;
    if (w->log_line != NULL)
        w->log_line(w->log_arg, (enum pgkin_log_level)(level - LOG_DEBUG), line);
}

static char *copy(const char *s)
{
    return s != NULL ? xstrdup(s) : NULL;
}

pgkin_worker *pgkin_worker_new(const struct pgkin_worker_options *o,
                               struct pgkin_error *out)
{
    struct err e = ERR_INIT;
    pgkin_worker *w = xcalloc(1, sizeof *w);
    w->log_line = o->log;
    w->log_arg = o->log_arg;
    w->log = (struct log){.level = (enum log_level)(LOG_DEBUG + (int)o->log_level),
                          .sink = write_log,
                          .sink_arg = w};
    conf_init(&w->conf, conf_settings, conf_setting_count);
    w->opt = (struct daemon_options){
        .conninfo = o->conninfo != NULL ? copy(o->conninfo) : xstrdup(""),
        .name = copy(o->name),
        .exclusive = o->exclusive,
        .stop_when_idle = o->stop_when_idle,
        .poll_only = o->poll_only,
        .grace_ms = o->grace_ms > 0 ? o->grace_ms : DAEMON_GRACE_MS,
        .listen = copy(o->listen),
        .log = &w->log,
        .conf = &w->conf,
    };
    bool ok = conf_load_env(&w->conf, &e);
    for (size_t i = 0; ok && o->queues != NULL && o->queues[i] != NULL; i++)
        ok = queue_options_add(&w->queues, o->queues[i], &e);
    if (ok)
        return w;
    public_error(out, &e);
    pgkin_worker_free(w);
    return NULL;
}

void pgkin_worker_free(pgkin_worker *w)
{
    if (w == NULL)
        return;
    daemon_free(w->daemon);
    queue_options_clear(&w->queues);
    for (size_t i = 0; i < w->opt.native_count; i++)
        free((char *)w->natives[i].name);
    free(w->natives);
    free((char *)w->opt.conninfo);
    free((char *)w->opt.name);
    free((char *)w->opt.listen);
    conf_clear(&w->conf);
    free(w);
}

bool pgkin_worker_handle(pgkin_worker *w, const char *name, pgkin_handler *fn, void *arg,
                         struct pgkin_error *out)
{
    struct err e = ERR_INIT;
    if (w->daemon != NULL) {
        err_set(&e, "a handler is named before the worker runs");
        return public_error(out, &e);
    }
    for (size_t i = 0; i < w->opt.native_count; i++)
        if (strcmp(w->natives[i].name, name) == 0) {
            err_set(&e, "handler \"%s\" is there already", name);
            return public_error(out, &e);
        }
    w->natives = xrealloc(w->natives, (w->opt.native_count + 1) * sizeof w->natives[0]);
    w->natives[w->opt.native_count++] =
        (struct native_handler){.name = xstrdup(name), .fn = fn, .arg = arg};
    return true;
}

bool pgkin_worker_run(pgkin_worker *w, struct pgkin_error *out)
{
    struct err e = ERR_INIT;
    if (w->daemon != NULL) {
        err_set(&e, "a worker runs once");
        return public_error(out, &e);
    }
    w->opt.queues = w->queues.list;
    w->opt.queue_count = w->queues.count;
    w->opt.natives = w->natives;
    w->daemon = daemon_new(&w->opt, &e);
    if (w->daemon == NULL)
        return public_error(out, &e);
    atomic_store(&w->running, w->daemon);
    for (int i = atomic_exchange(&w->stops, 0); i > 0; i--)
        daemon_stop(w->daemon);
    return daemon_run(w->daemon, &e) || public_error(out, &e);
}

void pgkin_worker_stop(pgkin_worker *w)
{
    // Counted first: a worker that is just beginning finds the count.
    atomic_fetch_add(&w->stops, 1);
    struct daemon *d = atomic_load(&w->running);
    if (d != NULL && atomic_exchange(&w->stops, 0) > 0)
        daemon_stop(d);
}

void pgkin_worker_get_status(pgkin_worker *w, struct pgkin_worker_status *out)
{
    struct daemon *d = atomic_load(&w->running);
    struct daemon_status s = {.state = DAEMON_STARTING};
    if (d != NULL)
        daemon_get_status(d, &s);
    *out = (struct pgkin_worker_status){
        .state = machine_state_name(daemon_machine(), (int)s.state),
        .worker_id = s.worker_id,
        .connected = s.connected,
        .listening = s.listening,
        .running = s.running,
        .completed = s.completed,
        .failed = s.failed,
    };
}
