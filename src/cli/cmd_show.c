// SPDX-License-Identifier: Apache-2.0

#include <stdio.h>
#include <stdlib.h>

#include "cli/cli.h"
#include "cli/client.h"
#include "cli/text.h"

#define TREE_MAX "100"

struct values {
    bool json;
};

static const struct cli_option options[] = {
    {"json", 0, CLI_FLAG, offsetof(struct values, json), NULL, "print one JSON object"},
    {0},
};

// What is known of a task. Each has JSON in its last column.
struct findings {
    PGresult *task;
    PGresult *tree;
    PGresult *attempts;
    PGresult *errors;
};

static const struct text_column attempt_columns[] = {
    {"TRY", true},      {"FROM", false},   {"TO", false},
    {"OUTCOME", false}, {"WORKER", false}, {"PID", true},
};

#define ATTEMPT_COLUMNS (sizeof attempt_columns / sizeof attempt_columns[0])

static void findings_clear(struct findings *f)
{
    PQclear(f->task);
    PQclear(f->tree);
    PQclear(f->attempts);
    PQclear(f->errors);
}

static bool look_up(PGconn *conn, const char *id, struct findings *f, struct err *e)
{
    const char *params[] = {id, TREE_MAX};
    f->task = client_query(conn, "cli_show_task", 1, params, e);
    if (f->task == NULL)
        return false;
    if (PQntuples(f->task) == 0)
        return client_no_task(id, e);
    f->tree = client_query(conn, "cli_show_tree", 2, params, e);
    f->attempts =
        f->tree != NULL ? client_query(conn, "cli_show_attempts", 1, params, e) : NULL;
    f->errors =
        f->attempts != NULL ? client_query(conn, "cli_show_errors", 1, params, e) : NULL;
    return f->errors != NULL;
}

static int last_column(const PGresult *res)
{
    return PQnfields(res) - 1;
}

// ---------------------------------------------------------------- as text

// The names of the columns are what is shown. The last two, state and JSON, are
// for others.
static void add_task(const char *id, const PGresult *res, struct buf *out)
{
    buf_addf(out, "task %s: %s\n", id, PQgetvalue(res, 0, last_column(res) - 1));
    for (int i = 0; i < last_column(res) - 1; i++) {
        const char *value = client_value(res, 0, i);
        if (value == NULL)
            continue;
        buf_addf(out, "  %-10s ", PQfname(res, i));
        text_add_lines(out, value, "             ");
        buf_addc(out, '\n');
    }
}

static void add_tree(const PGresult *res, struct buf *out)
{
    if (PQntuples(res) < 2)
        return;
    buf_adds(out, "\ntree\n");
    for (int i = 0; i < PQntuples(res); i++) {
        const char *depth = PQgetvalue(res, i, 1);
        const char *error = client_value(res, i, 5);
        buf_adds(out, client_true(res, i, 4) ? "> " : "  ");
        for (int k = 0; k < (int)strtol(depth, NULL, 10); k++)
            buf_adds(out, "  ");
        buf_addf(out, "%s ", PQgetvalue(res, i, 0));
        text_add_clean(out, PQgetvalue(res, i, 2));
        buf_addf(out, " %s", PQgetvalue(res, i, 3));
        if (error != NULL) {
            buf_adds(out, ": ");
            text_add_clean(out, error);
        }
        buf_addc(out, '\n');
    }
    if (client_true(res, 0, 6))
        buf_adds(out, "  … and more\n");
}

static void add_attempts(const PGresult *res, struct buf *out)
{
    struct text_table table;
    if (PQntuples(res) == 0)
        return;
    text_table_init(&table, attempt_columns, ATTEMPT_COLUMNS);
    for (int i = 0; i < PQntuples(res); i++)
        for (int k = 0; k < (int)ATTEMPT_COLUMNS; k++)
            text_table_add(&table, client_value(res, i, k));
    buf_adds(out, "\nattempts\n");
    text_table_print(&table, "  ", text_terminal_width(), out);
    text_table_clear(&table);
}

static void add_errors(const PGresult *res, struct buf *out)
{
    if (PQntuples(res) == 0)
        return;
    buf_adds(out, "\nerrors\n");
    for (int i = 0; i < PQntuples(res); i++) {
        const char *attempt = client_value(res, i, 1);
        buf_addf(out, "  %s", PQgetvalue(res, i, 0));
        if (attempt != NULL)
            buf_addf(out, " attempt %s", attempt);
        buf_adds(out, "\n    ");
        text_add_lines(out, PQgetvalue(res, i, 2), "    ");
        buf_addc(out, '\n');
    }
}

// ---------------------------------------------------------------- the command

static void add_json(const struct findings *f, struct buf *out)
{
    const struct {
        const char *name;
        const PGresult *res;
    } lists[] = {{"tree", f->tree}, {"attempts", f->attempts}, {"errors", f->errors}};
    buf_addf(out, "{\"task\":%s", PQgetvalue(f->task, 0, last_column(f->task)));
    for (size_t i = 0; i < sizeof lists / sizeof lists[0]; i++) {
        buf_addf(out, ",\"%s\":", lists[i].name);
        client_add_array(lists[i].res, last_column(lists[i].res), out);
    }
    buf_adds(out, "}\n");
}

static bool show(PGconn *conn, const char *id, bool json, struct err *e)
{
    struct findings f = {0};
    struct buf out = BUF_INIT;
    bool ok = look_up(conn, id, &f, e);
    if (ok && json) {
        add_json(&f, &out);
    } else if (ok) {
        add_task(id, f.task, &out);
        add_tree(f.tree, &out);
        add_attempts(f.attempts, &out);
        add_errors(f.errors, &out);
    }
    fputs(buf_str(&out), stdout);
    buf_clear(&out);
    findings_clear(&f);
    return ok;
}

static bool run(int argc, char **argv, struct err *e);

const struct cli_command cmd_show = {
    .name = "show",
    .args = "ID [--json]",
    .summary = "show a task: its tree, attempts, errors, and why it is not running",
    .help =
        "A tree is shown up to " TREE_MAX " tasks; > is the task that was asked for.\n",
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
    if (!cli_parse(&cmd_show, argc, argv, &v, &common, &first, e))
        return false;
    PGconn *conn = NULL;
    bool ok = client_id_operand(argc, argv, first, &id, e) &&
              (conn = client_open(&common, e)) != NULL && client_begin_look(conn, e) &&
              show(conn, id, v.json, e);
    PQfinish(conn);
    cli_common_clear(&common);
    return ok;
}
