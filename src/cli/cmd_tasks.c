// SPDX-License-Identifier: Apache-2.0

#include <stdio.h>
#include <stdlib.h>

#include "cli/cli.h"
#include "cli/client.h"
#include "cli/text.h"
#include "cli/when.h"

struct values {
    const char *state;
    const char *queue;
    const char *command;
    int limit;
    bool json;
};

static const struct cli_option options[] = {
    {"state", 's', CLI_STRING, offsetof(struct values, state), "STATE",
     "pending, processing, waiting, completed, failed, canceled"},
    {"queue", 'q', CLI_STRING, offsetof(struct values, queue), "QUEUE",
     "of this queue only"},
    {"command", 'c', CLI_STRING, offsetof(struct values, command), "COMMAND",
     "of this command only"},
    {"limit", 'n', CLI_INT, offsetof(struct values, limit), "N", "how many at most (20)"},
    {"json", 0, CLI_FLAG, offsetof(struct values, json), NULL,
     "print a JSON array, with whole payloads"},
    {0},
};

// The columns of sql/queries/cli_tasks.sql.
enum {
    COLUMN_ID,
    COLUMN_STATE,
    COLUMN_COMMAND,
    COLUMN_QUEUE,
    COLUMN_ATTEMPT,
    COLUMN_AGE,
    COLUMN_TOOK,
    COLUMN_DETAIL,
    COLUMN_JSON,
};

static const struct text_column columns[] = {
    [COLUMN_ID] = {"ID", true},
    [COLUMN_STATE] = {"STATE", false},
    [COLUMN_COMMAND] = {"COMMAND", false},
    [COLUMN_QUEUE] = {"QUEUE", false},
    [COLUMN_ATTEMPT] = {"TRY", true},
    [COLUMN_AGE] = {"AGE", true},
    [COLUMN_TOOK] = {"TOOK", true},
    [COLUMN_DETAIL] = {"PAYLOAD OR ERROR", false},
};

#define COLUMN_COUNT (sizeof columns / sizeof columns[0])

static void print_table(const PGresult *res)
{
    struct text_table table;
    struct buf out = BUF_INIT;
    struct buf span = BUF_INIT;
    text_table_init(&table, columns, COLUMN_COUNT);
    for (int i = 0; i < PQntuples(res); i++) {
        for (int k = 0; k < (int)COLUMN_COUNT; k++) {
            const char *value = client_value(res, i, k);
            if (value != NULL && (k == COLUMN_AGE || k == COLUMN_TOOK)) {
                buf_reset(&span);
                when_add_span(strtod(value, NULL), &span);
                value = buf_str(&span);
            }
            text_table_add(&table, value);
        }
    }
    text_table_print(&table, "", text_terminal_width(), &out);
    fputs(buf_str(&out), stdout);
    text_table_clear(&table);
    buf_clear(&span);
    buf_clear(&out);
}

static void print_json(const PGresult *res)
{
    struct buf out = BUF_INIT;
    client_add_array(res, COLUMN_JSON, &out);
    puts(buf_str(&out));
    buf_clear(&out);
}

static bool list(PGconn *conn, const struct values *v, struct err *e)
{
    char limit[16];
    snprintf(limit, sizeof limit, "%d", v->limit);
    const char *filter[] = {v->state, v->queue, v->command, limit};
    PGresult *found = client_query(conn, "cli_find_tasks", 4, filter, e);
    if (found == NULL)
        return false;
    const char *which[] = {PQgetvalue(found, 0, 0), v->state};
    PGresult *res = client_query(conn, "cli_tasks", 2, which, e);
    if (res != NULL && v->json)
        print_json(res);
    else if (res != NULL)
        print_table(res);
    if (res != NULL && client_true(found, 0, 1))
        fputs("pgkin: only the newest tasks were searched; there may be older ones\n",
              stderr);
    PQclear(res);
    PQclear(found);
    return res != NULL;
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
    struct values v = {.limit = 20};
    struct cli_common common;
    if (!cli_parse(&cmd_tasks, argc, argv, &v, &common, NULL, e))
        return false;
    PGconn *conn = client_open(&common, e);
    bool ok = conn != NULL && client_begin_look(conn, e) && list(conn, &v, e);
    PQfinish(conn);
    cli_common_clear(&common);
    return ok;
}
