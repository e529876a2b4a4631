// SPDX-License-Identifier: Apache-2.0
//
// File deletion: by signed URLs, with a server that is both the service that
// signs and the store; and in a directory.

#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>

#include <cmocka.h>

#include <sys/stat.h>

#include "test_channel_common.h"

#define ARRAY_SIZE(a) (sizeof(a) / sizeof(a)[0])
#define PAYLOAD       "{\"bucket\": \"b\", \"object_key\": \"k/1\"}"

static struct server *server;
static char answer[256]; // of the service
static int sign_status;
static int store_status;
static struct buf asked;       // method and path of each request
static struct buf store_heads; // the headers that the store got
static char body[256];         // that the service got

static void serve(struct server *s, struct evhttp_request *req)
{
    bool sign = strcmp(evhttp_request_get_uri(req), "/sign") == 0;
    buf_addf(&asked, "%s;", buf_str(&s->method));
    if (sign)
        snprintf(body, sizeof body, "%s", buf_str(&s->asked_body));
    else
        buf_adds(&store_heads, buf_str(&s->asked_headers));
    s->status = sign ? sign_status : store_status;
    s->body = sign ? answer : "said the store";
    server_reply(s, req);
}

static int http_set_up(void **state)
{
    if (bench_set_up(state, &kind_file_delete) != 0)
        return -1;
    struct bench *b = *state;
    char url[64];
    server = server_new(b->base);
    server->handle = serve;
    snprintf(url, sizeof url, "http://127.0.0.1:%d/sign", server->port);
    snprintf(answer, sizeof answer,
             "{\"url\": \"http://127.0.0.1:%d/store/k?signature=geheim\"}", server->port);
    sign_status = 200;
    store_status = 204;
    bench_set(b, "files.provider", "http");
    bench_set(b, "files.url", url);
    bench_set(b, "files.allow_private", "127.0.0.0/8");
    bench_set(b, "files.headers", "{\"Authorization\": \"secret:token\"}");
    bench_secret(b, "token", "Bearer vertraulich");
    return 0;
}

static int http_tear_down(void **state)
{
    struct bench *b = *state;
    struct err e = ERR_INIT;
    conn_free(b->steps);
    b->steps = NULL;
    b->kind->close(b->self);
    b->self = b->kind->open(&b->rt, &e);
    server_free(server);
    buf_clear(&asked);
    buf_clear(&store_heads);
    return bench_tear_down(state);
}

static void test_signed(void **state)
{
    struct bench *b = *state;
    bench_send(b, PAYLOAD);
    assert_sql(b, STATE, "completed");
    assert_sql(b, FACT, "sent {\"deleted\": true}");
    assert_string_equal(buf_str(&asked), "POST /sign;DELETE /store/k?signature=geheim;");
    assert_string_equal(body, "{\"bucket\":\"b\",\"object_key\":\"k/1\"}");
    // What lets us in at the service is not for the store.
    assert_null(strstr(buf_str(&store_heads), "vertraulich"));
    assert_null(strstr(buf_str(&store_heads), "Authorization"));

    static const int gone[] = {404, 410};
    for (size_t i = 0; i < 2; i++) {
        store_status = gone[i];
        bench_send(b, PAYLOAD);
        assert_sql(b, FACT, "sent {\"deleted\": true, \"missing\": true}");
    }
}

static void test_failures(void **state)
{
    struct bench *b = *state;
    run_sql(b, "update worker.command_registry set max_attempts = 2"
               " where command = 'file_delete'");
    static const struct {
        int sign, store;
        const char *answer; // NULL: as it should be
        const char *state;
        const char *error;
    } cases[] = {
        {200, 403, NULL, "failed", "HTTP 403: said the store"},
        {200, 500, NULL, "pending", "HTTP 500: said the store"},
        // That the service knows nothing of the file does not mean it is gone.
        {404, 204, "none", "failed", "the files service: HTTP 404: none"},
        {503, 204, "later", "pending", "the files service: HTTP 503: later"},
        {200, 204, "nonsense", "pending",
         "cannot delete the file: the files service gave no url"},
        {200, 204, "{\"url\": 7}", "pending",
         "cannot delete the file: the files service gave no url"},
        {200, 204, "{\"url\": \"file:///etc/passwd\"}", "pending",
         "cannot delete the file: the url must begin with http:// or https://"},
        {200, 204, "{\"url\": \"http://169.254.169.254/latest\"}", "failed",
         "refused to connect to 169.254.169.254: a link-local address"},
    };
    char good[256];
    snprintf(good, sizeof good, "%s", answer);
    for (size_t i = 0; i < ARRAY_SIZE(cases); i++) {
        sign_status = cases[i].sign;
        store_status = cases[i].store;
        snprintf(answer, sizeof answer, "%s",
                 cases[i].answer != NULL ? cases[i].answer : good);
        bench_send(b, PAYLOAD);
        assert_sql(b, STATE, cases[i].state);
        assert_sql(b, ERROR, cases[i].error);
    }
    assert_sql(b, "select count(*) from queues.error where error_message ~ 'geheim'",
               "0");
    assert_null(strstr(buf_str(&b->lines), "geheim"));
}

static void test_stop(void **state)
{
    struct bench *b = *state;
    server->handle = server_hold;
    bench_task(b, PAYLOAD);
    b->kind->start(b->self, &b->t.attempt);
    run_until(b->base, server->held_count == 1);
    b->kind->stop(b->self, &b->t.attempt);
    assert_int_equal(b->t.ends, 1);
    assert_int_equal(b->t.outcome, ATTEMPT_FAILED);
    server_release(server);
}

// --------------------------------------------------------------------- local

static char store[128];

static int local_set_up(void **state)
{
    if (bench_set_up(state, &kind_file_delete) != 0)
        return -1;
    struct bench *b = *state;
    snprintf(store, sizeof store, "/tmp/pgkin-store-%d", (int)getpid());
    mkdir(store, 0700);
    bench_set(b, "files.directory", store);
    return 0;
}

static int local_tear_down(void **state)
{
    char path[160];
    snprintf(path, sizeof path, "%s/b", store);
    rmdir(path);
    rmdir(store);
    return bench_tear_down(state);
}

static void test_local(void **state)
{
    struct bench *b = *state;
    char path[160];
    snprintf(path, sizeof path, "%s/b", store);
    mkdir(path, 0700);
    snprintf(path, sizeof path, "%s/b/file", store);
    fclose(fopen(path, "w"));
    bench_send(b, "{\"bucket\": \"b\", \"object_key\": \"file\"}");
    assert_sql(b, FACT, "sent {\"deleted\": true}");
    assert_int_equal(access(path, F_OK), -1);
    bench_send(b, "{\"object_key\": \"b/file\"}");
    assert_sql(b, FACT, "sent {\"deleted\": true, \"missing\": true}");
    static const struct {
        const char *payload;
        const char *error;
    } bad[] = {
        {"{}", "the payload has no object_key"},
        {"{\"object_key\": 7}", "object_key is not a text"},
        {"{\"object_key\": \"x\", \"bucket\": []}", "bucket is not a text"},
        {"{\"object_key\": \"../x\"}", "\"../x\" is refused: it has . or .. in it"},
        {"{\"object_key\": \"/etc/passwd\"}",
         "\"/etc/passwd\" is refused: it has an empty name in it"},
        {"{\"bucket\": \"..\", \"object_key\": \"x\"}",
         "\"../x\" is refused: it has . or .. in it"},
        {"{\"bucket\": \"\", \"object_key\": \"etc/passwd\"}",
         "\"/etc/passwd\" is refused: it has an empty name in it"},
        {"{\"object_key\": \"b\"}", "\"b\" is refused: it is not a plain file"},
    };
    for (size_t i = 0; i < ARRAY_SIZE(bad); i++) {
        bench_send(b, bad[i].payload);
        assert_sql(b, STATE, "failed");
        assert_sql(b, ERROR, bad[i].error);
    }
}

static void test_not_set_up(void **state)
{
    struct bench *b = *state;
    bench_set(b, "files.directory", "relative");
    bench_send(b, PAYLOAD);
    assert_sql(b, ERROR, "files.directory is not an absolute path");
    bench_set(b, "files.provider", "http");
    bench_send(b, PAYLOAD);
    assert_sql(b, ERROR, "files.url is not set");
    assert_sql(b, "select what from app.fact", "failed");
}

#define WITH_HTTP(test) cmocka_unit_test_setup_teardown(test, http_set_up, http_tear_down)
#define WITH_LOCAL(test)                                                                 \
    cmocka_unit_test_setup_teardown(test, local_set_up, local_tear_down)

int main(void)
{
    const struct CMUnitTest tests[] = {
        WITH_HTTP(test_signed), WITH_HTTP(test_failures),    WITH_HTTP(test_stop),
        WITH_LOCAL(test_local), WITH_LOCAL(test_not_set_up),
    };
    return cmocka_run_group_tests(tests, bench_make_template, bench_drop_template);
}
