// SPDX-License-Identifier: Apache-2.0

#include <stdio.h>

#include "cli/cli.h"
#include "cli/client.h"
#include "cli/overview.h"
#include "cli/text.h"

struct values {
    bool json;
};

static const struct cli_option options[] = {
    {"json", 0, CLI_FLAG, offsetof(struct values, json), NULL, "print one JSON object"},
    {0},
};

static bool run(int argc, char **argv, struct err *e);

const struct cli_command cmd_status = {
    .name = "status",
    .args = "[--json]",
    .summary = "how the queues and workers are doing",
    .help =
        "PENDING is due and not begun, SCHEDULED is for later, WAITING are parents "
        "whose\n"
        "children have not ended. Nothing is counted beyond 10000, so it costs the same\n"
        "at any backlog.\n",
    .options = options,
    .run = run,
};

static bool run(int argc, char **argv, struct err *e)
{
    struct values v = {0};
    struct cli_common common;
    struct buf out = BUF_INIT;
    if (!cli_parse(&cmd_status, argc, argv, &v, &common, NULL, e))
        return false;
    PGconn *conn = client_open(&common, e);
    bool ok = conn != NULL && client_begin_look(conn, e) &&
              (v.json ? overview_add_json(conn, &out, e)
                      : overview_add_text(conn, text_terminal_width(), &out, e));
    fputs(buf_str(&out), stdout);
    buf_clear(&out);
    PQfinish(conn);
    cli_common_clear(&common);
    return ok;
}
