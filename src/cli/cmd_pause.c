// SPDX-License-Identifier: Apache-2.0
//
// `pgkin pause` and `pgkin resume`.

#include <stdio.h>

#include "cli/cli.h"
#include "cli/client.h"
#include "cli/when.h"

extern const struct cli_command cmd_resume;

// The queue as it is: one row of sql/queries/cli_queue.sql. NULL with `e` filled
// when it does not exist.
static PGresult *find_queue(PGconn *conn, const char *queue, struct err *e)
{
    PGresult *res = client_query(conn, "cli_queue", 1, &queue, e);
    if (res == NULL || PQntuples(res) != 0)
        return res;
    PQclear(res);
    err_set(e, "there is no queue \"%s\"", queue);
    err_hint(e, "pgkin status lists the queues");
    return NULL;
}

static bool execute(PGconn *conn, const char *name, int n, const char *const *params,
                    struct err *e)
{
    PGresult *res = client_query(conn, name, n, params, e);
    PQclear(res);
    return res != NULL;
}

// `ms`: for how long, as text; NULL: until it is resumed.
static bool pause_queue(PGconn *conn, const char *queue, const char *ms, struct err *e)
{
    const char *params[] = {queue, ms};
    PGresult *before = find_queue(conn, queue, e);
    if (before == NULL)
        return false;
    bool already = client_true(before, 0, 0) && client_value(before, 0, 1) == NULL;
    PQclear(before);
    if (already && ms == NULL)
        return err_set(e, "queue \"%s\" is paused already", queue);
    if (!execute(conn, "cli_pause", 2, params, e))
        return false;
    PGresult *after = find_queue(conn, queue, e);
    if (after == NULL)
        return false;
    const char *until = client_value(after, 0, 1);
    printf("queue %s is paused%s%s\n", queue, until != NULL ? " until " : "",
           until != NULL ? until : "");
    PQclear(after);
    return true;
}

static bool resume_queue(PGconn *conn, const char *queue, struct err *e)
{
    PGresult *before = find_queue(conn, queue, e);
    if (before == NULL)
        return false;
    bool paused = client_true(before, 0, 0);
    PQclear(before);
    if (!paused)
        return err_set(e, "queue \"%s\" is not paused", queue);
    if (!execute(conn, "cli_resume", 1, &queue, e))
        return false;
    printf("queue %s is resumed\n", queue);
    return true;
}

// ---------------------------------------------------------------- the commands

static bool queue_operand(int argc, char **argv, int first, const char **queue,
                          struct err *e)
{
    if (first == argc) {
        err_usage(e, "which queue? its name is missing");
        return err_hint(e, "see pgkin %s --help", argv[0]);
    }
    *queue = argv[first];
    return true;
}

static bool run_pause(int argc, char **argv, struct err *e);
static bool run_resume(int argc, char **argv, struct err *e);

const struct cli_command cmd_pause = {
    .name = "pause",
    .args = "QUEUE [SECONDS]",
    .summary = "start nothing more out of a queue, for some time or until resumed",
    .help = "What runs goes on. SECONDS may have a unit: 90, 10m, 2h.\n",
    .max_operands = 2,
    .run = run_pause,
};

const struct cli_command cmd_resume = {
    .name = "resume",
    .args = "QUEUE",
    .summary = "go on with a queue that was paused",
    .max_operands = 1,
    .run = run_resume,
};

static bool run_pause(int argc, char **argv, struct err *e)
{
    struct cli_common common;
    const char *queue = NULL;
    char text[32];
    int64_t ms = 0;
    int first;
    if (!cli_parse(&cmd_pause, argc, argv, NULL, &common, &first, e))
        return false;
    PGconn *conn = NULL;
    bool timed = argc - first > 1;
    bool ok = queue_operand(argc, argv, first, &queue, e);
    if (ok && timed && (!when_parse_duration(argv[first + 1], true, &ms) || ms == 0)) {
        err_usage(e, "\"%s\" is not a number of seconds", argv[first + 1]);
        ok = err_hint(e, "it looks like 90, 10m or 2h");
    }
    snprintf(text, sizeof text, "%lld", (long long)ms);
    ok = ok && (conn = client_open(&common, e)) != NULL &&
         pause_queue(conn, queue, timed ? text : NULL, e);
    PQfinish(conn);
    cli_common_clear(&common);
    return ok;
}

static bool run_resume(int argc, char **argv, struct err *e)
{
    struct cli_common common;
    const char *queue = NULL;
    int first;
    if (!cli_parse(&cmd_resume, argc, argv, NULL, &common, &first, e))
        return false;
    PGconn *conn = NULL;
    bool ok = queue_operand(argc, argv, first, &queue, e) &&
              (conn = client_open(&common, e)) != NULL && resume_queue(conn, queue, e);
    PQfinish(conn);
    cli_common_clear(&common);
    return ok;
}
