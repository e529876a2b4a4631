// SPDX-License-Identifier: Apache-2.0

#include <stdio.h>

#include "cli/cli.h"
#include "cli/client.h"

static bool explain_refusal(PGconn *conn, const char *id, struct err *e)
{
    PGresult *res = client_query(conn, "cli_task_state", 1, &id, e);
    if (res == NULL)
        return false;
    if (PQntuples(res) == 0) {
        client_no_task(id, e);
    } else {
        err_set(e, "task %s is %s", id, PQgetvalue(res, 0, 0));
        err_hint(e, "only a failed or canceled task can be tried again");
    }
    PQclear(res);
    return false;
}

static bool retry(PGconn *conn, const char *id, struct err *e)
{
    PGresult *res = client_query(conn, "cli_retry", 1, &id, e);
    if (res == NULL)
        return false;
    bool done = client_true(res, 0, 0);
    PQclear(res);
    if (!done)
        return explain_refusal(conn, id, e);
    printf("task %s is pending again\n", id);
    return true;
}

static bool run(int argc, char **argv, struct err *e);

const struct cli_command cmd_retry = {
    .name = "retry",
    .args = "ID",
    .summary = "run a failed or canceled task again",
    .max_operands = 1,
    .run = run,
};

static bool run(int argc, char **argv, struct err *e)
{
    struct cli_common common;
    const char *id = NULL;
    int first;
    if (!cli_parse(&cmd_retry, argc, argv, NULL, &common, &first, e))
        return false;
    PGconn *conn = NULL;
    bool ok = client_id_operand(argc, argv, first, &id, e) &&
              (conn = client_open(&common, e)) != NULL && retry(conn, id, e);
    PQfinish(conn);
    cli_common_clear(&common);
    return ok;
}
