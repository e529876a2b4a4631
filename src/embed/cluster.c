// SPDX-License-Identifier: Apache-2.0
//
// The private cluster as a whole: the order of its steps, and its states. The
// steps themselves are in dir.c, bindir.c, leftover.c, initdb.c and server.c.

#include "embed/cluster.h"

#include <libpq-fe.h>
#include <pwd.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

#include "core/asset.h"
#include "core/machine.h"
#include "embed/bindir.h"
#include "embed/child.h"
#include "embed/dir.h"
#include "embed/initdb.h"
#include "embed/leftover.h"
#include "embed/owner.h"
#include "embed/place.h"
#include "embed/server.h"

#define DEFAULT_START_MS 60000
#define DEFAULT_STOP_MS  60000
#define LEFTOVER_FAST_MS 30000
#define LEFTOVER_QUIT_MS 2000
#define LEFTOVER_KILL_MS 5000

enum cluster_state {
    CLUSTER_STOPPED,
    CLUSTER_PREPARING, // old processes go, data comes
    CLUSTER_STARTING,  // the postmaster runs and does not answer yet
    CLUSTER_RUNNING,
    CLUSTER_STOPPING,
};

static const char *const state_names[] = {
    [CLUSTER_STOPPED] = "stopped",   [CLUSTER_PREPARING] = "preparing",
    [CLUSTER_STARTING] = "starting", [CLUSTER_RUNNING] = "running",
    [CLUSTER_STOPPING] = "stopping",
};

static const struct machine_transition transitions[] = {
    {CLUSTER_STOPPED, CLUSTER_PREPARING, "start"},
    {CLUSTER_PREPARING, CLUSTER_STOPPED, "preparation failed"},
    {CLUSTER_PREPARING, CLUSTER_STARTING, "postmaster spawned"},
    {CLUSTER_STARTING, CLUSTER_RUNNING, "it answers and has its database"},
    {CLUSTER_STARTING, CLUSTER_STOPPING, "it did not get that far"},
    {CLUSTER_RUNNING, CLUSTER_STOPPING, "stop"},
    {CLUSTER_RUNNING, CLUSTER_STOPPED, "the postmaster died"},
    {CLUSTER_STOPPING, CLUSTER_STOPPED, "the postmaster has ended"},
};

static const struct machine machine = {
    .name = "cluster",
    .states = state_names,
    .state_count = sizeof(state_names) / sizeof(state_names[0]),
    .transitions = transitions,
    .transition_count = sizeof(transitions) / sizeof(transitions[0]),
};

struct cluster {
    enum cluster_state state;
    struct owner owner;
    struct dir dir;
    struct server server;
    struct child_context context; // borrows from the fields here
    char *data;
    char *bindir;
    char *log_file;
    char *socket_dir; // while it runs
    int start_timeout_ms;
    int stop_timeout_ms;
};

static void cluster_become(struct cluster *c, enum cluster_state to)
{
    const char *why = machine_step(&machine, (int)c->state, (int)to);
    log_debug(c->context.log, "cluster", LOG_S("from", state_names[c->state]),
              LOG_S("to", state_names[to]), LOG_S("why", why));
    c->state = to;
}

const char *cluster_dir(const struct cluster *c)
{
    return c->dir.path;
}

const char *cluster_log_file(const struct cluster *c)
{
    return c->log_file;
}

pid_t cluster_pid(const struct cluster *c)
{
    return c->server.spawned ? c->server.proc.pid : 0;
}

// Whether there is data, and of which version (0: none).
static bool find_data(struct cluster *c, int *major, struct err *e)
{
    struct err why = ERR_INIT;
    *major = 0;
    if (!owner_enter(&c->owner, e))
        return false;
    bool found = bindir_data_major(c->data, major, &why);
    owner_leave(&c->owner);
    if (found || why.code == ERR_NONE)
        return true;
    if (e != NULL)
        *e = why;
    return false;
}

static bool find_binaries(struct cluster *c, const char *given, struct err *e)
{
    struct bindir_search search = {.given = given != NULL ? given : bindir_setting()};
    struct buf found = BUF_INIT;
    bool ok = find_data(c, &search.major, e) && bindir_find_server(&search, &found, e);
    if (ok)
        c->bindir = buf_detach(&found);
    else if (search.major != 0)
        err_wrap(e, "%s", c->dir.path);
    buf_clear(&found);
    return ok;
}

struct cluster *cluster_open(const struct cluster_options *opt, struct err *e)
{
    struct cluster *c = xcalloc(1, sizeof(*c));
    struct buf dir = BUF_INIT;
    bool ok = false;

    c->dir.lock_fd = -1;
    c->start_timeout_ms =
        opt->start_timeout_ms ? opt->start_timeout_ms : DEFAULT_START_MS;
    c->stop_timeout_ms = opt->stop_timeout_ms ? opt->stop_timeout_ms : DEFAULT_STOP_MS;
    child_clean_own_environment();
    umask(077);
    if (opt->dir != NULL)
        buf_adds(&dir, opt->dir);
    else if (!cluster_default_dir(&dir, e))
        goto out;
    if (!owner_resolve(&c->owner, opt->user, buf_str(&dir), e) ||
        !dir_take(&c->dir, buf_str(&dir), &c->owner, e))
        goto out;
    c->data = place_path(c->dir.path, "data");
    c->log_file = place_path(c->dir.path, "server.log");
    if (!find_binaries(c, opt->bindir, e))
        goto out;
    c->context = (struct child_context){
        .owner = &c->owner,
        .dir = c->dir.path,
        .data = c->data,
        .bindir = c->bindir,
        .log = opt->log,
        .interrupted = opt->interrupted,
        .interrupted_arg = opt->interrupted_arg,
    };
    ok = true;
out:
    buf_clear(&dir);
    if (!ok) {
        cluster_free(c);
        c = NULL;
    }
    return c;
}

static bool end_leftovers(struct cluster *c, int quit_ms, bool may_interrupt,
                          struct err *e)
{
    const struct leftover_wait wait = {
        .fast_ms = LEFTOVER_FAST_MS,
        .quit_ms = quit_ms,
        .kill_ms = LEFTOVER_KILL_MS,
        .interrupted = may_interrupt ? c->context.interrupted : NULL,
        .arg = c->context.interrupted_arg,
    };
    // As the owner: without CAP_SYS_PTRACE, as in most containers, root cannot
    // see what processes of others are.
    if (!owner_enter(&c->owner, e))
        return false;
    bool ok = leftover_end(c->data, &wait, c->context.log, e);
    owner_leave(&c->owner);
    return ok;
}

// The steps in the directory, with the rights of its owner.
static bool prepare_files(struct cluster *c, const char *self, struct err *e)
{
    struct buf sock = BUF_INIT;
    bool ok = place_make_socket_dir(c->dir.path, &sock, e) &&
              leftover_remove_files(c->data, buf_str(&sock), c->context.log, e) &&
              initdb_write_ident(c->data, c->owner.name, self, e);
    if (ok) {
        free(c->socket_dir);
        c->socket_dir = buf_detach(&sock);
    }
    buf_clear(&sock);
    return ok;
}

static bool prepare(struct cluster *c, struct err *e)
{
    int major = 0;
    const struct passwd *pw = getpwuid(geteuid());
    char *self = xstrdup(pw != NULL ? pw->pw_name : "root");
    bool ok = end_leftovers(c, LEFTOVER_QUIT_MS, true, e) && find_data(c, &major, e) &&
              (major != 0 || initdb_run(&c->context, e)) && owner_enter(&c->owner, e);
    if (ok) {
        ok = prepare_files(c, self, e);
        owner_leave(&c->owner);
    }
    free(self);
    return ok;
}

static PGresult *run_query(PGconn *conn, const char *name)
{
    const struct asset *sql = asset_find(name);
    if (sql == NULL)
        BUG("%s is not in the binary", name);
    return PQexec(conn, sql->data);
}

// initdb makes none of our own; it is made here so that a start which was cut
// short before is completed by the next.
static bool ensure_database(struct cluster *c, const char *conninfo, struct err *e)
{
    PGconn *conn = PQconnectdb(conninfo);
    PGresult *res = NULL;
    bool ok = PQstatus(conn) == CONNECTION_OK;
    if (ok) {
        res = run_query(conn, "sql/queries/cluster_database_exists.sql");
        ok = PQresultStatus(res) == PGRES_TUPLES_OK && PQntuples(res) == 1;
    }
    if (ok && strcmp(PQgetvalue(res, 0, 0), "t") != 0) {
        PQclear(res);
        res = run_query(conn, "sql/queries/cluster_create_database.sql");
        ok = PQresultStatus(res) == PGRES_COMMAND_OK;
    }
    if (!ok) {
        struct buf reason = BUF_INIT;
        child_add_reason(PQerrorMessage(conn), true, &reason);
        err_set(e, "cannot prepare the database: %s", buf_str(&reason));
        err_hint(e, "see %s", c->log_file);
        child_hint_for(buf_str(&reason), c->dir.path, e);
        buf_clear(&reason);
    }
    PQclear(res);
    PQfinish(conn);
    return ok;
}

static bool bring_up(struct cluster *c, struct err *e)
{
    struct buf info = BUF_INIT;
    bool ok = place_conninfo(c->dir.path, "postgres", &info, e);
    if (ok) {
        place_add_conninfo(&info, "connect_timeout", "10");
        ok = server_wait_ready(&c->server, &c->context, info.data, c->log_file,
                               c->start_timeout_ms, e) &&
             ensure_database(c, info.data, e);
    }
    buf_clear(&info);
    return ok;
}

bool cluster_start(struct cluster *c, struct err *e)
{
    cluster_become(c, CLUSTER_PREPARING);
    if (!prepare(c, e) ||
        !server_spawn(&c->server, &c->context, c->socket_dir, c->log_file, e)) {
        cluster_become(c, CLUSTER_STOPPED);
        return err_wrap(e, "cannot start the private cluster");
    }
    cluster_become(c, CLUSTER_STARTING);
    if (!bring_up(c, e)) {
        cluster_stop(c, NULL, NULL, NULL);
        return err_wrap(e, "cannot start the private cluster");
    }
    cluster_become(c, CLUSTER_RUNNING);
    return true;
}

bool cluster_check(struct cluster *c, struct err *e)
{
    if (c->state != CLUSTER_RUNNING)
        return err_set(e, "the private cluster does not run");
    if (!server_ended(&c->server))
        return true;
    server_report_end(&c->server, e);
    err_hint(e, "see %s", c->log_file);
    server_stop(&c->server, 0, NULL, NULL);
    // Backends of a killed postmaster would go on with what they were doing.
    end_leftovers(c, LEFTOVER_QUIT_MS, false, NULL);
    cluster_become(c, CLUSTER_STOPPED);
    return false;
}

bool cluster_stop(struct cluster *c, bool (*hurry)(void *arg), void *arg, struct err *e)
{
    bool clean;
    struct err why = ERR_INIT;
    if (c->state != CLUSTER_RUNNING && c->state != CLUSTER_STARTING)
        return true;
    cluster_become(c, CLUSTER_STOPPING);
    clean = server_stop(&c->server, c->stop_timeout_ms, hurry, arg);
    // Those that are left after an immediate shutdown have had their time.
    if (!end_leftovers(c, clean ? LEFTOVER_QUIT_MS : 0, false, &why))
        clean = false;
    cluster_become(c, CLUSTER_STOPPED);
    if (clean)
        return true;
    if (why.code == ERR_NONE)
        err_set(&why,
                "the server had to be ended at once and will recover at its next start");
    if (e != NULL)
        *e = why;
    return false;
}

void cluster_free(struct cluster *c)
{
    int major = 0;
    if (c == NULL)
        return;
    cluster_stop(c, NULL, NULL, NULL);
    // What cannot be looked at is not to be removed either.
    bool keep = c->data != NULL && (!find_data(c, &major, NULL) || major != 0);
    dir_release(&c->dir, keep);
    owner_clear(&c->owner);
    free(c->data);
    free(c->bindir);
    free(c->log_file);
    free(c->socket_dir);
    free(c);
}
