// SPDX-License-Identifier: Apache-2.0
//
// What the tests of channels share: a migrated database of their own, the
// connection for the steps, and tasks that are leased as a worker leases them.
// Include after cmocka.h.

#ifndef PGKIN_TEST_CHANNEL_COMMON_H
#define PGKIN_TEST_CHANNEL_COMMON_H

#include <libpq-fe.h>
#include <unistd.h>

#include "core/conninfo.h"
#include "lib/migrate.h"
#include "test_attempt_stub.h"

struct bench {
    struct event_base *base;
    PGconn *sql;
    char *url; // of the database
    struct conf conf;
    struct runtime rt;
    struct conn *steps;
    struct log log;
    struct buf lines;
    char dir[64]; // of the credentials
    const struct kind *kind;
    void *self;
    struct trial t;
    char *payload;
    char *key;
};

static inline struct bench *bench_of(struct runtime *rt)
{
    return (struct bench *)((char *)rt - offsetof(struct bench, rt));
}

static inline struct conn *bench_steps(struct runtime *rt)
{
    return bench_of(rt)->steps;
}

static inline void bench_keep_line(void *arg, enum log_level level, const char *line,
                                   size_t len)
{
    struct bench *b = arg;
    (void)level;
    buf_add(&b->lines, line, len);
    buf_addc(&b->lines, '\n');
}

// The value is the caller's to free.
static inline char *ask(struct bench *b, const char *sql)
{
    PGresult *res = PQexec(b->sql, sql);
    if (PQresultStatus(res) != PGRES_TUPLES_OK && PQresultStatus(res) != PGRES_COMMAND_OK)
        fail_msg("%s: %s", sql, PQresultErrorMessage(res));
    char *value = xstrdup(PQntuples(res) > 0 ? PQgetvalue(res, 0, 0) : "");
    PQclear(res);
    return value;
}

static inline void run_sql(struct bench *b, const char *sql)
{
    free(ask(b, sql));
}

static inline void assert_sql(struct bench *b, const char *sql, const char *expected)
{
    char *value = ask(b, sql);
    if (strcmp(value, expected) != 0)
        fail_msg("%s\n  is        %s\n  instead of %s\n%s", sql, value, expected,
                 buf_str(&b->lines));
    free(value);
}

static inline void bench_set(struct bench *b, const char *name, const char *value)
{
    struct err e = ERR_INIT;
    if (!conf_set_flag(&b->conf, name, value, "test", &e))
        fail_msg("%s", e.msg);
}

static inline void bench_secret(struct bench *b, const char *name, const char *value)
{
    char path[128];
    snprintf(path, sizeof path, "%s/%s", b->dir, name);
    FILE *file = fopen(path, "w");
    assert_non_null(file);
    fputs(value, file);
    fclose(file);
}

// Creates or drops channel_PID, or with a suffix another, and says where it is.
static inline char *bench_database(const char *before, const char *suffix,
                                   const char *after)
{
    struct err e = ERR_INIT;
    struct buf info = BUF_INIT;
    PGconn *admin = PQconnectdb(getenv("PGKIN_TEST_URL"));
    char *name = xasprintf("channel_%d%s", (int)getpid(), suffix);
    char *sql = xasprintf("%s %s %s", before, name, after);
    PGresult *res = PQexec(admin, sql);
    if (PQresultStatus(res) != PGRES_COMMAND_OK)
        fail_msg("%s: %s", sql, PQresultErrorMessage(res));
    PQclear(res);
    PQfinish(admin);
    const struct conninfo_param param = {.key = "dbname", .value = name, .force = true};
    assert_true(conninfo_with_params(getenv("PGKIN_TEST_URL"), &param, 1, &info, &e));
    free(sql);
    free(name);
    return buf_detach(&info);
}

static inline void bench_schema(struct bench *b)
{
    struct migrate_report report = MIGRATE_REPORT_INIT;
    struct err e = ERR_INIT;
    if (!migrate_run(b->sql, &(struct migrate_options){0}, &report, &e))
        fail_msg("migrate: %s", e.msg);
    migrate_report_clear(&report);
    run_sql(b, "create schema app;"
               "create table app.fact (what text, detail jsonb);"
               "create table app.broken (what text);"
               "create function app.before(p jsonb) returns jsonb language sql as $$"
               "  select jsonb_build_object('status', 'succeeded',"
               "    'payload', p -> 'send') $$;"
               "create function app.success(p jsonb) returns jsonb language plpgsql as $$"
               "  begin insert into app.fact values ('sent', p -> 'worker_payload');"
               "  if exists (select from app.broken) then raise 'broken'; end if;"
               "  return '{\"status\": \"succeeded\"}'; end $$;"
               "create function app.failure(p jsonb) returns jsonb language plpgsql as $$"
               "  begin insert into app.fact values ('failed', p -> 'error');"
               "  return '{\"status\": \"succeeded\"}'; end $$");
}

// For the group: the schema is made once, and copied for each test.
static inline int bench_make_template(void **state)
{
    (void)state;
    struct bench b = {0};
    b.url = bench_database("create database", "_t", "template template0");
    b.sql = PQconnectdb(b.url);
    bench_schema(&b);
    PQfinish(b.sql);
    free(b.url);
    return 0;
}

static inline int bench_drop_template(void **state)
{
    (void)state;
    free(bench_database("drop database if exists", "_t", "with (force)"));
    return 0;
}

static inline int bench_set_up(void **state, const struct kind *kind)
{
    struct bench *b = xcalloc(1, sizeof *b);
    struct err e = ERR_INIT;
    *state = b;
    signal(SIGPIPE, SIG_IGN);
    snprintf(b->dir, sizeof b->dir, "/tmp/pgkin-channel-XXXXXX");
    assert_non_null(mkdtemp(b->dir));
    char copy[64];
    snprintf(copy, sizeof copy, "template channel_%d_t", (int)getpid());
    b->url = bench_database("create database", "", copy);
    b->sql = PQconnectdb(b->url);
    conf_init(&b->conf, conf_settings, conf_setting_count);
    bench_set(b, "credentials.directory", b->dir);
    b->base = event_base_new();
    b->log = (struct log){.level = LOG_DEBUG, .sink = bench_keep_line, .sink_arg = b};
    const struct conn_options o = {.name = "steps",
                                   .conninfo = b->url,
                                   .unprepared = true,
                                   .backoff_min_ms = 5,
                                   .backoff_max_ms = 40,
                                   .log = &b->log};
    b->steps = conn_new(b->base, &o, &e);
    assert_non_null(b->steps);
    assert_true(conn_open(b->steps, &e));
    b->rt = (struct runtime){
        .base = b->base, .log = &b->log, .conf = &b->conf, .steps = bench_steps};
    b->kind = kind;
    b->self = kind->open(&b->rt, &e);
    return b->self != NULL ? 0 : -1;
}

static inline int bench_tear_down(void **state)
{
    struct bench *b = *state;
    conn_free(b->steps);
    b->kind->close(b->self);
    PQfinish(b->sql);
    free(bench_database("drop database if exists", "", "with (force)"));
    static const char *const secrets[] = {"token", "password"};
    for (size_t i = 0; i < 2; i++) {
        char path[128];
        snprintf(path, sizeof path, "%s/%s", b->dir, secrets[i]);
        remove(path);
    }
    int left = rmdir(b->dir);
    trial_clear(&b->t);
    event_base_free(b->base);
    conf_clear(&b->conf);
    buf_clear(&b->lines);
    free(b->payload);
    free(b->key);
    free(b->url);
    free(b);
    return left;
}

// Leases the next task of the kind as a worker does, ready for trial_run().
static inline void bench_lease(struct bench *b)
{
    PGresult *res = PQexec(b->sql, "select lease_id, task_id, payload from "
                                   "queues.exchange('default', 1, p_lanes => '{2,3}')");
    if (PQntuples(res) != 1)
        fail_msg("no task to lease: %s", PQresultErrorMessage(res));
    free(b->payload);
    free(b->key);
    b->payload = xstrdup(PQgetvalue(res, 0, 2));
    b->key = xasprintf("0198-%s", PQgetvalue(res, 0, 1));
    trial_clear(&b->t);
    trial_init(&b->t, b->kind, b->payload);
    b->t.attempt.task.lease_id = atoll(PQgetvalue(res, 0, 0));
    b->t.attempt.task.task_id = atoll(PQgetvalue(res, 0, 1));
    b->t.attempt.idempotency_key = b->key;
    PQclear(res);
}

// Enqueues a task with all three handlers that sends this, and leases it.
static inline void bench_task(struct bench *b, const char *send)
{
    char *literal = PQescapeLiteral(b->sql, send, strlen(send));
    char *sql =
        xasprintf("select worker.enqueue('%s', jsonb_build_object('send', %s::jsonb,"
                  " 'before_handler', 'app.before', 'success_handler', 'app.success',"
                  " 'error_handler', 'app.failure'))",
                  b->kind->name, literal);
    run_sql(b, "truncate app.fact, app.broken");
    run_sql(b, sql);
    PQfreemem(literal);
    free(sql);
    bench_lease(b);
}

static inline void bench_run(struct bench *b)
{
    trial_run(&b->t, b->base, b->self);
}

// The usual: enqueue, run, and it was recorded.
static inline void bench_send(struct bench *b, const char *send)
{
    bench_task(b, send);
    bench_run(b);
    if (b->t.outcome != ATTEMPT_RECORDED)
        fail_msg("not recorded: %s", b->t.error != NULL ? b->t.error : "");
}

#define STATE "select state from worker.tasks order by id desc limit 1"
#define ERROR "select error from worker.tasks order by id desc limit 1"
#define FACT  "select string_agg(what || ' ' || detail::text, '; ') from app.fact"

#endif
