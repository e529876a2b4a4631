// SPDX-License-Identifier: Apache-2.0

#include "lib/exchange.h"

#include <endian.h>
#include <inttypes.h>
#include <stdlib.h>
#include <string.h>

#include "core/buf.h"
#include "core/json.h"

// ------------------------------------------------------------------ answers

// The columns of sql/queries/exchange.sql.
enum column {
    COL_LEASE_ID,
    COL_TASK_ID,
    COL_ATTEMPT,
    COL_COMMAND,
    COL_PAYLOAD,
    COL_HEADERS,
    COL_COUNT,
};

// What the server sends for a type in binary format (pg_type.oid, fixed).
static const struct {
    Oid type;
    int size; // 0: any
} columns[COL_COUNT] = {
    [COL_LEASE_ID] = {20, 8}, [COL_TASK_ID] = {20, 8},   [COL_ATTEMPT] = {23, 4},
    [COL_COMMAND] = {25, 0},  [COL_PAYLOAD] = {3802, 0}, [COL_HEADERS] = {3802, 0},
};

#define JSONB_VERSION     1
#define LEASES_AT_A_GUESS 16

static bool check_columns(const PGresult *res, struct err *e)
{
    bool ok = PQresultStatus(res) == PGRES_TUPLES_OK && PQnfields(res) == COL_COUNT;
    for (int i = 0; ok && i < COL_COUNT; i++)
        ok = PQfformat(res, i) == 1 && PQftype(res, i) == columns[i].type;
    return ok ? true
              : err_set(e, "the answer to an exchange has other columns than known");
}

static bool check_size(const PGresult *res, int row, int col)
{
    int size = columns[col].size;
    return PQgetisnull(res, row, col) || size == 0 || PQgetlength(res, row, col) == size;
}

static int64_t read_int64(const PGresult *res, int row, int col)
{
    uint64_t v = 0;
    if (!PQgetisnull(res, row, col))
        memcpy(&v, PQgetvalue(res, row, col), sizeof v);
    return (int64_t)be64toh(v);
}

static int read_int32(const PGresult *res, int row, int col)
{
    uint32_t v;
    memcpy(&v, PQgetvalue(res, row, col), sizeof v);
    return (int)be32toh(v);
}

static const char *read_text(const PGresult *res, int row, int col)
{
    return PQgetisnull(res, row, col) ? NULL : PQgetvalue(res, row, col);
}

// A version number, then the JSON as text; libpq puts a NUL after any value.
static bool read_jsonb(const PGresult *res, int row, int col, const char **out,
                       size_t *len)
{
    const char *v = read_text(res, row, col);
    int n = PQgetlength(res, row, col);
    *out = NULL;
    *len = 0;
    if (v == NULL)
        return true;
    if (n < 2 || v[0] != JSONB_VERSION)
        return false;
    *out = v + 1;
    *len = (size_t)n - 1;
    return true;
}

static bool read_task(const PGresult *res, int row, struct exchange_task *t)
{
    size_t headers_len;
    if (PQgetisnull(res, row, COL_ATTEMPT) || PQgetisnull(res, row, COL_TASK_ID))
        return false;
    *t = (struct exchange_task){
        .lease_id = read_int64(res, row, COL_LEASE_ID),
        .task_id = read_int64(res, row, COL_TASK_ID),
        .attempt = read_int32(res, row, COL_ATTEMPT),
        .command = read_text(res, row, COL_COMMAND),
    };
    return read_jsonb(res, row, COL_PAYLOAD, &t->payload, &t->payload_len) &&
           t->payload != NULL &&
           read_jsonb(res, row, COL_HEADERS, &t->headers, &headers_len);
}

// Nearly always one lease for all; some tasks may have one of their own.
static void count_leases(struct exchange_task *tasks, size_t n, struct arena *a)
{
    int64_t *ids = arena_alloc(a, n * sizeof *ids);
    size_t *sizes = arena_calloc(a, n, sizeof *sizes);
    size_t *lease_of = arena_alloc(a, n * sizeof *lease_of);
    size_t leases = 0;
    for (size_t i = 0; i < n; i++) {
        size_t k = leases;
        while (k > 0 && ids[k - 1] != tasks[i].lease_id)
            k--;
        if (k == 0) {
            ids[leases++] = tasks[i].lease_id;
            k = leases;
        }
        sizes[k - 1]++;
        lease_of[i] = k - 1;
    }
    for (size_t i = 0; i < n; i++)
        tasks[i].lease_size = sizes[lease_of[i]];
}

bool exchange_parse(const PGresult *res, struct arena *a, struct exchange_answer *out,
                    struct err *e)
{
    *out = (struct exchange_answer){0};
    if (!check_columns(res, e))
        return false;
    int rows = PQntuples(res);
    out->tasks = arena_alloc(a, (size_t)rows * sizeof out->tasks[0]);
    out->refusals = arena_alloc(a, (size_t)rows * sizeof out->refusals[0]);
    for (int row = 0; row < rows; row++) {
        if (PQgetisnull(res, row, COL_LEASE_ID) && PQgetisnull(res, row, COL_COMMAND)) {
            out->held_back = true;
            continue;
        }
        bool ok = !PQgetisnull(res, row, COL_LEASE_ID);
        for (int col = 0; ok && col < COL_COUNT; col++)
            ok = check_size(res, row, col);
        if (ok && PQgetisnull(res, row, COL_COMMAND))
            out->refusals[out->refusal_count++] = (struct exchange_refusal){
                .lease_id = read_int64(res, row, COL_LEASE_ID),
                .task_id = read_int64(res, row, COL_TASK_ID),
            };
        else if (!ok || !read_task(res, row, &out->tasks[out->task_count++]))
            return err_set(e, "row %d of the answer to an exchange makes no sense", row);
    }
    count_leases(out->tasks, out->task_count, a);
    return true;
}

void exchange_keep(struct exchange_answer *answer, struct arena *a)
{
    const char *command = "";
    for (size_t i = 0; i < answer->task_count; i++) {
        struct exchange_task *t = &answer->tasks[i];
        // A batch has few commands, and the same ones in a row.
        if (strcmp(t->command, command) != 0)
            command = arena_strdup(a, t->command);
        t->command = command;
        t->payload = arena_strndup(a, t->payload, t->payload_len);
        if (t->headers != NULL)
            t->headers = arena_strdup(a, t->headers);
    }
}

// --------------------------------------------------------------------- ends

struct exchange_item {
    size_t lease; // index
    int64_t task_id;
    struct exchange_end end;
};

struct exchange_lease {
    int64_t lease_id;
    size_t size;
    size_t plain;       // ends that are nothing but completed
    double duration_ms; // the sum of theirs, where known; negative: none is
};

static const struct exchange_end plain_end = {.outcome = EXCHANGE_COMPLETED,
                                              .duration_ms = -1};

static const char *const outcome_names[] = {
    [EXCHANGE_COMPLETED] = "completed", [EXCHANGE_FAILED] = "failed",
    [EXCHANGE_CANCELED] = "canceled",   [EXCHANGE_RELEASED] = "released",
    [EXCHANGE_FATAL] = "fatal",         [EXCHANGE_SNOOZED] = "snoozed",
};

void exchange_clear(struct exchange *x)
{
    free(x->items);
    free(x->leases);
    arena_clear(&x->texts);
    *x = EXCHANGE_INIT;
}

void exchange_reset(struct exchange *x)
{
    x->count = 0;
    x->lease_count = 0;
    x->spoiled = false;
    arena_reset(&x->texts);
}

static bool is_plain(const struct exchange_end *end)
{
    return end->outcome == EXCHANGE_COMPLETED && end->error == NULL &&
           end->result == NULL && end->duration_ms < EXCHANGE_QUICK_MS;
}

static size_t find_lease(struct exchange *x, const struct exchange_task *t)
{
    for (size_t i = x->lease_count; i > 0; i--)
        if (x->leases[i - 1].lease_id == t->lease_id)
            return i - 1;
    if (x->lease_count == x->lease_cap) {
        x->lease_cap = x->lease_cap == 0 ? LEASES_AT_A_GUESS : 2 * x->lease_cap;
        x->leases = xrealloc(x->leases, x->lease_cap * sizeof x->leases[0]);
    }
    x->leases[x->lease_count] = (struct exchange_lease){
        .lease_id = t->lease_id, .size = t->lease_size, .duration_ms = -1};
    return x->lease_count++;
}

static const char *copy_text(struct exchange *x, const char *s)
{
    return s != NULL ? arena_strdup(&x->texts, s) : NULL;
}

void exchange_end_task(struct exchange *x, const struct exchange_task *t,
                       const struct exchange_end *end)
{
    if (end == NULL)
        end = &plain_end;
    if (x->count == x->cap) {
        x->cap = x->cap == 0 ? 64 : 2 * x->cap;
        x->items = xrealloc(x->items, x->cap * sizeof x->items[0]);
    }
    struct exchange_item *item = &x->items[x->count++];
    *item = (struct exchange_item){
        .lease = find_lease(x, t), .task_id = t->task_id, .end = *end};
    item->end.error = copy_text(x, end->error);
    item->end.result = copy_text(x, end->result);
    struct exchange_lease *l = &x->leases[item->lease];
    if (!is_plain(end))
        return;
    if (++l->plain > l->size)
        BUG("more tasks of a lease have ended than it has");
    if (end->duration_ms >= 0)
        l->duration_ms = end->duration_ms + (l->duration_ms > 0 ? l->duration_ms : 0);
}

static bool is_whole(const struct exchange_lease *l)
{
    return l->plain == l->size;
}

void exchange_take_whole(struct exchange *from, struct exchange *to)
{
    struct exchange rest = EXCHANGE_INIT;
    for (size_t i = 0; i < from->count; i++) {
        const struct exchange_item *item = &from->items[i];
        const struct exchange_lease *l = &from->leases[item->lease];
        const struct exchange_task t = {
            .lease_id = l->lease_id, .task_id = item->task_id, .lease_size = l->size};
        exchange_end_task(is_whole(l) ? to : &rest, &t, &item->end);
    }
    exchange_clear(from);
    *from = rest;
}

// A lease that was torn apart does not end as a whole any more.
void exchange_split(struct exchange *from, struct exchange *to)
{
    size_t half = from->count / 2;
    for (size_t i = half; i < from->count; i++) {
        const struct exchange_item *item = &from->items[i];
        const struct exchange_task t = {.lease_id = from->leases[item->lease].lease_id,
                                        .task_id = item->task_id,
                                        .lease_size = SIZE_MAX};
        exchange_end_task(to, &t, &item->end);
    }
    from->count = half;
    for (size_t i = 0; i < from->lease_count; i++)
        from->leases[i].size = SIZE_MAX;
}

void exchange_spoil(struct exchange *x, const char *error)
{
    x->spoiled = true;
    for (size_t i = 0; i < x->count; i++)
        x->items[i].end = (struct exchange_end){
            .outcome = EXCHANGE_FATAL,
            .error = arena_printf(&x->texts, "the server refused the result: %s", error),
            .duration_ms = x->items[i].end.duration_ms,
        };
    for (size_t i = 0; i < x->lease_count; i++)
        x->leases[i].plain = 0;
}

void exchange_get_leases(const struct exchange *x, int64_t *ids)
{
    for (size_t i = 0; i < x->lease_count; i++)
        ids[i] = x->leases[i].lease_id;
}

// --------------------------------------------------------------------- call

// Whole leases, and the mean of how long their tasks took.
static void add_done(const struct exchange *x, struct conn_params *p)
{
    struct buf ids = BUF_INIT, means = BUF_INIT;
    bool any = false;
    for (size_t i = 0; i < x->lease_count; i++) {
        const struct exchange_lease *l = &x->leases[i];
        char mean[JSON_DOUBLE_MAX] = "null";
        if (!is_whole(l))
            continue;
        if (l->duration_ms >= 0) {
            json_format_double((float)(l->duration_ms / (double)l->size), mean);
            any = true;
        }
        buf_addf(&ids, "%c%" PRId64, ids.len == 0 ? '{' : ',', l->lease_id);
        buf_addf(&means, "%c%s", means.len == 0 ? '{' : ',', mean);
    }
    if (ids.len > 0) {
        buf_addc(&ids, '}');
        buf_addc(&means, '}');
    }
    conn_params_add_text(p, ids.len > 0 ? ids.data : NULL);
    conn_params_add_text(p, any ? means.data : NULL);
    buf_clear(&ids);
    buf_clear(&means);
}

// An array of nothing but nulls is no array.
static void add_texts_or_null(struct conn_params *p, const char *const *v, size_t n)
{
    bool any = false;
    for (size_t i = 0; !any && i < n; i++)
        any = v[i] != NULL;
    if (any)
        conn_params_add_texts(p, v, n);
    else
        conn_params_add_null(p);
}

static double get_duration_ms(const struct exchange_end *end)
{
    return end->duration_ms;
}

static double get_delay_s(const struct exchange_end *end)
{
    return end->delay_ms > 0 ? (double)end->delay_ms / 1000 : -1;
}

// A real[] of what `get` says of each end; negative: null.
static void add_reals(struct conn_params *p, const struct exchange_item *const *items,
                      size_t n, double (*get)(const struct exchange_end *end))
{
    struct buf b = BUF_INIT;
    bool any = false;
    for (size_t i = 0; i < n; i++) {
        char text[JSON_DOUBLE_MAX] = "null";
        double v = get(&items[i]->end);
        if (v >= 0) {
            json_format_double((float)v, text);
            any = true;
        }
        buf_addf(&b, "%c%s", i == 0 ? '{' : ',', text);
    }
    buf_addc(&b, '}');
    conn_params_add_text(p, any ? b.data : NULL);
    buf_clear(&b);
}

// The parallel arrays of those that do not go as a whole lease.
static void add_singles(const struct exchange *x, struct conn_params *p)
{
    const struct exchange_item **items = xmalloc((x->count + 1) * sizeof(*items));
    int64_t *ids = xmalloc((x->count + 1) * sizeof *ids);
    const char **texts = xmalloc((x->count + 1) * sizeof(*texts));
    size_t n = 0;
    for (size_t i = 0; i < x->count; i++)
        if (!is_whole(&x->leases[x->items[i].lease]))
            items[n++] = &x->items[i];
    if (n == 0) {
        for (int i = 0; i < 7; i++)
            conn_params_add_null(p);
        goto out;
    }
    for (size_t i = 0; i < n; i++)
        ids[i] = x->leases[items[i]->lease].lease_id;
    conn_params_add_int64s(p, ids, n);
    for (size_t i = 0; i < n; i++)
        ids[i] = items[i]->task_id;
    conn_params_add_int64s(p, ids, n);
    for (size_t i = 0; i < n; i++)
        texts[i] = outcome_names[items[i]->end.outcome];
    conn_params_add_texts(p, texts, n);
    for (size_t i = 0; i < n; i++)
        texts[i] = items[i]->end.error;
    add_texts_or_null(p, texts, n);
    for (size_t i = 0; i < n; i++)
        texts[i] = items[i]->end.result;
    add_texts_or_null(p, texts, n);
    add_reals(p, items, n, get_duration_ms);
    add_reals(p, items, n, get_delay_s);
out:
    free(texts);
    free(ids);
    free(items);
}

void exchange_build(const struct exchange *x, const struct exchange_call *call,
                    struct conn_params *p)
{
    conn_params_add_text(p, call->queue);
    conn_params_add_int64(p, call->want);
    if (call->worker_id != 0)
        conn_params_add_int64(p, call->worker_id);
    else
        conn_params_add_null(p);
    if (call->pid != 0)
        conn_params_add_int64(p, call->pid);
    else
        conn_params_add_null(p);
    add_done(x, p);
    add_singles(x, p);
    if (call->lanes != NULL)
        conn_params_add_int64s(p, call->lanes, call->lane_count);
    else
        conn_params_add_null(p);
}

bool exchange_send(const struct exchange *x, struct conn *c,
                   const struct exchange_call *call, int deadline_ms,
                   void (*done)(struct conn *c, PGresult *res, const struct err *e,
                                void *arg),
                   void *arg, struct err *e)
{
    struct conn_params p = CONN_PARAMS_INIT;
    exchange_build(x, call, &p);
    return conn_request(c,
                        &(struct conn_request){.query = "exchange",
                                               .params = &p,
                                               .binary = true,
                                               .deadline_ms = deadline_ms,
                                               .done = done,
                                               .arg = arg},
                        e);
}
