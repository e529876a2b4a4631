// SPDX-License-Identifier: Apache-2.0

#include "cli/task_list.h"

#include <stdio.h>
#include <stdlib.h>

#include "cli/client.h"
#include "cli/text.h"
#include "cli/when.h"

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

// Which tasks, and then what about them: two statements, because the first has an
// index for each question and the second is the same for all.
static PGresult *find(PGconn *conn, const struct task_filter *f, bool *cut, struct err *e)
{
    char limit[16];
    snprintf(limit, sizeof limit, "%d", f->limit);
    const char *filter[] = {f->state, f->queue, f->command, limit};
    PGresult *found = client_query(conn, "cli_find_tasks", 4, filter, e);
    if (found == NULL)
        return NULL;
    const char *which[] = {PQgetvalue(found, 0, 0), f->state};
    PGresult *res = client_query(conn, "cli_tasks", 2, which, e);
    *cut = client_true(found, 0, 1);
    PQclear(found);
    return res;
}

bool task_list_add_text(PGconn *conn, const struct task_filter *f, size_t width,
                        struct buf *out, bool *cut, struct err *e)
{
    struct text_table table;
    struct buf span = BUF_INIT;
    PGresult *res = find(conn, f, cut, e);
    if (res == NULL)
        return false;
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
    text_table_print(&table, "", width, out);
    text_table_clear(&table);
    buf_clear(&span);
    PQclear(res);
    return true;
}

bool task_list_add_json(PGconn *conn, const struct task_filter *f, struct buf *out,
                        bool *cut, struct err *e)
{
    PGresult *res = find(conn, f, cut, e);
    if (res == NULL)
        return false;
    client_add_array(res, COLUMN_JSON, out);
    buf_addc(out, '\n');
    PQclear(res);
    return true;
}
