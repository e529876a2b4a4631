// SPDX-License-Identifier: Apache-2.0

#include "bench/load.h"

#include <inttypes.h>
#include <stdlib.h>
#include <string.h>

#define LOAD_SESSIONS 4
#define LOAD_DEPTH    32
#define LIMIT_MS      (3600 * 1000)

// ------------------------------------------------------------------ payloads

static const char payload_start[] = "{\"n\":";
static const char payload_pad[] = ",\"pad\":\"\"";

void load_add_payload(struct buf *out, int64_t n, int payload_bytes)
{
    size_t start = out->len;
    buf_addf(out, "%s%" PRId64, payload_start, n);
    size_t least = out->len - start + sizeof payload_pad; // with the last brace
    if ((size_t)payload_bytes > least) {
        size_t pad = (size_t)payload_bytes - least;
        buf_add(out, payload_pad, sizeof payload_pad - 2);
        buf_reserve(out, pad);
        memset(out->data + out->len, 'x', pad);
        out->len += pad;
        buf_addc(out, '"');
    }
    buf_addc(out, '}');
}

// As jsonb prints it: with a space after the colon, "n" before the longer "pad".
int64_t load_read_payload(const char *payload)
{
    const char *p = strchr(payload, ':');
    char *end;
    if (p == NULL || strncmp(payload, payload_start, 4) != 0)
        return -1;
    int64_t n = strtoll(p + 1, &end, 10);
    return end != p + 1 && (*end == '}' || *end == ',') ? n : -1;
}

void load_add_array(struct buf *out, int64_t first, int64_t n, int payload_bytes)
{
    struct buf one = BUF_INIT;
    for (int64_t i = 0; i < n; i++) {
        buf_reset(&one);
        load_add_payload(&one, first + i, payload_bytes);
        buf_adds(out, i == 0 ? "{\"" : ",\"");
        for (const char *p = one.data; *p != '\0'; p++) {
            if (*p == '"')
                buf_addc(out, '\\');
            buf_addc(out, *p);
        }
        buf_addc(out, '"');
    }
    buf_addc(out, '}');
    buf_clear(&one);
}

void load_add_rows(struct buf *out, int64_t first, int64_t n, int payload_bytes)
{
    for (int64_t i = 0; i < n; i++) {
        buf_adds(out, BENCH_COMMAND "\t");
        load_add_payload(out, first + i, payload_bytes);
        buf_addc(out, '\n');
    }
}

// ------------------------------------------------------------------- in bulk

bool load_bulk(struct bench *b, const char *query, int64_t tasks, struct err *e)
{
    struct buf payloads = BUF_INIT;
    bool ok = bench_set_sync(b, SYNC_OFF, e);
    bench_progress(b, "loading", tasks);
    while (ok && b->done < tasks) {
        int64_t n = tasks - b->done < LOAD_CHUNK ? tasks - b->done : LOAD_CHUNK;
        struct conn_params p = CONN_PARAMS_INIT;
        buf_reset(&payloads);
        load_add_array(&payloads, b->done, n, b->opt.payload_bytes);
        conn_params_add_text(&p, payloads.data);
        ok = bench_sql(b, query, &p, NULL, e);
        b->done += n;
    }
    buf_clear(&payloads);
    return ok && bench_set_sync(b, b->opt.sync, e);
}

// ---------------------------------------------------------------- one by one

static bool goes_on(const struct load_singles *l)
{
    return (l->tasks == 0 || l->sent < l->tasks) &&
           (l->for_us == 0 || bench_now_us() < l->end_us);
}

static void on_single(struct client *c, PGresult *res, void *arg);

static void send_single(struct load_singles *l, struct client *c)
{
    struct conn_params p = CONN_PARAMS_INIT;
    struct buf payload = BUF_INIT;
    load_add_payload(&payload, l->sent++, c->b->opt.payload_bytes);
    conn_params_add_text(&p, payload.data);
    buf_clear(&payload);
    client_request(c, l->query, &p, on_single, l);
}

static void on_single(struct client *c, PGresult *res, void *arg)
{
    (void)res;
    struct load_singles *l = arg;
    l->acked++;
    c->b->done++;
    if (goes_on(l))
        send_single(l, c);
    else if (l->acked == l->sent)
        l->last_us = bench_now_us();
}

static bool singles_over(void *arg)
{
    const struct load_singles *l = arg;
    return l->acked == l->sent && !goes_on(l);
}

bool load_run_singles(struct load_singles *l, struct clients *clients, struct err *e)
{
    int64_t start = bench_now_us();
    l->end_us = start + l->for_us;
    for (int k = 0; k < l->depth; k++)
        for (size_t i = 0; i < clients->count && goes_on(l); i++)
            send_single(l, &clients->list[i]);
    if (!bench_wait(clients->list[0].b, singles_over, l, LIMIT_MS, "enqueueing", e))
        return false;
    l->seconds = (double)(l->last_us - start) / 1e6;
    return true;
}

static bool load_one_by_one(struct bench *b, const char *query, int64_t tasks,
                            struct err *e)
{
    struct clients clients;
    struct load_singles l = {.query = query, .tasks = tasks, .depth = LOAD_DEPTH};
    bench_progress(b, "enqueueing one by one", tasks);
    bool ok = clients_open(&clients, b, "producer", LOAD_SESSIONS, SYNC_OFF, e) &&
              load_run_singles(&l, &clients, e);
    clients_close(&clients);
    return ok;
}

struct load_way {
    const char *one;
    const char *many;
    const char *analyze;
};

static const struct load_way ways[] = {
    [LOAD_QUEUE] = {"bench_enqueue", "bench_enqueue_many", "bench_analyze"},
    [LOAD_COMMANDS] = {"bench_limit_enqueue", "bench_limit_load", "bench_analyze"},
    [LOAD_BASELINE] = {"bench_baseline_add", "bench_baseline_load",
                       "bench_baseline_analyze"},
};

bool load_tasks(struct bench *b, enum load_into into, int64_t tasks, struct err *e)
{
    const struct load_way *way = &ways[into];
    return (b->opt.single ? load_one_by_one(b, way->one, tasks, e)
                          : load_bulk(b, way->many, tasks, e)) &&
           bench_script(b, b->control, way->analyze, e);
}

bool load_last_task(struct bench *b, int64_t *out, struct err *e)
{
    PGresult *res;
    if (!bench_sql(b, "bench_last_task", NULL, &res, e))
        return false;
    *out = conn_result_int64(res, 0, 0);
    PQclear(res);
    return true;
}
