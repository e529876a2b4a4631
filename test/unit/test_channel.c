// SPDX-License-Identifier: Apache-2.0
//
// The life of a channel task in the daemon, seen through text messages, whose
// provider is a web server on this loop; and what both web providers do.

#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>

#include <cmocka.h>

#include "daemon/channel.h"
#include "test_channel_common.h"

#define ARRAY_SIZE(a) (sizeof(a) / sizeof(a)[0])
#define MESSAGE       "{\"to_number\": \"+49 170 1\", \"body\": \"say \\\"hi\\\" {x}\\n\"}"

static struct server *server;

static int sms_set_up(void **state)
{
    if (bench_set_up(state, &kind_sms) != 0)
        return -1;
    struct bench *b = *state;
    char url[64];
    server = server_new(b->base);
    snprintf(url, sizeof url, "http://127.0.0.1:%d/sms", server->port);
    bench_set(b, "sms.provider", "http");
    bench_set(b, "sms.url", url);
    bench_set(b, "sms.allow_private", "127.0.0.0/8, ::1");
    bench_set(b, "sms.headers", "{\"Authorization\": \"secret:token\"}");
    bench_secret(b, "token", "Bearer geheim\n");
    return 0;
}

static int sms_tear_down(void **state)
{
    struct bench *b = *state;
    // The kind keeps connections to the server.
    conn_free(b->steps);
    b->steps = NULL;
    b->kind->close(b->self);
    struct err e = ERR_INIT;
    b->self = b->kind->open(&b->rt, &e);
    server_free(server);
    return bench_tear_down(state);
}

static void test_sms(void **state)
{
    struct bench *b = *state;
    server->body = "{\"id\": \"abc\"}";
    bench_send(b, MESSAGE);
    assert_string_equal(buf_str(&server->method), "POST /sms");
    assert_string_equal(buf_str(&server->asked_body),
                        "{\"to\":\"+49 170 1\",\"body\":\"say \\\"hi\\\" {x}\\n\"}");
    assert_contains(buf_str(&server->asked_headers), "Authorization: Bearer geheim\n");
    assert_contains(buf_str(&server->asked_headers), "content-type: application/json\n");
    char key[64];
    snprintf(key, sizeof key, "idempotency-key: %s\n", b->key);
    assert_contains(buf_str(&server->asked_headers), key);
    assert_sql(b, STATE, "completed");
    assert_sql(b, FACT, "sent {\"body\": {\"id\": \"abc\"}, \"status\": 200}");
    // No transaction was open meanwhile, and the secret is nowhere.
    assert_null(strstr(buf_str(&b->lines), "geheim"));
    assert_sql(b, "select count(*) from worker.tasks where tasks::text like '%geheim%'",
               "0");
}

static void test_statuses(void **state)
{
    struct bench *b = *state;
    static const struct {
        int status;
        const char *body;
        const char *fact;
    } cases[] = {
        {200, "", "sent {\"status\": 200}"},
        {202, "queued", "sent {\"body\": {\"text\": \"queued\"}, \"status\": 202}"},
        {200, "{\"x\": \"\\u0000\"}", NULL},
        {400, "bad number", "failed \"HTTP 400: bad number\""},
        {500, "\xff\xfe", "failed \"HTTP 500: \xef\xbf\xbd\xef\xbf\xbd\""},
        {302, "", "failed \"HTTP 302\""},
    };
    for (size_t i = 0; i < ARRAY_SIZE(cases); i++) {
        server->status = cases[i].status;
        server->body = cases[i].body;
        bench_send(b, MESSAGE);
        if (cases[i].fact != NULL)
            assert_sql(b, FACT, cases[i].fact);
        assert_sql(b, STATE, cases[i].status < 300 ? "completed" : "failed");
    }
}

// With attempts left the queue tries again, unless that is of no use.
static void test_final(void **state)
{
    struct bench *b = *state;
    run_sql(b,
            "update worker.command_registry set max_attempts = 3 where command = 'sms'");
    server->status = 503;
    bench_send(b, MESSAGE);
    assert_sql(b, STATE, "pending");
    assert_sql(b, FACT, "");
    run_sql(b, "select worker.cancel(max(id)) from worker.tasks");
    server->status = 422;
    bench_send(b, MESSAGE);
    assert_sql(b, STATE, "failed");
    static const char *const bad[] = {
        "{\"body\": \"x\"}",
        "{\"to_number\": \"1\"}",
        "{\"to_number\": 1, \"body\": \"x\"}",
        "{\"to_number\": \"1\", \"body\": \"\"}",
        "{\"to_number\": \"1\\r\\nX: y\", \"body\": \"x\"}",
        "{\"to_number\": \"one\", \"body\": \"x\"}",
        "{}",
    };
    server->requests = 0;
    for (size_t i = 0; i < ARRAY_SIZE(bad); i++) {
        bench_send(b, bad[i]);
        assert_sql(b, STATE, "failed");
        assert_sql(b, "select what from app.fact", "failed");
    }
    assert_int_equal(server->requests, 0);
}

static void test_template(void **state)
{
    struct bench *b = *state;
    bench_set(
        b, "sms.template",
        "{\"list\": [{\"to\": \"{to_number}\"}], \"n\": 7, \"t\": \"a{body}b{body}\", "
        "\"k\": \"{nr}\", \"odd\": \"{ {} {Body} {\", \"on\": true}");
    bench_send(b, "{\"to_number\": \"1\", \"body\": \"{to_number}\\\",\\\"x\\\":\\\"\", "
                  "\"nr\": 12}");
    assert_string_equal(
        buf_str(&server->asked_body),
        "{\"list\":[{\"to\":\"1\"}],\"n\":7,"
        "\"t\":\"a{to_number}\\\",\\\"x\\\":\\\"b{to_number}\\\",\\\"x\\\":"
        "\\\"\",\"k\":\"12\",\"odd\":\"{ {} {Body} {\",\"on\":true}");
    bench_send(b, MESSAGE);
    assert_sql(b, ERROR, "the payload has no nr");
}

// Nobody answers, or for ever, or too much.
static void test_bad_server(void **state)
{
    struct bench *b = *state;
    bench_task(b, MESSAGE);
    server->handle = server_hold;
    b->t.command.timeout_ms = 300;
    bench_run(b);
    assert_int_equal(b->t.outcome, ATTEMPT_RECORDED);
    assert_sql(b, "select what from app.fact", "failed");
    server_release(server);

    server->handle = server_stream;
    server->body = "x";
    bench_task(b, MESSAGE);
    b->t.command.timeout_ms = 300;
    bench_run(b);
    assert_sql(b, "select what from app.fact", "failed");
    run_until(b->base, server->closed);

    server->handle = NULL;
    char *large = xmalloc(3000001);
    memset(large, 'x', 3000000);
    large[3000000] = '\0';
    server->body = large;
    server->status = 200;
    bench_send(b, MESSAGE);
    assert_sql(b, FACT, "sent {\"status\": 200, \"truncated\": true}");
    server->body = NULL;
    free(large);
}

// The success handler fails: what the provider said is kept, and only the handler
// is tried again.
static void test_handler_again(void **state)
{
    struct bench *b = *state;
    bench_task(b, MESSAGE);
    run_sql(b, "insert into app.broken values ('x')");
    bench_run(b);
    assert_int_equal(b->t.outcome, ATTEMPT_RECORDED);
    assert_sql(b, STATE, "pending");
    assert_sql(b, ERROR, "success_handler: broken");
    run_sql(b, "truncate app.broken");
    run_sql(b, "set worker.fake_now = '2090-01-01'");
    bench_lease(b);
    server->requests = 0;
    bench_run(b);
    assert_int_equal(b->t.outcome, ATTEMPT_RECORDED);
    assert_int_equal(server->requests, 0);
    assert_sql(b, STATE, "completed");
    assert_sql(b, FACT, "sent {\"status\": 200}");
}

static void terminate_steps(struct bench *b)
{
    char *sql = xasprintf("select pg_terminate_backend(%d)", conn_backend_pid(b->steps));
    run_sql(b, sql);
    free(sql);
}

// The session is lost while the provider works: the answer goes out by the next.
static void test_session_lost(void **state)
{
    struct bench *b = *state;
    bench_task(b, MESSAGE);
    server->handle = server_hold;
    b->kind->start(b->self, &b->t.attempt);
    run_until(b->base, server->held_count == 1);
    // Nothing is open in the database meanwhile.
    assert_sql(b,
               "select count(*) from pg_stat_activity where datname = current_database()"
               " and pid <> pg_backend_pid() and state like '%in transaction%'",
               "0");
    terminate_steps(b);
    server_release(server);
    run_until(b->base, b->t.ends > 0);
    assert_int_equal(b->t.outcome, ATTEMPT_RECORDED);
    assert_sql(b, STATE, "completed");
    assert_sql(b, "select count(*) from app.fact", "1");

    // Before anything was sent: nobody's failure, again later.
    bench_task(b, MESSAGE);
    server->handle = NULL;
    server->requests = 0;
    run_sql(b, "begin");
    run_sql(b, "lock table queues.lease_open in access exclusive mode");
    b->kind->start(b->self, &b->t.attempt);
    run_until(b->base, conn_get_state(b->steps) == CONN_BUSY);
    terminate_steps(b);
    run_until(b->base, b->t.ends > 0);
    assert_int_equal(b->t.outcome, ATTEMPT_SNOOZED);
    assert_int_equal(server->requests, 0);
    run_sql(b, "rollback");
}

// A handler that ends its own session, every time: what the provider said is kept,
// and the task is put off.
static void test_handler_kills(void **state)
{
    struct bench *b = *state;
    run_sql(b, "create or replace function app.success(p jsonb) returns jsonb"
               " language plpgsql as $$ begin"
               " perform pg_terminate_backend(pg_backend_pid()); perform pg_sleep(60);"
               " return null; end $$");
    server->body = "{\"id\": 1}";
    bench_task(b, MESSAGE);
    server->requests = 0;
    bench_run(b);
    assert_int_equal(b->t.outcome, ATTEMPT_RECORDED);
    assert_int_equal(server->requests, 1);
    assert_sql(b, STATE, "pending");
    assert_sql(b, ERROR, "the session was lost while the handler ran");
    assert_sql(
        b, "select worker_payload from worker.channel_outcome where kind = 'succeeded'",
        "{\"body\": {\"id\": 1}, \"status\": 200}");
    // Again, and still; then it is mended.
    run_sql(b, "set worker.fake_now = '2090-01-01'");
    bench_lease(b);
    bench_run(b);
    assert_int_equal(b->t.outcome, ATTEMPT_RECORDED);
    assert_sql(
        b, "select count(*) from worker.channel_outcome where kind = 'handler_failed'",
        "2");
    run_sql(
        b,
        "create or replace function app.success(p jsonb) returns jsonb"
        " language sql as $$ insert into app.fact values ('sent', p -> 'worker_payload')"
        " returning '{\"success\": true}'::jsonb $$");
    run_sql(b, "set worker.fake_now = '2091-01-01'");
    bench_lease(b);
    bench_run(b);
    assert_sql(b, STATE, "completed");
    assert_sql(b, FACT, "sent {\"body\": {\"id\": 1}, \"status\": 200}");
    assert_int_equal(server->requests, 1);

    // A before handler that does that is not tried for ever.
    run_sql(b, "create or replace function app.before(p jsonb) returns jsonb"
               " language plpgsql as $$ begin"
               " perform pg_terminate_backend(pg_backend_pid()); perform pg_sleep(60);"
               " return null; end $$");
    bench_task(b, MESSAGE);
    bench_run(b);
    assert_int_equal(b->t.outcome, ATTEMPT_SNOOZED);
    bench_task(b, MESSAGE);
    b->t.attempt.task.attempt = 5;
    bench_run(b);
    assert_int_equal(b->t.outcome, ATTEMPT_FAILED);
}

static void test_stop(void **state)
{
    struct bench *b = *state;
    // While the provider works: it is dropped, and nothing is recorded.
    bench_task(b, MESSAGE);
    server->handle = server_hold;
    b->kind->start(b->self, &b->t.attempt);
    run_until(b->base, server->held_count == 1);
    b->kind->stop(b->self, &b->t.attempt);
    assert_int_equal(b->t.ends, 1);
    assert_int_equal(b->t.outcome, ATTEMPT_FAILED);
    assert_sql(b, STATE, "processing");
    assert_sql(b, FACT, "");
    server_release(server);
    server->handle = NULL;

    // While it begins: nothing is sent.
    bench_task(b, MESSAGE);
    server->requests = 0;
    b->kind->start(b->self, &b->t.attempt);
    b->kind->stop(b->self, &b->t.attempt);
    run_until(b->base, b->t.ends > 0);
    assert_int_equal(b->t.outcome, ATTEMPT_FAILED);
    assert_int_equal(server->requests, 0);

    // While it records: that goes through.
    bench_task(b, MESSAGE);
    run_sql(b, "begin");
    run_sql(b, "lock table app.fact in access exclusive mode");
    b->kind->start(b->self, &b->t.attempt);
    run_until(b->base, strstr(buf_str(&b->lines), "to=recording") != NULL);
    buf_reset(&b->lines);
    b->kind->stop(b->self, &b->t.attempt);
    assert_int_equal(b->t.ends, 0);
    run_sql(b, "commit");
    run_until(b->base, b->t.ends > 0);
    assert_int_equal(b->t.outcome, ATTEMPT_RECORDED);
    assert_sql(b, STATE, "completed");
}

// The worker goes while a step is with the server: the attempt ends, and the
// answer that comes later finds nobody.
static void test_close(void **state)
{
    struct bench *b = *state;
    struct err e = ERR_INIT;
    bench_task(b, MESSAGE);
    run_sql(b, "begin");
    run_sql(b, "lock table app.fact in access exclusive mode");
    b->kind->start(b->self, &b->t.attempt);
    run_until(b->base, strstr(buf_str(&b->lines), "to=recording") != NULL);
    b->kind->stop(b->self, &b->t.attempt);
    b->kind->close(b->self);
    assert_int_equal(b->t.ends, 1);
    assert_int_equal(b->t.outcome, ATTEMPT_FAILED);
    run_sql(b, "commit");
    run_until(b->base, conn_pending(b->steps) == 0);
    assert_int_equal(b->t.ends, 1);
    b->self = b->kind->open(&b->rt, &e);

    // And while the provider works.
    bench_task(b, MESSAGE);
    server->handle = server_hold;
    b->kind->start(b->self, &b->t.attempt);
    run_until(b->base, server->held_count == 1);
    b->kind->close(b->self);
    assert_int_equal(b->t.ends, 1);
    server_release(server);
    b->self = b->kind->open(&b->rt, &e);
}

static void test_lost(void **state)
{
    struct bench *b = *state;
    bench_task(b, MESSAGE);
    b->t.attempt.task.lease_id += 1000;
    server->requests = 0;
    bench_run(b);
    assert_int_equal(b->t.outcome, ATTEMPT_RECORDED);
    assert_int_equal(server->requests, 0);
    assert_sql(b, STATE, "processing");
}

// What a handler leaves in the session is gone when the next one runs.
static void test_session_state(void **state)
{
    struct bench *b = *state;
    run_sql(b,
            "create or replace function app.before(p jsonb) returns jsonb"
            " language plpgsql as $$ begin"
            " insert into app.fact values (current_setting('work_mem') || "
            "   coalesce(current_setting('app.left', true), '') ||"
            "   (select count(*) from pg_locks where locktype = 'advisory'"
            "      and pid = pg_backend_pid()));"
            " perform set_config('work_mem', '77MB', false),"
            "   set_config('app.left', 'x', false), pg_advisory_lock(1);"
            " return jsonb_build_object('status', 'succeeded', 'payload', p -> 'send');"
            " end $$");
    bench_send(b, MESSAGE);
    char *first = ask(b, "select what from app.fact limit 1");
    bench_send(b, MESSAGE);
    assert_sql(b, "select what from app.fact limit 1", first);
    free(first);
}

static void test_log_provider(void **state)
{
    struct bench *b = *state;
    bench_set(b, "sms.provider", "log");
    bench_send(b, MESSAGE);
    assert_sql(b, FACT, "sent {\"provider\": \"log\"}");
    assert_contains(buf_str(&b->lines), "msg=\"text message\"");
}

// A provider that is not set up: the tasks fail, and say why.
static void test_not_set_up(void **state)
{
    struct bench *b = *state;
    static const struct {
        const char *name, *value, *error;
    } cases[] = {
        {"sms.headers", "[]", "sms.headers: is not a JSON object of strings"},
        {"sms.headers", "{}", NULL},
        {"sms.template", "nonsense", "sms.template is not a JSON object"},
        {"sms.template", "{}", NULL},
        {"sms.allow_private", "x", NULL},
        {"sms.url", "ftp://x", NULL},
    };
    for (size_t i = 0; i < ARRAY_SIZE(cases); i++) {
        bench_set(b, cases[i].name, cases[i].value);
        if (cases[i].error == NULL)
            continue;
        bench_send(b, MESSAGE);
        assert_sql(b, ERROR, cases[i].error);
        assert_sql(b, "select what from app.fact", "failed");
    }
    bench_send(b, MESSAGE);
    assert_sql(b, STATE, "failed");
}

static void test_machine(void **state)
{
    (void)state;
    struct buf drawing = BUF_INIT;
    machine_print_mermaid(channel_machine(), &drawing);
    assert_contains(buf_str(&drawing), "recording");
    buf_clear(&drawing);
}

#define WITH_SMS(test) cmocka_unit_test_setup_teardown(test, sms_set_up, sms_tear_down)

int main(void)
{
    const struct CMUnitTest tests[] = {
        WITH_SMS(test_sms),
        WITH_SMS(test_statuses),
        WITH_SMS(test_final),
        WITH_SMS(test_template),
        WITH_SMS(test_bad_server),
        WITH_SMS(test_handler_again),
        WITH_SMS(test_session_lost),
        WITH_SMS(test_handler_kills),
        WITH_SMS(test_stop),
        WITH_SMS(test_close),
        WITH_SMS(test_lost),
        WITH_SMS(test_session_state),
        WITH_SMS(test_log_provider),
        WITH_SMS(test_not_set_up),
        cmocka_unit_test(test_machine),
    };
    return cmocka_run_group_tests(tests, bench_make_template, bench_drop_template);
}
