// SPDX-License-Identifier: Apache-2.0
//
// `pgkin start`: the first run. A PostgreSQL of our own with the schema in it,
// in the foreground, until somebody stops it.

#include <event2/event.h>
#include <libpq-fe.h>
#include <signal.h>
#include <stdio.h>
#include <string.h>

#include "cli/cli.h"
#include "cli/db.h"
#include "cli/options.h"
#include "core/conf.h"
#include "core/loop.h"
#include "core/sdnotify.h"
#include "embed/cluster.h"
#include "lib/migrate.h"

extern const struct cli_command cmd_start;

struct start_values {
    const char *data;
    const char *bindir;
};

static const struct cli_option start_options[] = {
    {"data", 0, CLI_STRING, offsetof(struct start_values, data), "DIR",
     "where the cluster is, or is made (PGKIN_DATA)"},
    {"bindir", 0, CLI_STRING, offsetof(struct start_values, bindir), "DIR",
     "where postgres and initdb are (PGKIN_BINDIR)"},
    {0},
};

#define SIGNAL_COUNT 4

struct start {
    struct event_base *base;
    struct event *signals[SIGNAL_COUNT];
    struct cluster *cluster;
    struct log *log;
    int stops; // how often we were asked to stop
};

static void on_stop(evutil_socket_t signo, short what, void *arg)
{
    struct start *s = arg;
    (void)what;
    s->stops++;
    log_info(s->log, "stopping", LOG_S("signal", strsignal((int)signo)));
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

// A database that was named needs no cluster, and a worker for it is not a
// part of this program yet: say so instead of starting something else.
static bool check_target(const struct start_values *v, const struct cli_common *common,
                         struct err *e)
{
    bool flag = conf_get_source(common->conf, "database.url") == CONF_FROM_FLAG;
    if (v->data != NULL && flag)
        return err_usage(e, "--data and --database cannot be used together");
    if (v->data != NULL || db_find_source(common->database) == DB_PRIVATE)
        return true;
    err_set(e, "a database is given (%s), and start runs only the private cluster",
            flag                       ? "--database"
            : common->database != NULL ? "DATABASE_URL"
                                       : "PG* in the environment");
    return err_hint(e,
                    "install the schema there with: pgkin migrate; or choose the private "
                    "cluster with: pgkin start --data DIR");
}

static bool install_schema(struct start *s, int *server_version, struct err *e)
{
    struct migrate_options opt = {0};
    struct migrate_report rep = MIGRATE_REPORT_INIT;
    struct buf info = BUF_INIT;
    PGconn *conn = NULL;
    bool ok = cluster_conninfo(cluster_dir(s->cluster), &info, e);
    if (ok) {
        conn = db_open(info.data, e);
        ok = conn != NULL;
    }
    if (ok) {
        *server_version = PQserverVersion(conn);
        ok = migrate_run(conn, &opt, &rep, e);
    }
    for (size_t i = 0; i < rep.warning_count; i++)
        log_warn(s->log, rep.warnings[i].text, LOG_S("hint", rep.warnings[i].hint));
    if (ok && (rep.migration_count > 0 || rep.function_count > 0))
        log_info(s->log, "schema installed", LOG_I("from", rep.from_version),
                 LOG_I("to", rep.to_version));
    if (conn != NULL)
        PQfinish(conn);
    migrate_report_clear(&rep);
    buf_clear(&info);
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

static bool run_until_stopped(struct start *s, struct err *e)
{
    while (s->stops == 0) {
        if (!cluster_check(s->cluster, e))
            return err_wrap(e, "the private cluster has ended");
        event_base_dispatch(s->base);
    }
    return true;
}

// True also when asked to stop before it was up: that is no failure.
static bool run_cluster(struct start *s, const struct cluster_options *opt, bool chosen,
                        struct err *e)
{
    int server_version = 0;
    s->cluster = cluster_open(opt, e);
    if (s->cluster == NULL)
        return false;
    if (!cluster_start(s->cluster, e))
        goto failed;
    if (!install_schema(s, &server_version, e) ||
        !print_welcome(s, chosen, server_version, e))
        goto failed;
    sdnotify_send("READY=1\nSTATUS=running");
    if (!run_until_stopped(s, e))
        return false;
    sdnotify_send("STOPPING=1");
    return cluster_stop(s->cluster, is_in_a_hurry, s, e);
failed:
    if (!is_interrupted(s))
        return false;
    err_clear(e);
    return true;
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
    bool ok = check_target(&v, &common, e) && watch_signals(&s, e) &&
              run_cluster(&s, &opt, v.data != NULL, e);
    cluster_free(s.cluster);
    for (size_t i = 0; i < SIGNAL_COUNT; i++)
        loop_event_clear(&s.signals[i]);
    if (s.base != NULL)
        event_base_free(s.base);
    cli_common_clear(&common);
    return ok;
}

const struct cli_command cmd_start = {
    .name = "start",
    .args = "[--data DIR] [--bindir DIR]",
    .summary = "run a private PostgreSQL with the schema in it",
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
