// SPDX-License-Identifier: Apache-2.0
//
// `pgkin start`: the first run. A PostgreSQL of our own with the schema in it and
// a worker, in the foreground, until somebody stops it. Where a database is
// given, that one is used instead.
//
// The worker has a thread of its own: it stops first, while the server is there.

#include <errno.h>
#include <event2/event.h>
#include <libpq-fe.h>
#include <pthread.h>
#include <signal.h>
#include <stdio.h>
#include <string.h>
#include <sys/eventfd.h>
#include <unistd.h>

#include "cli/cli.h"
#include "cli/db.h"
#include "cli/options.h"
#include "core/asset.h"
#include "core/conf.h"
#include "core/conn.h"
#include "core/loop.h"
#include "core/sdnotify.h"
#include "daemon/daemon.h"
#include "embed/cluster.h"
#include "lib/migrate.h"

extern const struct cli_command cmd_start;

struct start_values {
    const char *data;
    const char *bindir;
    const char *listen;
    bool demo;
};

static const struct cli_option start_options[] = {
    {"data", 0, CLI_STRING, offsetof(struct start_values, data), "DIR",
     "where the cluster is, or is made (PGKIN_DATA)"},
    {"bindir", 0, CLI_STRING, offsetof(struct start_values, bindir), "DIR",
     "where postgres and initdb are (PGKIN_BINDIR)"},
    {"listen", 0, CLI_STRING, offsetof(struct start_values, listen), "ADDR:PORT",
     "answer /healthz and /readyz there"},
    {"demo", 0, CLI_FLAG, offsetof(struct start_values, demo), NULL,
     "with something to do: a small shop with an order every few seconds"},
    {0},
};

#define SIGNAL_COUNT 4

struct start {
    struct event_base *base;
    struct event *signals[SIGNAL_COUNT];
    struct cluster *cluster; // NULL: the database was given
    struct buf conninfo;
    struct log *log;
    int stops; // how often we were asked to stop

    struct daemon *daemon;
    pthread_t thread;
    int ended_fd; // an eventfd: the worker's thread says that it ends
    struct event *ended;
    bool worked;
    struct err error; // of the worker
};

static void on_stop(evutil_socket_t signo, short what, void *arg)
{
    struct start *s = arg;
    (void)what;
    s->stops++;
    log_info(s->log, "stopping", LOG_S("signal", strsignal((int)signo)));
    if (s->daemon != NULL)
        daemon_stop(s->daemon);
    event_base_loopbreak(s->base);
}

static void on_child(evutil_socket_t signo, short what, void *arg)
{
    struct start *s = arg;
    (void)signo;
    (void)what;
    event_base_loopbreak(s->base);
}

static bool watch_signals(struct start *s, struct err *e)
{
    static const struct {
        int signo;
        event_callback_fn fn;
    } rows[SIGNAL_COUNT] = {
        {SIGINT, on_stop},
        {SIGTERM, on_stop},
        {SIGHUP, on_stop},
        {SIGCHLD, on_child},
    };
    s->base = event_base_new();
    if (s->base == NULL)
        return err_set(e, "cannot make an event loop");
    for (size_t i = 0; i < SIGNAL_COUNT; i++) {
        s->signals[i] =
            loop_event_new(s->base, rows[i].signo, EV_SIGNAL | EV_PERSIST, rows[i].fn, s);
        loop_event_add(s->signals[i], NULL);
    }
    return true;
}

// While the cluster waits for something, nobody runs the loop: let it see the
// signals that have come.
static void look_for_signals(struct start *s)
{
    event_base_loop(s->base, EVLOOP_NONBLOCK);
}

static bool is_interrupted(void *arg)
{
    struct start *s = arg;
    look_for_signals(s);
    return s->stops > 0;
}

static bool is_in_a_hurry(void *arg)
{
    struct start *s = arg;
    look_for_signals(s);
    return s->stops > 1;
}

static void ignore_notice(void *arg, const char *message)
{
    (void)arg;
    (void)message;
}

// Whether to run on the private cluster, or on a database that was given.
static bool check_target(const struct start_values *v, const struct cli_common *common,
                         bool *private, struct err *e)
{
    bool flag = conf_get_source(common->conf, "database.url") == CONF_FROM_FLAG;
    if (v->data != NULL && flag)
        return err_usage(e, "--data and --database cannot be used together");
    *private = v->data != NULL || db_find_source(common->database) == DB_PRIVATE;
    return true;
}

static bool install_demo(PGconn *conn, struct err *e)
{
    const struct asset *demo = asset_find("sql/queries/demo.sql");
    if (demo == NULL)
        BUG("the demonstration is missing");
    PQsetNoticeProcessor(conn, ignore_notice, NULL);
    PGresult *res = PQexec(conn, demo->data); // one transaction
    bool ok = conn_result_check(res, e);
    PQclear(res);
    return ok || err_wrap(e, "cannot install the demonstration");
}

static bool install_schema(struct start *s, bool demo, int *server_version, struct err *e)
{
    struct migrate_options opt = {0};
    struct migrate_report rep = MIGRATE_REPORT_INIT;
    PGconn *conn = db_open(buf_str(&s->conninfo), e);
    bool ok = conn != NULL;
    if (ok) {
        *server_version = PQserverVersion(conn);
        ok = migrate_run(conn, &opt, &rep, e);
    }
    if (ok && demo)
        ok = install_demo(conn, e);
    for (size_t i = 0; i < rep.warning_count; i++)
        log_warn(s->log, rep.warnings[i].text, LOG_S("hint", rep.warnings[i].hint));
    if (ok && (rep.migration_count > 0 || rep.function_count > 0))
        log_info(s->log, "schema installed", LOG_I("from", rep.from_version),
                 LOG_I("to", rep.to_version));
    if (conn != NULL)
        PQfinish(conn);
    migrate_report_clear(&rep);
    return ok || err_wrap(e, "cannot install the schema");
}

// A word for the shell.
static void add_quoted(struct buf *out, const char *s)
{
    if (strspn(
            s,
            "abcdefghijklmnopqrstuvwxyzABCDEFGHIJKLMNOPQRSTUVWXYZ0123456789/._-+,:@%") ==
        strlen(s)) {
        buf_adds(out, s);
        return;
    }
    buf_addc(out, '\'');
    for (; *s != '\0'; s++) {
        if (*s == '\'')
            buf_adds(out, "'\\'");
        buf_addc(out, *s);
    }
    buf_addc(out, '\'');
}

static bool print_welcome(struct start *s, bool chosen, int server_version, struct err *e)
{
    struct buf url = BUF_INIT;
    struct buf command = BUF_INIT;
    const char *dir = cluster_dir(s->cluster);
    bool ok = cluster_url(dir, &url, e);
    if (ok) {
        if (chosen) {
            buf_adds(&command, "PGKIN_DATA=");
            add_quoted(&command, dir);
            buf_addc(&command, ' ');
        }
        buf_adds(&command, "pgkin psql");
        printf("pgkin runs on its own PostgreSQL %d.\n\n", server_version / 10000);
        printf("  data          %s\n", dir);
        printf("  look inside   %s\n", command.data);
        printf("  DATABASE_URL  %s\n\n", url.data);
        printf("Ctrl-C stops it.\n");
        fflush(stdout);
    }
    buf_clear(&command);
    buf_clear(&url);
    return ok;
}

// -------------------------------------------------------------------- worker

static void *run_daemon(void *arg)
{
    struct start *s = arg;
    uint64_t one = 1;
    s->worked = daemon_run(s->daemon, &s->error);
    ssize_t n = write(s->ended_fd, &one, sizeof one);
    (void)n;
    return NULL;
}

static void on_ended(evutil_socket_t fd, short what, void *arg)
{
    (void)fd;
    (void)what;
    struct start *s = arg;
    event_base_loopbreak(s->base);
}

static bool start_worker(struct start *s, const struct start_values *v,
                         const struct cli_common *common, struct err *e)
{
    const struct daemon_options o = {
        .conninfo = buf_str(&s->conninfo),
        .grace_ms = DAEMON_GRACE_MS,
        .leaves_process = true,
        .listen = v->listen,
        .log = &common->log,
        .conf = common->conf,
    };
    s->daemon = daemon_new(&o, e);
    if (s->daemon == NULL)
        return false;
    s->ended_fd = eventfd(0, EFD_CLOEXEC);
    if (s->ended_fd < 0)
        return err_errno(e, errno, "cannot make an eventfd");
    s->ended = loop_event_new(s->base, s->ended_fd, EV_READ, on_ended, s);
    loop_event_add(s->ended, NULL);
    int code = pthread_create(&s->thread, NULL, run_daemon, s);
    if (code == 0)
        return true;
    loop_event_clear(&s->ended);
    close(s->ended_fd);
    return err_errno(e, code, "cannot start a thread");
}

// Waits for the worker; signals that come meanwhile hurry it.
static bool stop_worker(struct start *s, struct err *e)
{
    struct daemon_status status;
    if (s->ended == NULL)
        return true;
    if (s->stops == 0)
        daemon_stop(s->daemon);
    daemon_get_status(s->daemon, &status);
    while (status.state != DAEMON_STOPPED) {
        event_base_loop(s->base, EVLOOP_ONCE);
        daemon_get_status(s->daemon, &status);
    }
    pthread_join(s->thread, NULL);
    loop_event_clear(&s->ended);
    close(s->ended_fd);
    *e = s->error;
    return s->worked;
}

// ----------------------------------------------------------------------- run

static bool run_until_stopped(struct start *s, struct err *e)
{
    struct daemon_status status = {0};
    while (s->stops == 0 && status.state != DAEMON_STOPPED) {
        if (s->cluster != NULL && !cluster_check(s->cluster, e))
            return err_wrap(e, "the private cluster has ended");
        event_base_dispatch(s->base);
        daemon_get_status(s->daemon, &status);
    }
    return true;
}

static bool run_on_database(struct start *s, const struct start_values *v,
                            const struct cli_common *common, struct err *e)
{
    int server_version = 0;
    struct err bad = ERR_INIT;
    if (!install_schema(s, v->demo, &server_version, e) ||
        (s->cluster != NULL && !print_welcome(s, v->data != NULL, server_version, e)) ||
        !start_worker(s, v, common, e))
        return false;
    sdnotify_send("READY=1\nSTATUS=running");
    bool ok = run_until_stopped(s, e);
    sdnotify_send("STOPPING=1");
    bool stopped = stop_worker(s, &bad);
    if (ok && !stopped)
        *e = bad;
    return ok && stopped;
}

// True also when asked to stop before it was up: that is no failure.
static bool run_cluster(struct start *s, const struct cluster_options *opt,
                        const struct start_values *v, const struct cli_common *common,
                        struct err *e)
{
    struct err bad = ERR_INIT;
    s->cluster = cluster_open(opt, e);
    if (s->cluster == NULL)
        return false;
    bool ok = cluster_start(s->cluster, e) &&
              cluster_conninfo(cluster_dir(s->cluster), &s->conninfo, e) &&
              run_on_database(s, v, common, e);
    if (!ok && s->daemon == NULL) {
        if (!is_interrupted(s))
            return false;
        err_clear(e);
        return true;
    }
    if (!ok && s->stops == 0)
        return false;
    // What the worker left unfinished is the news, if any.
    bool stopped = cluster_stop(s->cluster, is_in_a_hurry, s, &bad);
    if (ok && !stopped)
        *e = bad;
    return ok && stopped;
}

static bool run_start(int argc, char **argv, struct err *e)
{
    struct start_values v = {0};
    struct cli_common common;
    struct start s = {0};
    int first;
    if (!cli_parse(&cmd_start, argc, argv, &v, &common, &first, e))
        return false;
    s.log = &common.log;
    const struct cluster_options opt = {
        .dir = v.data != NULL ? v.data : common.data_dir,
        .bindir =
            v.bindir != NULL ? v.bindir : conf_get_string(common.conf, "server.bindir"),
        .user = conf_get_string(common.conf, "server.user"),
        .log = &common.log,
        .interrupted = is_interrupted,
        .interrupted_arg = &s,
    };
    bool private = false;
    bool ok = check_target(&v, &common, &private, e) && watch_signals(&s, e);
    if (ok && private)
        ok = run_cluster(&s, &opt, &v, &common, e);
    else if (ok)
        ok = db_conninfo_in(common.database, common.data_dir, &s.conninfo, e) &&
             run_on_database(&s, &v, &common, e);
    daemon_free(s.daemon);
    cluster_free(s.cluster);
    buf_clear(&s.conninfo);
    for (size_t i = 0; i < SIGNAL_COUNT; i++)
        loop_event_clear(&s.signals[i]);
    if (s.base != NULL)
        event_base_free(s.base);
    cli_common_clear(&common);
    return ok;
}

const struct cli_command cmd_start = {
    .name = "start",
    .args = "[--data DIR] [--bindir DIR] [--listen ADDR:PORT] [--demo]",
    .summary = "run a private PostgreSQL with the schema in it, and a worker",
    .help =
        "Makes the cluster when there is none, brings its schema up to date and stays "
        "in\n"
        "the foreground. It listens on a unix socket only; its owner, and root, can\n"
        "connect. Started as root, the server runs as PGKIN_SERVER_USER, else as the\n"
        "owner of DIR, else as postgres. The default DIR is /var/lib/pgkin for root,\n"
        "else ~/.local/share/pgkin.\n"
        "\n"
        "SIGINT or SIGTERM stops it; a second one does not wait for clients to end.\n"
        "\n"
        "Examples:\n"
        "  pgkin start\n"
        "  pgkin start --data /srv/pgkin\n",
    .options = start_options,
    .max_operands = 0,
    .run = run_start,
};
