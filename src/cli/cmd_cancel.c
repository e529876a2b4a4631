// SPDX-License-Identifier: Apache-2.0

#include <stdio.h>
#include <string.h>

#include "cli/cli.h"
#include "cli/client.h"

struct values {
    const char *reason;
};

static const struct cli_option options[] = {
    {"reason", 0, CLI_STRING, offsetof(struct values, reason), "TEXT",
     "kept with the task"},
    {0},
};

// Where the task is now: after a success what became of it, else why there was
// nothing to do.
static bool report(PGconn *conn, const char *id, bool canceled, struct err *e)
{
    PGresult *res = client_query(conn, "cli_task_state", 1, &id, e);
    if (res == NULL)
        return false;
    bool there = PQntuples(res) != 0;
    const char *state = there ? PQgetvalue(res, 0, 0) : "";
    if (!there)
        client_no_task(id, e);
    else if (canceled)
        printf("task %s %s\n", id,
               client_true(res, 0, 1) ? "was asked to stop" : "is canceled");
    else if (strcmp(state, "processing") == 0 || strcmp(state, "waiting") == 0)
        err_set(e, "task %s was asked to stop already", id);
    else
        err_set(e, "task %s has ended already: it is %s", id, state);
    PQclear(res);
    return canceled && there;
}

static bool cancel(PGconn *conn, const char *id, const char *reason, struct err *e)
{
    const char *params[] = {id, reason};
    PGresult *res = client_query(conn, "cli_cancel", 2, params, e);
    if (res == NULL)
        return false;
    bool canceled = client_true(res, 0, 0);
    PQclear(res);
    return report(conn, id, canceled, e);
}

static bool run(int argc, char **argv, struct err *e);

const struct cli_command cmd_cancel = {
    .name = "cancel",
    .args = "ID [--reason TEXT]",
    .summary = "cancel a task",
    .help =
        "A pending task ends at once. A running one is asked to stop and is not tried\n"
        "again. Pending descendants go with it.\n",
    .options = options,
    .max_operands = 1,
    .run = run,
};

static bool run(int argc, char **argv, struct err *e)
{
    struct values v = {0};
    struct cli_common common;
    const char *id = NULL;
    int first;
    if (!cli_parse(&cmd_cancel, argc, argv, &v, &common, &first, e))
        return false;
    PGconn *conn = NULL;
    bool ok = client_id_operand(argc, argv, first, &id, e) &&
              (conn = client_open(&common, e)) != NULL && cancel(conn, id, v.reason, e);
    PQfinish(conn);
    cli_common_clear(&common);
    return ok;
}
