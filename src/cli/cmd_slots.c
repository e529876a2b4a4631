// SPDX-License-Identifier: Apache-2.0
//
// `pgkin slots`: the limits of how many tasks may run at once, what is in use of
// each, and who holds it.

#include <stdio.h>
#include <stdlib.h>

#include "cli/cli.h"
#include "cli/client.h"
#include "cli/text.h"
#include "cli/when.h"

struct values {
    const char *queue;
    const char *command;
    bool holders;
    bool json;
};

static const struct cli_option options[] = {
    {"queue", 'q', CLI_STRING, offsetof(struct values, queue), "QUEUE",
     "of this queue and its commands only"},
    {"command", 'c', CLI_STRING, offsetof(struct values, command), "COMMAND",
     "of this command only"},
    {"holders", 0, CLI_FLAG, offsetof(struct values, holders), NULL,
     "list the tasks that hold the slots"},
    {"json", 0, CLI_FLAG, offsetof(struct values, json), NULL, "print a JSON array"},
    {0},
};

// The columns of sql/queries/cli_slots.sql, and after them the JSON.
static const struct text_column slot_columns[] = {
    {"KEY", false}, {"KIND", false}, {"LIMIT", true}, {"USED", true}, {"WAITING", true},
};
#define SLOT_COLUMNS ((int)(sizeof slot_columns / sizeof slot_columns[0]))
#define SLOT_JSON    SLOT_COLUMNS
#define SLOT_WHOLE   (SLOT_COLUMNS + 1)

// Those of sql/queries/cli_slot_holders.sql.
static const struct text_column holder_columns[] = {
    {"KEY", false}, {"TASK", true}, {"WORKER", true}, {"NAME", false}, {"SINCE", true},
};
#define HOLDER_COLUMNS ((int)(sizeof holder_columns / sizeof holder_columns[0]))
#define HOLDER_SINCE   4

// Column `since` (-1: none) is in seconds and shown as a span.
static void add_table(const PGresult *res, const struct text_column *columns, int count,
                      int since, struct buf *out)
{
    struct text_table table;
    struct buf span = BUF_INIT;
    text_table_init(&table, columns, (size_t)count);
    for (int i = 0; i < PQntuples(res); i++) {
        for (int k = 0; k < count; k++) {
            const char *value = client_value(res, i, k);
            if (value != NULL && k == since) {
                buf_reset(&span);
                when_add_span(strtod(value, NULL), &span);
                value = buf_str(&span);
            }
            text_table_add(&table, value);
        }
    }
    text_table_print(&table, "", text_terminal_width(), out);
    text_table_clear(&table);
    buf_clear(&span);
}

static bool add_holders(PGconn *conn, const char *const *filter, struct buf *out,
                        struct err *e)
{
    PGresult *res = client_query(conn, "cli_slot_holders", 2, filter, e);
    if (res == NULL)
        return false;
    buf_addc(out, '\n');
    if (PQntuples(res) == 0)
        buf_adds(out, "nobody holds a slot\n");
    else
        add_table(res, holder_columns, HOLDER_COLUMNS, HOLDER_SINCE, out);
    PQclear(res);
    return true;
}

static bool list(PGconn *conn, const struct values *v, struct err *e)
{
    const char *const filter[] = {v->queue, v->command};
    struct buf out = BUF_INIT;
    PGresult *res = client_query(conn, "cli_slots", 2, filter, e);
    bool ok = res != NULL;
    if (ok && v->json) {
        client_add_array(res, v->holders ? SLOT_WHOLE : SLOT_JSON, &out);
        buf_addc(&out, '\n');
    } else if (ok) {
        add_table(res, slot_columns, SLOT_COLUMNS, -1, &out);
        ok = !v->holders || add_holders(conn, filter, &out, e);
    }
    fputs(ok ? buf_str(&out) : "", stdout);
    PQclear(res);
    buf_clear(&out);
    return ok;
}

static bool run(int argc, char **argv, struct err *e);

const struct cli_command cmd_slots = {
    .name = "slots",
    .args = "[--queue QUEUE] [--command COMMAND] [--holders]",
    .summary = "list limits, what is in use of them, and what waits",
    .help =
        "A key is COMMAND, COMMAND/GROUPKEY or queue:QUEUE. Group keys are listed while\n"
        "somebody holds them or waits for them.\n"
        "\n"
        "examples:\n"
        "  pgkin slots --holders\n"
        "  pgkin slots -c send_mail --json | jq '.[].used'\n",
    .options = options,
    .run = run,
};

static bool run(int argc, char **argv, struct err *e)
{
    struct values v = {0};
    struct cli_common common;
    if (!cli_parse(&cmd_slots, argc, argv, &v, &common, NULL, e))
        return false;
    PGconn *conn = client_open(&common, e);
    bool ok = conn != NULL && client_begin_look(conn, e) && list(conn, &v, e);
    PQfinish(conn);
    cli_common_clear(&common);
    return ok;
}
