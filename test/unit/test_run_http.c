// SPDX-License-Identifier: Apache-2.0

#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>

#include <cmocka.h>

#include <signal.h>
#include <time.h>
#include <unistd.h>

#include "lib/base64.h"
#include "lib/sha256.h"
#include "test_attempt_stub.h"
#include "test_http_server.h"

#define ARRAY_SIZE(a) (sizeof(a) / sizeof(a)[0])
#define TRACE         "00-0af7651916cd43dd8448eb211c80319c-b7ad6b7169203331-01"

static const char *const local_networks[] = {"127.0.0.0/8", NULL};

struct fixture {
    struct event_base *base;
    struct server *server;
    struct conf conf;
    struct runtime rt;
    void *kind;
    struct trial t;
    char *url;
    char dir[64];
    struct err e;
};

static void set_secret(const struct fixture *f, const char *name, const char *value)
{
    char path[256];
    snprintf(path, sizeof path, "%s/%s", f->dir, name);
    FILE *file = fopen(path, "w");
    assert_non_null(file);
    fputs(value, file);
    fclose(file);
}

static int set_up(void **state)
{
    struct fixture *f = xcalloc(1, sizeof *f);
    *state = f;
    signal(SIGPIPE, SIG_IGN);
    snprintf(f->dir, sizeof f->dir, "/tmp/pgkin-http-XXXXXX");
    if (mkdtemp(f->dir) == NULL)
        return -1;
    conf_init(&f->conf, conf_settings, conf_setting_count);
    if (!conf_set_flag(&f->conf, "credentials.directory", f->dir, "-c", &f->e))
        return -1;
    f->base = event_base_new();
    f->server = server_new(f->base);
    f->rt = (struct runtime){.base = f->base, .conf = &f->conf};
    f->kind = kind_http.open(&f->rt, &f->e);
    f->url = xasprintf("http://127.0.0.1:%d/hook", f->server->port);
    trial_init(&f->t, &kind_http, "{\"a\": 1}");
    f->t.command.url = f->url;
    f->t.command.allow_private = local_networks;
    return f->kind != NULL ? 0 : -1;
}

static int tear_down(void **state)
{
    struct fixture *f = *state;
    static const char *const names[] = {"token", "sign"};
    for (size_t i = 0; i < ARRAY_SIZE(names); i++) {
        char path[256];
        snprintf(path, sizeof path, "%s/%s", f->dir, names[i]);
        remove(path);
    }
    int left = rmdir(f->dir);
    trial_clear(&f->t);
    kind_http.close(f->kind);
    server_free(f->server);
    event_base_free(f->base);
    conf_clear(&f->conf);
    free(f->url);
    free(f);
    return left;
}

static void run(struct fixture *f)
{
    trial_run(&f->t, f->base, f->kind);
}

static void test_request(void **state)
{
    struct fixture *f = *state;
    f->t.attempt.task.headers = "{\"traceparent\": \"" TRACE "\", \"other\": 1}";
    f->t.command.http_headers = "{\"X-Plain\": \"eins\", \"Authorization\": "
                                "\"secret:token\", \"X-Empty\": \"\"}";
    set_secret(f, "token", "Bearer geheim\n");
    run(f);
    assert_int_equal(f->t.outcome, ATTEMPT_COMPLETED);
    assert_string_equal(buf_str(&f->server->method), "POST /hook");
    assert_string_equal(buf_str(&f->server->asked_body), "{\"a\": 1}");
    const char *asked = buf_str(&f->server->asked_headers);
    static const char *const expected[] = {
        "content-type: application/json\n",
        "pgkin-task-id: 4711\n",
        "pgkin-attempt: 3\n",
        "pgkin-command: c.d-e_f\n",
        "idempotency-key: 0198-4711\n",
        "traceparent: " TRACE "\n",
        "X-Plain: eins\n",
        "Authorization: Bearer geheim\n",
        "X-Empty: \n",
        "User-Agent: pgkin/",
    };
    for (size_t i = 0; i < ARRAY_SIZE(expected); i++)
        assert_contains(asked, expected[i]);
    assert_null(strstr(asked, "webhook-"));
    assert_null(strstr(asked, "Expect"));

    // A changed secret needs no restart; another content type is the command's.
    set_secret(f, "token", "Bearer neu");
    f->t.command.http_headers =
        "{\"Authorization\": \"secret:token\", \"Content-Type\": \"application/x\"}";
    run(f);
    assert_contains(buf_str(&f->server->asked_headers), "Authorization: Bearer neu\n");
    assert_contains(buf_str(&f->server->asked_headers), "Content-Type: application/x\n");
    assert_null(strstr(buf_str(&f->server->asked_headers), "application/json"));
}

static void test_traceparent(void **state)
{
    struct fixture *f = *state;
    static const char *const bad[] = {
        NULL,
        "{}",
        "[]",
        "not json",
        "{\"traceparent\": 1}",
        "{\"traceparent\": \"\"}",
        "{\"traceparent\": \"" TRACE "x\"}",
        "{\"traceparent\": \"ff-0af7651916cd43dd8448eb211c80319c-b7ad6b7169203331-01\"}",
        "{\"traceparent\": \"00-00000000000000000000000000000000-b7ad6b7169203331-01\"}",
        "{\"traceparent\": \"00-0af7651916cd43dd8448eb211c80319c-0000000000000000-01\"}",
        "{\"traceparent\": \"00-0AF7651916cd43dd8448eb211c80319c-b7ad6b7169203331-01\"}",
        "{\"traceparent\": "
        "\"00-0af7651916cd43dd8448eb211c80319c-b7ad6b7169203\\r\\n1-01\"}",
    };
    for (size_t i = 0; i < ARRAY_SIZE(bad); i++) {
        f->t.attempt.task.headers = bad[i];
        run(f);
        assert_int_equal(f->t.outcome, ATTEMPT_COMPLETED);
        assert_null(strstr(buf_str(&f->server->asked_headers), "traceparent"));
    }
}

// The value of a header that the server was sent.
static char *asked_header(const struct fixture *f, const char *name)
{
    char *start = xasprintf("%s: ", name);
    const char *line = strstr(buf_str(&f->server->asked_headers), start);
    if (line == NULL)
        fail_msg("no header %s", name);
    line += strlen(start);
    char *value = xasprintf("%.*s", (int)strcspn(line, "\n"), line);
    free(start);
    return value;
}

static void check_signature(struct fixture *f, const char *key, size_t key_len)
{
    char *id = asked_header(f, "webhook-id");
    char *timestamp = asked_header(f, "webhook-timestamp");
    char *signature = asked_header(f, "webhook-signature");
    assert_string_equal(id, "0198-4711");
    long long age = (long long)time(NULL) - atoll(timestamp);
    assert_in_range(age, 0, 30);
    char *text = xasprintf("%s.%s.%s", id, timestamp, buf_str(&f->server->asked_body));
    struct hmac_sha256 h;
    unsigned char sum[SHA256_SIZE];
    struct buf expected = BUF_INIT;
    hmac_sha256_init(&h, key, key_len);
    hmac_sha256_add(&h, text, strlen(text));
    hmac_sha256_finish(&h, sum);
    buf_adds(&expected, "v1,");
    base64_encode(&expected, sum, sizeof sum);
    assert_string_equal(signature, buf_str(&expected));
    buf_clear(&expected);
    free(text);
    free(id);
    free(timestamp);
    free(signature);
}

static void test_signature(void **state)
{
    struct fixture *f = *state;
    f->t.command.signing_secret = "secret:sign";
    set_secret(f, "sign", "plain text\n");
    run(f);
    check_signature(f, "plain text", 10);
    set_secret(f, "sign", "whsec_Zm9vYmFy\n");
    run(f);
    check_signature(f, "foobar", 6);

    // Nothing is sent unsigned that should be signed.
    int before = f->server->requests;
    static const struct {
        const char *value, *error;
        enum attempt_outcome outcome;
    } bad[] = {
        {"whsec_!geheim", "no base64 after whsec_", ATTEMPT_FATAL},
        {"whsec_", "the signing secret is empty", ATTEMPT_FATAL},
        {"", "the signing secret is empty", ATTEMPT_FATAL},
    };
    for (size_t i = 0; i < ARRAY_SIZE(bad); i++) {
        set_secret(f, "sign", bad[i].value);
        run(f);
        assert_int_equal(f->t.outcome, bad[i].outcome);
        assert_contains(f->t.error, bad[i].error);
        assert_null(strstr(f->t.error, "geheim"));
    }
    f->t.command.signing_secret = "secret:gone";
    run(f);
    assert_int_equal(f->t.outcome, ATTEMPT_FAILED);
    assert_contains(f->t.error, "cannot read secret gone");
    f->t.command.signing_secret = "geheim";
    run(f);
    assert_contains(f->t.error, "a secret is written secret:NAME");
    assert_null(strstr(f->t.error, "geheim"));
    assert_int_equal(f->server->requests, before);
}

static void test_bad_headers(void **state)
{
    struct fixture *f = *state;
    set_secret(f, "token", "geheim\r\nInjected: yes");
    static const struct {
        const char *headers, *error;
        enum attempt_outcome outcome;
    } bad[] = {
        {"[]", "not a JSON object", ATTEMPT_FATAL},
        {"{", "not a JSON object", ATTEMPT_FATAL},
        {"{\"a\": 1}", "value of header a is not a string", ATTEMPT_FATAL},
        {"{\"a\": null}", "is not a string", ATTEMPT_FATAL},
        {"{\"a\": \"x\\r\\nInjected: yes\"}", "control character", ATTEMPT_FATAL},
        {"{\"a\": \"x\\nInjected: yes\"}", "control character", ATTEMPT_FATAL},
        {"{\"a\": \"x\\u0000\"}", "not a JSON object", ATTEMPT_FATAL},
        {"{\"a\\r\\nb\": \"x\"}", "is not a name", ATTEMPT_FATAL},
        {"{\"a b\": \"x\"}", "is not a name", ATTEMPT_FATAL},
        {"{\"\": \"x\"}", "is not a name", ATTEMPT_FATAL},
        {"{\"a\": \"x\", \"A\": \"y\"}", "there twice", ATTEMPT_FATAL},
        {"{\"Host\": \"x\"}", "the header Host cannot be set", ATTEMPT_FATAL},
        {"{\"Content-Length\": \"0\"}", "cannot be set", ATTEMPT_FATAL},
        {"{\"Webhook-Signature\": \"v1,x\"}", "cannot be set", ATTEMPT_FATAL},
        {"{\"pgkin-task-id\": \"1\"}", "cannot be set", ATTEMPT_FATAL},
        {"{\"Idempotency-Key\": \"1\"}", "cannot be set", ATTEMPT_FATAL},
        {"{\"a\": \"secret:token\"}", "control character", ATTEMPT_FATAL},
        {"{\"a\": \"secret:../token\"}", "a secret is written", ATTEMPT_FAILED},
        {"{\"a\": \"secret:gone\"}", "cannot read secret gone", ATTEMPT_FAILED},
    };
    for (size_t i = 0; i < ARRAY_SIZE(bad); i++) {
        f->t.command.http_headers = bad[i].headers;
        run(f);
        assert_contains(f->t.error, bad[i].error);
        assert_int_equal(f->t.outcome, bad[i].outcome);
        assert_null(strstr(f->t.error, "geheim"));
    }
    assert_int_equal(f->server->requests, 0);
}

static void test_bad_targets(void **state)
{
    struct fixture *f = *state;
    static const struct {
        const char *url, *error;
    } bad[] = {
        {NULL, "the command has no url"},
        {"", "must begin with http:// or https://"},
        {"file:///etc/passwd", "must begin with http:// or https://"},
        {"http://user:geheim@127.0.0.1/", "must not have a user or password"},
        {"http://127.0.0.1/\r\nX: y", "must be percent-encoded"},
        {"http://10.0.0.1/", "refused to connect to 10.0.0.1: a private address"},
        {"http://0xa000001/", "refused to connect to 10.0.0.1: a private address"},
    };
    for (size_t i = 0; i < ARRAY_SIZE(bad); i++) {
        f->t.command.url = bad[i].url;
        run(f);
        assert_int_equal(f->t.outcome, ATTEMPT_FATAL);
        assert_contains(f->t.error, bad[i].error);
    }
    f->t.command.url = f->url;
    f->t.command.allow_private = NULL;
    run(f);
    assert_int_equal(f->t.outcome, ATTEMPT_FATAL);
    assert_string_equal(f->t.error,
                        "refused to connect to 127.0.0.1: a loopback address");
    f->t.command.allow_private = (const char *const[]){"127.0.0.1/8", NULL};
    run(f);
    assert_int_equal(f->t.outcome, ATTEMPT_FATAL);
    assert_contains(f->t.error, "allow_private: \"127.0.0.1/8\" has bits set");
    assert_int_equal(f->server->requests, 0);
}

static void test_statuses(void **state)
{
    struct fixture *f = *state;
    static const struct {
        int status;
        enum attempt_outcome outcome;
    } cases[] = {
        {200, ATTEMPT_COMPLETED}, {201, ATTEMPT_COMPLETED}, {202, ATTEMPT_COMPLETED},
        {204, ATTEMPT_COMPLETED}, {299, ATTEMPT_COMPLETED}, {300, ATTEMPT_FATAL},
        {301, ATTEMPT_FATAL},     {302, ATTEMPT_FATAL},     {304, ATTEMPT_FATAL},
        {307, ATTEMPT_FATAL},     {400, ATTEMPT_FATAL},     {401, ATTEMPT_FATAL},
        {403, ATTEMPT_FATAL},     {404, ATTEMPT_FATAL},     {408, ATTEMPT_FAILED},
        {409, ATTEMPT_SNOOZED},   {410, ATTEMPT_FATAL},     {413, ATTEMPT_FATAL},
        {422, ATTEMPT_FATAL},     {425, ATTEMPT_SNOOZED},   {429, ATTEMPT_SNOOZED},
        {499, ATTEMPT_FATAL},     {500, ATTEMPT_FAILED},    {501, ATTEMPT_FAILED},
        {502, ATTEMPT_FAILED},    {503, ATTEMPT_SNOOZED},   {504, ATTEMPT_FAILED},
        {599, ATTEMPT_FAILED},    {600, ATTEMPT_FAILED},
    };
    for (size_t i = 0; i < ARRAY_SIZE(cases); i++) {
        f->server->status = cases[i].status;
        run(f);
        if (f->t.outcome != cases[i].outcome)
            fail_msg("%d: outcome %d", cases[i].status, (int)f->t.outcome);
        assert_int_equal(f->t.delay_ms, f->t.outcome == ATTEMPT_SNOOZED ? 30000 : 0);
        assert_null(f->t.result);
        char expected[60];
        snprintf(expected, sizeof expected, "HTTP %d%s", cases[i].status,
                 cases[i].status / 100 == 3 ? ": redirects are not followed" : "");
        assert_text(f->t.error, f->t.outcome == ATTEMPT_COMPLETED ? NULL : expected);
    }
}

static void test_retry_after(void **state)
{
    struct fixture *f = *state;
    static const struct {
        int status;
        const char *value;
        int64_t least, most;
    } cases[] = {
        {429, "7", 7000, 7000},
        {409, "1", 1000, 1000},
        {425, "3", 3000, 3000},
        {503, "86400", 86400000, 86400000},
        {503, "86401", 86400000, 86400000},
        {503, "0", 30000, 30000},
        {503, "later", 30000, 30000},
        {503, "Fri, 31 Dec 1999 23:59:59 GMT", 30000, 30000},
        {503, "Fri, 31 Dec 2100 23:59:59 GMT", 86400000, 86400000},
        {500, "7", 7000, 7000}, // instead of the backoff
        {500, NULL, 0, 0},
        {404, "7", 0, 0},
    };
    for (size_t i = 0; i < ARRAY_SIZE(cases); i++) {
        f->server->status = cases[i].status;
        f->server->headers[0] = cases[i].value != NULL ? "Retry-After" : NULL;
        f->server->headers[1] = cases[i].value;
        run(f);
        assert_in_range(f->t.delay_ms, cases[i].least, cases[i].most);
    }
    char date[64];
    time_t soon = time(NULL) + 60;
    struct tm tm;
    strftime(date, sizeof date, "%a, %d %b %Y %H:%M:%S GMT", gmtime_r(&soon, &tm));
    f->server->status = 503;
    f->server->headers[0] = "Retry-After";
    f->server->headers[1] = date;
    run(f);
    assert_in_range(f->t.delay_ms, 30001, 60000);
}

static void test_results(void **state)
{
    struct fixture *f = *state;
    static const struct {
        const char *body, *result;
    } cases[] = {
        {"", NULL},
        {" \r\n", NULL},
        {"{\"b\": [1, 2.50]}", "{\"b\": [1, 2.50]}"},
        {"12345678901234567890", "12345678901234567890"},
        {"true", "true"},
        {"\"text\"", "\"text\""},
        {"ok", "{\"body\":\"ok\"}"},
        {"<p>\n\"x\"", "{\"body\":\"<p>\\n\\\"x\\\"\"}"},
        {"{\"a\":1,}", "{\"body\":\"{\\\"a\\\":1,}\"}"},
        {"caf\xe9", "{\"body\":\"caf\xef\xbf\xbd\"}"},
        // JSON, but not to PostgreSQL.
        {"\"\\u0000\"", "{\"body\":\"\\\"\\\\u0000\\\"\"}"},
        {"\"\\ud800\"", "{\"body\":\"\\\"\\\\ud800\\\"\"}"},
        {"1e-20000", "{\"body\":\"1e-20000\"}"},
        {"1e99999", "{\"body\":\"1e99999\"}"},
        {"0e99999999999", "{\"body\":\"0e99999999999\"}"},
    };
    for (size_t i = 0; i < ARRAY_SIZE(cases); i++) {
        f->server->body = cases[i].body;
        run(f);
        assert_int_equal(f->t.outcome, ATTEMPT_COMPLETED);
        assert_text(f->t.result, cases[i].result);
    }
    char *big = xmalloc(70001);
    memset(big, 'x', 70000);
    big[70000] = '\0';
    f->server->body = big;
    run(f);
    assert_int_equal(strlen(f->t.result),
                     strlen("{\"body\":\"\",\"truncated\":true}") + 65536);
    free(big);
}

static void test_errors(void **state)
{
    struct fixture *f = *state;
    f->server->status = 422;
    f->server->body = "{\"error\": \"no such customer\"}\n";
    run(f);
    assert_text(f->t.error, "HTTP 422: {\"error\": \"no such customer\"}");
    f->server->body = "caf\xe9 \xf0\x9f";
    run(f);
    assert_text(f->t.error, "HTTP 422: caf\xef\xbf\xbd \xef\xbf\xbd");
    char *big = xmalloc(5001);
    memset(big, 'x', 5000);
    big[5000] = '\0';
    f->server->body = big;
    run(f);
    assert_int_equal(strlen(f->t.error), strlen("HTTP 422: ") + 2000);
    free(big);
}

static void test_size_limit(void **state)
{
    struct fixture *f = *state;
    f->t.command.max_response_bytes = 100;
    f->server->body = "0123456789";
    f->server->handle = server_stream;
    run(f);
    assert_int_equal(f->t.outcome, ATTEMPT_FATAL);
    assert_text(f->t.error, "HTTP 200: the answer has more than 100 bytes");
    run_until(f->base, f->server->closed);
    evhttp_send_reply_end(f->server->abandoned);
    f->server->abandoned = NULL;

    // A server that fails with many words has failed.
    f->server->closed = false;
    f->server->status = 500;
    run(f);
    assert_int_equal(f->t.outcome, ATTEMPT_FAILED);
    assert_contains(f->t.error, "HTTP 500: 0123456789");
    run_until(f->base, f->server->closed);
}

static void test_broken_connections(void **state)
{
    struct fixture *f = *state;
    struct raw_server *raw = raw_server_new(f->base);
    char *url = xasprintf("http://127.0.0.1:%d/", raw->port);
    f->t.command.url = url;
    static const char *const replies[] = {
        "", "rubbish\r\n\r\n", "HTTP/1.1 200 OK\r\nContent-Length: 10\r\n\r\n{}",
        "HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\n2\r\n{}\r\n"};
    for (size_t i = 0; i < ARRAY_SIZE(replies); i++) {
        buf_reset(&raw->reply);
        buf_adds(&raw->reply, replies[i]);
        run(f);
        assert_int_equal(f->t.outcome, ATTEMPT_FAILED);
        assert_non_null(f->t.error);
        assert_null(f->t.result);
    }
    raw_server_free(raw);
    run(f);
    assert_int_equal(f->t.outcome, ATTEMPT_FAILED);
    assert_contains(f->t.error, "failed to connect to 127.0.0.1 port ");
    free(url);
}

static void redirect_to_self(struct server *s, struct evhttp_request *req)
{
    if (s->requests > 1) {
        server_reply(s, req);
        return;
    }
    evhttp_add_header(evhttp_request_get_output_headers(req), "Location", "/moved");
    evhttp_send_reply(req, 308, "moved", NULL);
}

static void test_redirect(void **state)
{
    struct fixture *f = *state;
    f->server->handle = redirect_to_self;
    f->t.command.max_redirects = 1;
    f->t.command.signing_secret = "secret:sign";
    set_secret(f, "sign", "geheim");
    run(f);
    assert_int_equal(f->t.outcome, ATTEMPT_COMPLETED);
    assert_string_equal(buf_str(&f->server->method), "POST /moved");
    check_signature(f, "geheim", 6);
}

static void test_stop(void **state)
{
    struct fixture *f = *state;
    struct trial *t = &f->t;
    f->server->handle = server_hold;
    kind_http.start(f->kind, &t->attempt);
    run_until(f->base, f->server->held_count == 1);
    assert_int_equal(t->ends, 0);
    kind_http.stop(f->kind, &t->attempt);
    assert_int_equal(t->ends, 1);
    assert_int_equal(t->outcome, ATTEMPT_FAILED);
    assert_text(t->error, "aborted");
    server_release(f->server);
    event_base_loop(f->base, EVLOOP_NONBLOCK);
    trial_clear(t);

    // Before anything has happened.
    kind_http.start(f->kind, &t->attempt);
    kind_http.stop(f->kind, &t->attempt);
    assert_int_equal(t->ends, 1);
}

// A command without a timeout is not waited for without end. One that has a
// timeout is the caller's business.
static void test_timeout(void **state)
{
    struct fixture *f = *state;
    f->server->handle = server_hold;
    assert_true(conf_set_flag(&f->conf, "http.timeout", "100ms", "-c", &f->e));
    run(f);
    assert_int_equal(f->t.outcome, ATTEMPT_FAILED);
    assert_contains(f->t.error, "timed out after 1");
    server_release(f->server);

    trial_clear(&f->t);
    f->t.command.timeout_ms = 3600000;
    kind_http.start(f->kind, &f->t.attempt);
    int64_t start_ms = loop_now_ms();
    run_until(f->base, loop_now_ms() - start_ms > 300);
    assert_int_equal(f->t.ends, 0);
    kind_http.stop(f->kind, &f->t.attempt);
    server_release(f->server);
}

#define TEST(name) cmocka_unit_test_setup_teardown(name, set_up, tear_down)

int main(void)
{
    const struct CMUnitTest tests[] = {
        TEST(test_request),
        TEST(test_traceparent),
        TEST(test_signature),
        TEST(test_bad_headers),
        TEST(test_bad_targets),
        TEST(test_statuses),
        TEST(test_retry_after),
        TEST(test_results),
        TEST(test_errors),
        TEST(test_size_limit),
        TEST(test_broken_connections),
        TEST(test_redirect),
        TEST(test_stop),
        TEST(test_timeout),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
