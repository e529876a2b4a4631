// SPDX-License-Identifier: Apache-2.0
//
// `pgkin work`: the worker, in the foreground.

#include <signal.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "cli/cli.h"
#include "cli/db.h"
#include "cli/options.h"
#include "core/conf.h"
#include "core/sdnotify.h"
#include "daemon/daemon.h"
#include "daemon/queue_option.h"

extern const struct cli_command cmd_work;

struct values {
    struct cli_list queues;
    bool exclusive;
    bool stop_when_idle;
    bool poll_only;
    int grace;
    const char *listen;
    const char *name;
};

static const struct cli_option options[] = {
    {"queue", 'q', CLI_LIST, offsetof(struct values, queues), "Q[:N]",
     "serve this queue only, with N at once; may be repeated"},
    {"exclusive", 0, CLI_FLAG, offsetof(struct values, exclusive), NULL,
     "refuse to run beside another exclusive worker"},
    {"stop-when-idle", 0, CLI_FLAG, offsetof(struct values, stop_when_idle), NULL,
     "stop when nothing that is due is left"},
    {"poll-only", 0, CLI_FLAG, offsetof(struct values, poll_only), NULL,
     "use no notifications and no prepared statements"},
    {"grace", 0, CLI_INT, offsetof(struct values, grace), "S",
     "after a signal, wait so many seconds for work to finish (30)"},
    {"listen", 0, CLI_STRING, offsetof(struct values, listen), "ADDR:PORT",
     "answer /healthz and /readyz there"},
    {"name", 0, CLI_STRING, offsetof(struct values, name), "NAME",
     "what the worker is called; the host's name"},
    {0},
};

static struct daemon *signaled; // a signal handler has no other way to find it

static void on_stop_signal(int signo)
{
    (void)signo;
    daemon_stop(signaled);
}

static void on_reload_signal(int signo)
{
    (void)signo;
    daemon_reload(signaled);
}

static void watch_signals(struct daemon *d)
{
    struct sigaction stop = {.sa_handler = on_stop_signal, .sa_flags = SA_RESTART};
    struct sigaction reload = {.sa_handler = on_reload_signal, .sa_flags = SA_RESTART};
    struct sigaction ignore = {.sa_handler = SIG_IGN};
    signaled = d;
    sigaction(SIGTERM, &stop, NULL);
    sigaction(SIGINT, &stop, NULL);
    sigaction(SIGHUP, &reload, NULL);
    sigaction(SIGPIPE, &ignore, NULL);
}

// The worker is about to go: a signal has nobody to tell any more.
static void ignore_signals(void)
{
    static const int signals[] = {SIGTERM, SIGINT, SIGHUP};
    struct sigaction ignore = {.sa_handler = SIG_IGN};
    for (size_t i = 0; i < sizeof signals / sizeof signals[0]; i++)
        sigaction(signals[i], &ignore, NULL);
}

static void on_ready(void *arg)
{
    (void)arg;
    sdnotify_send("READY=1\nSTATUS=working");
}

static void on_tick(void *arg)
{
    (void)arg;
    sdnotify_send("WATCHDOG=1");
}

static bool run_work(int argc, char **argv, struct err *e)
{
    struct values v = {.grace = -1};
    struct cli_common common;
    struct queue_options queues = {0};
    struct buf info = BUF_INIT;
    struct daemon *d = NULL;
    int first;
    if (!cli_parse(&cmd_work, argc, argv, &v, &common, &first, e))
        return false;
    bool ok = true;
    for (size_t i = 0; ok && i < v.queues.count; i++)
        ok = queue_options_add(&queues, v.queues.items[i], e);
    ok = ok && db_conninfo_in(common.database, common.data_dir, &info, e);
    if (ok) {
        const struct daemon_options o = {
            .conninfo = buf_str(&info),
            .name = v.name,
            .queues = queues.list,
            .queue_count = queues.count,
            .exclusive = v.exclusive,
            .stop_when_idle = v.stop_when_idle,
            .poll_only = v.poll_only,
            .leaves_process = true,
            .grace_ms = v.grace >= 0 ? v.grace * (int64_t)1000 : DAEMON_GRACE_MS,
            .listen = v.listen,
            .log = &common.log,
            .conf = common.conf,
            .on_ready = on_ready,
            .on_tick = on_tick,
        };
        d = daemon_new(&o, e);
        ok = d != NULL;
    }
    if (ok) {
        watch_signals(d);
        ok = daemon_run(d, e);
        sdnotify_send("STOPPING=1");
        ignore_signals();
    }
    daemon_free(d);
    queue_options_clear(&queues);
    buf_clear(&info);
    cli_common_clear(&common);
    return ok;
}

const struct cli_command cmd_work = {
    .name = "work",
    .args =
        "[--queue Q[:N]]... [--exclusive] [--stop-when-idle] [--poll-only] [--grace S] "
        "[--listen ADDR:PORT]",
    .summary = "run tasks",
    .help =
        "Serves all queues, or those named. N is how many connections run SQL handlers,\n"
        "and how many other handlers are in flight at most; without it, the queue's\n"
        "default_concurrency. Any number of workers may serve the same queues.\n"
        "\n"
        "SIGTERM or SIGINT: finishes what has begun, then exits 0. A second one, or the\n"
        "end of the grace period, hands back what is not finished and exits 1. SIGHUP\n"
        "reads the registry again.\n"
        "\n"
        "Examples:\n"
        "  pgkin work\n"
        "  pgkin work --queue default:8 --queue reports:2\n"
        "  pgkin work --stop-when-idle\n",
    .options = options,
    .max_operands = 0,
    .run = run_work,
};
