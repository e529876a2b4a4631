// SPDX-License-Identifier: Apache-2.0

#include <stdio.h>

#include "cli/cli.h"
#include "cli/client.h"
#include "cli/task_list.h"
#include "cli/text.h"

struct values {
    struct task_filter filter;
    bool json;
};

static const struct cli_option options[] = {
    {"state", 's', CLI_STRING, offsetof(struct values, filter.state), "STATE",
     "pending, processing, waiting, completed, failed, canceled"},
    {"queue", 'q', CLI_STRING, offsetof(struct values, filter.queue), "QUEUE",
     "of this queue only"},
    {"command", 'c', CLI_STRING, offsetof(struct values, filter.command), "COMMAND",
     "of this command only"},
    {"limit", 'n', CLI_INT, offsetof(struct values, filter.limit), "N",
     "how many at most (20)"},
    {"json", 0, CLI_FLAG, offsetof(struct values, json), NULL,
     "print a JSON array, with whole payloads"},
    {0},
};

static bool list(PGconn *conn, const struct values *v, struct err *e)
{
    struct buf out = BUF_INIT;
    bool cut = false;
    bool ok = v->json ? task_list_add_json(conn, &v->filter, &out, &cut, e)
                      : task_list_add_text(conn, &v->filter, text_terminal_width(), &out,
                                           &cut, e);
    fputs(buf_str(&out), stdout);
    if (ok && cut)
        fputs("pgkin: only the newest tasks were searched; there may be older ones\n",
              stderr);
    buf_clear(&out);
    return ok;
}

static bool run(int argc, char **argv, struct err *e);

const struct cli_command cmd_tasks = {
    .name = "tasks",
    .args = "[--state STATE] [--queue QUEUE] [--command COMMAND] [--limit N]",
    .summary = "list tasks, the newest first",
    .help =
        "What it costs does not grow with the number of tasks: where no index leads to\n"
        "what is asked for, the newest ten thousand are searched, and it says so when\n"
        "there may be more. The setting worker.list_window is another number\n"
        "(PGOPTIONS='-c worker.list_window=1000000').\n"
        "\n"
        "examples:\n"
        "  pgkin tasks --state failed\n"
        "  pgkin tasks -q billing -n 100 --json | jq '.[].payload'\n",
    .options = options,
    .run = run,
};

static bool run(int argc, char **argv, struct err *e)
{
    struct values v = {.filter = {.limit = 20}};
    struct cli_common common;
    if (!cli_parse(&cmd_tasks, argc, argv, &v, &common, NULL, e))
        return false;
    PGconn *conn = client_open(&common, e);
    bool ok = conn != NULL && client_begin_look(conn, e) && list(conn, &v, e);
    PQfinish(conn);
    cli_common_clear(&common);
    return ok;
}
