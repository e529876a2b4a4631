// SPDX-License-Identifier: Apache-2.0

#include "cli/overview.h"

#include <stdlib.h>

#include "cli/client.h"
#include "cli/text.h"
#include "cli/when.h"

// Nothing is counted any further: an overview costs the same at any backlog.
#define COUNT_TO "10000"

struct reading {
    PGresult *server;
    PGresult *queues;
    PGresult *workers;
};

// The columns as they come, and after them the JSON.
static const struct text_column queue_columns[] = {
    {"QUEUE", false},  {"PENDING", true},   {"SCHEDULED", true},  {"PROCESSING", true},
    {"WAITING", true}, {"FAILED/1H", true}, {"OLDEST DUE", true}, {"", false},
};
static const struct text_column worker_columns[] = {
    {"WORKER", true}, {"NAME", false}, {"HOST", false}, {"PID", true},
    {"TASKS", true},  {"UP", true},    {"SEEN", true},  {"", false},
};

#define QUEUE_COLUMNS  ((int)(sizeof queue_columns / sizeof queue_columns[0]))
#define WORKER_COLUMNS ((int)(sizeof worker_columns / sizeof worker_columns[0]))
#define QUEUE_OLDEST   6
#define WORKER_UP      5
#define WORKER_SEEN    6

static void reading_clear(struct reading *r)
{
    PQclear(r->server);
    PQclear(r->queues);
    PQclear(r->workers);
}

static bool read_all(PGconn *conn, struct reading *r, struct err *e)
{
    static const char *const count_to = COUNT_TO;
    r->server = client_query(conn, "cli_status_server", 0, NULL, e);
    r->queues = r->server != NULL
                    ? client_query(conn, "cli_status_queues", 1, &count_to, e)
                    : NULL;
    r->workers =
        r->queues != NULL ? client_query(conn, "cli_status_workers", 0, NULL, e) : NULL;
    return r->workers != NULL;
}

// Columns `first` and `second` are seconds and shown as spans.
static void add_table(const PGresult *res, const struct text_column *columns, int count,
                      int first, int second, size_t width, struct buf *out)
{
    struct text_table table;
    struct buf span = BUF_INIT;
    text_table_init(&table, columns, (size_t)count);
    for (int i = 0; i < PQntuples(res); i++) {
        for (int k = 0; k < count; k++) {
            const char *value = client_value(res, i, k);
            if (value != NULL && (k == first || k == second)) {
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
}

bool overview_add_text(PGconn *conn, size_t width, struct buf *out, struct err *e)
{
    struct reading r = {0};
    struct buf title = BUF_INIT;
    bool ok = read_all(conn, &r, e);
    if (ok) {
        buf_adds(&title, "database ");
        text_add_clean(&title, PQgetvalue(r.server, 0, 0));
        buf_addf(&title, ", PostgreSQL %s, schema version %s", PQgetvalue(r.server, 0, 1),
                 PQgetvalue(r.server, 0, 2));
        text_add_cut(out, buf_str(&title), width > 0 ? width : SIZE_MAX);
        buf_adds(out, "\n\n");
        add_table(r.queues, queue_columns, QUEUE_COLUMNS, QUEUE_OLDEST, QUEUE_OLDEST,
                  width, out);
        buf_addc(out, '\n');
        if (PQntuples(r.workers) == 0)
            buf_adds(out, "no workers\n");
        else
            add_table(r.workers, worker_columns, WORKER_COLUMNS, WORKER_UP, WORKER_SEEN,
                      width, out);
    }
    buf_clear(&title);
    reading_clear(&r);
    return ok;
}

bool overview_add_json(PGconn *conn, struct buf *out, struct err *e)
{
    struct reading r = {0};
    bool ok = read_all(conn, &r, e);
    if (ok) {
        buf_addf(out, "{\"server\":%s,\"queues\":", PQgetvalue(r.server, 0, 3));
        client_add_array(r.queues, QUEUE_COLUMNS, out);
        buf_adds(out, ",\"workers\":");
        client_add_array(r.workers, WORKER_COLUMNS, out);
        buf_adds(out, "}\n");
    }
    reading_clear(&r);
    return ok;
}
