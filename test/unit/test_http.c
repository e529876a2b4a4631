// SPDX-License-Identifier: Apache-2.0

#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>

#include <cmocka.h>

#include <dirent.h>
#include <signal.h>

#include "core/http.h"
#include "test_http_server.h"

#define ARRAY_SIZE(a) (sizeof(a) / sizeof(a)[0])
#define MANY          500

struct fixture {
    struct event_base *base;
    struct http *http;
    struct server *server;
    struct address_net local; // 127.0.0.0/8
    struct err e;
};

// What came out of one request.
struct seen {
    int count;
    enum http_end end;
    int status;
    int64_t retry_after_ms;
    size_t body_len;
    char error[256];
    char body[256];
    char type[64];
};

static int set_up(void **state)
{
    struct fixture *f = xcalloc(1, sizeof *f);
    *state = f;
    signal(SIGPIPE, SIG_IGN);
    f->base = event_base_new();
    f->http =
        http_new(f->base, &(struct http_options){.connect_timeout_ms = 10000}, &f->e);
    f->server = server_new(f->base);
    return f->http != NULL && address_parse_net("127.0.0.0/8", &f->local, &f->e) ? 0 : -1;
}

static int tear_down(void **state)
{
    struct fixture *f = *state;
    http_free(f->http);
    server_free(f->server);
    event_base_free(f->base);
    free(f);
    return 0;
}

static void on_done(const struct http_answer *a, void *arg)
{
    struct seen *s = arg;
    *s = (struct seen){.count = s->count + 1,
                       .end = a->end,
                       .status = a->status,
                       .retry_after_ms = a->retry_after_ms,
                       .body_len = a->body_len};
    snprintf(s->error, sizeof s->error, "%s", a->error != NULL ? a->error : "");
    snprintf(s->body, sizeof s->body, "%s", a->body);
    snprintf(s->type, sizeof s->type, "%s", a->content_type);
}

static char *url_on(int port, const char *path)
{
    return xasprintf("http://127.0.0.1:%d%s", port, path);
}

static struct http_spec spec_for(struct fixture *f, struct seen *s)
{
    *s = (struct seen){0};
    return (struct http_spec){.body = "{}",
                              .body_len = 2,
                              .allow = &f->local,
                              .allow_count = 1,
                              .max_body_bytes = 1 << 20,
                              .done = on_done,
                              .arg = s};
}

// Sends and waits for the end.
static void run_request(struct fixture *f, const struct http_spec *spec)
{
    struct seen *s = spec->arg;
    if (http_send(f->http, spec, &f->e) == NULL)
        fail_msg("%s", f->e.msg);
    assert_int_equal(s->count, 0);
    run_until(f->base, s->count > 0);
    assert_int_equal(s->count, 1);
}

static void get_path(struct fixture *f, int port, const char *path, struct seen *s)
{
    struct http_spec spec = spec_for(f, s);
    char *url = url_on(port, path);
    spec.url = url;
    run_request(f, &spec);
    free(url);
}

static void assert_contains(const char *text, const char *part)
{
    if (strstr(text, part) == NULL)
        fail_msg("no \"%s\" in: %s", part, text);
}

static void test_post(void **state)
{
    struct fixture *f = *state;
    struct seen s;
    struct http_spec spec = spec_for(f, &s);
    const struct http_header headers[] = {
        {.name = "X-One", .value = "eins, zwei"},
        {.name = "X-Empty", .value = ""},
        {.name = "content-type", .value = "application/json"},
    };
    char *url = url_on(f->server->port, "/hook?a=b%20c#part");
    spec.url = url;
    spec.headers = headers;
    spec.header_count = ARRAY_SIZE(headers);
    spec.body = "{\"a\":\"\xc3\xa4\"}";
    spec.body_len = 10;
    f->server->body = "answer";
    f->server->headers[0] = "Content-Type";
    f->server->headers[1] = "text/plain";
    run_request(f, &spec);
    assert_int_equal(s.end, HTTP_ANSWERED);
    assert_int_equal(s.status, 200);
    assert_string_equal(s.body, "answer");
    assert_string_equal(s.type, "text/plain");
    assert_string_equal(buf_str(&f->server->method), "POST /hook?a=b%20c");
    assert_string_equal(buf_str(&f->server->asked_body), "{\"a\":\"\xc3\xa4\"}");
    const char *asked = buf_str(&f->server->asked_headers);
    assert_contains(asked, "X-One: eins, zwei\n");
    assert_contains(asked, "X-Empty: \n");
    assert_contains(asked, "content-type: application/json\n");
    assert_contains(asked, "User-Agent: pgkin/");
    assert_null(strstr(asked, "Expect"));
    free(url);
}

static void test_methods(void **state)
{
    struct fixture *f = *state;
    static const struct {
        const char *method, *body, *expected;
    } cases[] = {
        {NULL, NULL, "GET /"},     {NULL, "x", "POST /"}, {"GET", NULL, "GET /"},
        {"POST", NULL, "POST /"},  {"PUT", "x", "PUT /"}, {"DELETE", NULL, "DELETE /"},
        {"PATCH", "x", "PATCH /"},
    };
    char *url = url_on(f->server->port, "/");
    for (size_t i = 0; i < ARRAY_SIZE(cases); i++) {
        struct seen s;
        struct http_spec spec = spec_for(f, &s);
        spec.url = url;
        spec.method = cases[i].method;
        spec.body = cases[i].body;
        spec.body_len = cases[i].body != NULL ? 1 : 0;
        run_request(f, &spec);
        assert_int_equal(s.status, 200);
        assert_string_equal(buf_str(&f->server->method), cases[i].expected);
        assert_string_equal(buf_str(&f->server->asked_body),
                            cases[i].body != NULL ? cases[i].body : "");
        assert_null(strstr(buf_str(&f->server->asked_headers), "Content-Type"));
    }
    struct seen s;
    struct http_spec spec = spec_for(f, &s);
    spec.url = url;
    static const char *const bad[] = {"", "get", "GET /x", "A\r\nB"};
    for (size_t i = 0; i < ARRAY_SIZE(bad); i++) {
        spec.method = bad[i];
        assert_null(http_send(f->http, &spec, &f->e));
    }
    free(url);
}

// A large body goes at once, without asking.
static void test_large_post(void **state)
{
    struct fixture *f = *state;
    struct seen s;
    struct http_spec spec = spec_for(f, &s);
    size_t size = 8 << 20;
    char *body = xmalloc(size);
    memset(body, 'x', size);
    char *url = url_on(f->server->port, "/");
    spec.url = url;
    spec.body = body;
    spec.body_len = size;
    run_request(f, &spec);
    assert_int_equal(s.status, 200);
    assert_int_equal(f->server->asked_body.len, size);
    assert_null(strstr(buf_str(&f->server->asked_headers), "Expect"));
    free(url);
    free(body);
}

static void test_connection_is_reused(void **state)
{
    struct fixture *f = *state;
    struct seen s;
    get_path(f, f->server->port, "/", &s);
    int port = f->server->peer_port;
    for (int i = 0; i < 5; i++) {
        get_path(f, f->server->port, "/", &s);
        assert_int_equal(f->server->peer_port, port);
    }
    assert_int_equal(f->server->requests, 6);
}

static void test_status_and_retry_after(void **state)
{
    struct fixture *f = *state;
    static const struct {
        const char *value;
        int64_t least, most;
    } cases[] = {
        {"120", 120000, 120000},
        {"0", 0, 0},
        {"-5", 0, 0},
        {"soon", 0, 0},
        {"99999999999999999999999", 0, (int64_t)INT32_MAX * 1000},
        {"Fri, 31 Dec 1999 23:59:59 GMT", 0, 0},
        {"Fri, 31 Dec 2100 23:59:59 GMT", 86400000, (int64_t)INT32_MAX * 2000},
    };
    f->server->status = 503;
    f->server->headers[0] = "Retry-After";
    for (size_t i = 0; i < ARRAY_SIZE(cases); i++) {
        struct seen s;
        f->server->headers[1] = cases[i].value;
        get_path(f, f->server->port, "/", &s);
        assert_int_equal(s.end, HTTP_ANSWERED);
        assert_int_equal(s.status, 503);
        assert_in_range(s.retry_after_ms, cases[i].least, cases[i].most);
    }
    f->server->headers[0] = NULL;
    static const int statuses[] = {200, 201, 302, 400, 404, 429, 500, 599};
    for (size_t i = 0; i < ARRAY_SIZE(statuses); i++) {
        struct seen s;
        f->server->status = statuses[i];
        get_path(f, f->server->port, "/", &s);
        assert_int_equal(s.end, HTTP_ANSWERED);
        assert_int_equal(s.status, statuses[i]);
        assert_int_equal(s.retry_after_ms, 0);
    }
}

static void test_chunked(void **state)
{
    struct fixture *f = *state;
    struct raw_server *raw = raw_server_new(f->base);
    struct seen s;
    buf_adds(&raw->reply, "HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\n"
                          "3\r\nabc\r\n4\r\ndefg\r\n0\r\n\r\n");
    get_path(f, raw->port, "/", &s);
    assert_int_equal(s.end, HTTP_ANSWERED);
    assert_string_equal(s.body, "abcdefg");
    raw_server_free(raw);
}

// Limits: what fits is taken, one byte more is not, and what never ends is cut.
static void test_too_large(void **state)
{
    struct fixture *f = *state;
    struct seen s;
    struct http_spec spec = spec_for(f, &s);
    char *url = url_on(f->server->port, "/");
    spec.url = url;
    f->server->body = "12345";
    spec.max_body_bytes = 5;
    run_request(f, &spec);
    assert_int_equal(s.end, HTTP_ANSWERED);
    spec = spec_for(f, &s);
    spec.url = url;
    spec.max_body_bytes = 4;
    run_request(f, &spec);
    assert_int_equal(s.end, HTTP_TOO_LARGE);
    assert_string_equal(s.error, "the answer is too large");
    assert_int_equal(s.status, 200);
    assert_string_equal(s.body, "1234");
    spec = spec_for(f, &s);
    spec.url = url;
    spec.max_body_bytes = 0;
    run_request(f, &spec);
    assert_int_equal(s.end, HTTP_TOO_LARGE);

    f->server->handle = server_stream;
    spec = spec_for(f, &s);
    spec.url = url;
    spec.max_body_bytes = 1000;
    run_request(f, &spec);
    assert_int_equal(s.end, HTTP_TOO_LARGE);
    assert_int_equal(s.body_len, 1000);
    run_until(f->base, f->server->closed);
    free(url);
}

static void test_headers_without_end(void **state)
{
    struct fixture *f = *state;
    struct raw_server *raw = raw_server_new(f->base);
    struct seen s;
    buf_adds(&raw->reply, "HTTP/1.1 200 OK\r\n");
    for (int i = 0; i < 20000; i++)
        buf_addf(&raw->reply, "X-%d: and another one\r\n", i);
    get_path(f, raw->port, "/", &s);
    assert_int_equal(s.end, HTTP_TOO_LARGE);
    raw_server_free(raw);
}

static void test_no_http(void **state)
{
    struct fixture *f = *state;
    struct raw_server *raw = raw_server_new(f->base);
    static const char *const replies[] = {
        "",
        "hello\r\n",
        "SSH-2.0-OpenSSH_9.2\r\n",
        "HTTP/1.1 200 OK\r\nContent-Length: 10\r\n\r\nabc",
        "HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\n5\r\nab",
        "HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\nxyz\r\n",
        "HTTP/1.1 200 OK\r\nContent-Length: -1\r\n\r\n",
    };
    for (size_t i = 0; i < ARRAY_SIZE(replies); i++) {
        struct seen s;
        buf_reset(&raw->reply);
        buf_adds(&raw->reply, replies[i]);
        get_path(f, raw->port, "/", &s);
        if (s.end != HTTP_FAILED)
            fail_msg("reply %zu ends %d", i, (int)s.end);
        assert_string_not_equal(s.error, "");
        assert_true(s.error[0] < 'A' || s.error[0] > 'Z' ||
                    strncmp(s.error, "HTTP", 4) == 0);
    }
    int port = raw->port;
    raw_server_free(raw);
    struct seen s;
    get_path(f, port, "/", &s);
    assert_int_equal(s.end, HTTP_FAILED);
    assert_contains(s.error, "ailed to connect");
}

// No answer, and one that comes a byte at a time: the limit is for the whole.
static void test_timeout(void **state)
{
    struct fixture *f = *state;
    struct seen s;
    struct http_spec spec = spec_for(f, &s);
    char *url = url_on(f->server->port, "/");
    spec.url = url;
    spec.timeout_ms = 100;
    f->server->handle = server_hold;
    run_request(f, &spec);
    assert_int_equal(s.end, HTTP_TIMED_OUT);
    assert_contains(s.error, "timed out");
    server_release(f->server);

    f->server->handle = server_stream;
    f->server->body = "x";
    spec = spec_for(f, &s);
    spec.url = url;
    spec.timeout_ms = 200;
    run_request(f, &spec);
    assert_int_equal(s.end, HTTP_TIMED_OUT);
    run_until(f->base, f->server->closed);
    free(url);
}

// However it is written, this machine is not called.
static void test_refused_addresses(void **state)
{
    struct fixture *f = *state;
    static const char *const hosts[] = {
        "127.0.0.1",
        "127.1",
        "127.0.1",
        "2130706433",
        "0x7f000001",
        "0x7f.0.0.1",
        "0177.0.0.1",
        "017700000001",
        "0",
        "0.0.0.0",
        "localhost",
        "LOCALHOST",
        "[::1]",
        "[::]",
        "[::ffff:127.0.0.1]",
        "[::ffff:7f00:1]",
        "[0:0:0:0:0:ffff:127.0.0.1]",
        "[64:ff9b::127.0.0.1]",
        "[2002:7f00:1::]",
        "169.254.169.254",
        "10.0.0.1",
        "[fd00:ec2::254]",
        "127.0.0.1.",
    };
    struct seen s;
    struct http_spec spec = spec_for(f, &s);
    spec.allow_count = 0;
    for (size_t i = 0; i < ARRAY_SIZE(hosts); i++) {
        char *url = xasprintf("http://%s:%d/", hosts[i], f->server->port);
        s = (struct seen){0};
        spec.url = url;
        // libcurl, the resolver or the list: somebody says no.
        if (http_send(f->http, &spec, &f->e) != NULL) {
            run_until(f->base, s.count > 0);
            if (s.end == HTTP_ANSWERED)
                fail_msg("%s was called", url);
            if (i < 11) {
                assert_int_equal(s.end, HTTP_REFUSED);
                assert_contains(s.error, "refused to connect to ");
            }
        }
        free(url);
    }
    assert_int_equal(f->server->requests, 0);
}

static void test_allowed_network(void **state)
{
    struct fixture *f = *state;
    struct seen s;
    struct http_spec spec = spec_for(f, &s);
    char *url = xasprintf("http://localhost:%d/", f->server->port);
    spec.url = url;
    // ::1 is refused, 127.0.0.1 is not: the one that may be called is.
    run_request(f, &spec);
    assert_int_equal(s.end, HTTP_ANSWERED);
    free(url);
}

// A connection that somebody else was allowed to open is not there for all.
static void test_reuse_is_checked(void **state)
{
    struct fixture *f = *state;
    struct seen s;
    get_path(f, f->server->port, "/", &s);
    assert_int_equal(s.end, HTTP_ANSWERED);
    struct http_spec spec = spec_for(f, &s);
    char *url = url_on(f->server->port, "/");
    spec.url = url;
    spec.allow_count = 0;
    run_request(f, &spec);
    assert_int_equal(s.end, HTTP_REFUSED);
    assert_string_equal(s.error, "refused to connect to 127.0.0.1: a loopback address");
    assert_int_equal(f->server->requests, 1);
    get_path(f, f->server->port, "/", &s);
    assert_int_equal(s.end, HTTP_ANSWERED);
    free(url);
}

// ------------------------------------------------------------------ redirects

struct redirector {
    struct server *target;
    int status;
    char location[200]; // "" once it is used up
};
static struct redirector redirect;

static void redirect_once(struct server *s, struct evhttp_request *req)
{
    if (redirect.location[0] != '\0') {
        evhttp_add_header(evhttp_request_get_output_headers(req), "Location",
                          redirect.location);
        redirect.location[0] = '\0';
        evhttp_send_reply(req, redirect.status, "there", NULL);
    } else {
        server_reply(s, req);
    }
}

static void redirect_always(struct server *s, struct evhttp_request *req)
{
    (void)s;
    evhttp_add_header(evhttp_request_get_output_headers(req), "Location", "/again");
    evhttp_send_reply(req, 307, "there", NULL);
}

static void run_redirect(struct fixture *f, struct seen *s, int status,
                         const char *location, int max)
{
    static const struct http_header headers[] = {
        {.name = "x-secret", .value = "geheim", .same_origin = true},
        {.name = "x-public", .value = "offen"},
    };
    struct http_spec spec = spec_for(f, s);
    char *url = url_on(f->server->port, "/start");
    redirect.status = status;
    snprintf(redirect.location, sizeof redirect.location, "%s", location);
    f->server->handle = redirect_once;
    spec.url = url;
    spec.headers = headers;
    spec.header_count = ARRAY_SIZE(headers);
    spec.max_redirects = max;
    run_request(f, &spec);
    free(url);
}

static void test_redirects(void **state)
{
    struct fixture *f = *state;
    struct seen s;
    run_redirect(f, &s, 302, "/there", 0);
    assert_int_equal(s.end, HTTP_ANSWERED);
    assert_int_equal(s.status, 302);

    static const int kept[] = {301, 302, 307, 308};
    for (size_t i = 0; i < ARRAY_SIZE(kept); i++) {
        run_redirect(f, &s, kept[i], "/there", 1);
        assert_int_equal(s.end, HTTP_ANSWERED);
        assert_int_equal(s.status, 200);
        assert_string_equal(buf_str(&f->server->method), "POST /there");
        assert_string_equal(buf_str(&f->server->asked_body), "{}");
        assert_contains(buf_str(&f->server->asked_headers), "x-secret: geheim");
    }
    run_redirect(f, &s, 303, "/there", 1);
    assert_string_equal(buf_str(&f->server->method), "GET /there");
    assert_string_equal(buf_str(&f->server->asked_body), "");

    f->server->requests = 0;
    struct http_spec spec = spec_for(f, &s);
    char *url = url_on(f->server->port, "/start");
    spec.url = url;
    spec.max_redirects = 3;
    f->server->handle = redirect_always;
    run_request(f, &spec);
    assert_int_equal(s.end, HTTP_BAD_REDIRECT);
    assert_string_equal(s.error, "more than 3 redirects");
    assert_int_equal(f->server->requests, 4);
    free(url);
}

static void test_bad_redirects(void **state)
{
    struct fixture *f = *state;
    static const char *const bad[] = {
        "ftp://127.0.0.1/x",
        "file:///etc/passwd",
        "gopher://127.0.0.1:1/x",
        "http://u:p@127.0.0.1/",
        "javascript:alert(1)",
        "dict://127.0.0.1:11211/stats",
        "http://",
    };
    struct seen s;
    for (size_t i = 0; i < ARRAY_SIZE(bad); i++) {
        run_redirect(f, &s, 307, bad[i], 5);
        if (s.end != HTTP_BAD_REDIRECT)
            fail_msg("%s ends %d: %s", bad[i], (int)s.end, s.error);
    }
    assert_int_equal(f->server->requests, ARRAY_SIZE(bad));
    // Each hop is checked anew.
    char location[100];
    snprintf(location, sizeof location, "http://[::1]:%d/", f->server->port);
    run_redirect(f, &s, 307, location, 5);
    assert_int_equal(s.end, HTTP_REFUSED);
    run_redirect(f, &s, 307, "http://169.254.169.254/latest/meta-data/", 5);
    assert_int_equal(s.end, HTTP_REFUSED);
    assert_string_equal(s.error,
                        "refused to connect to 169.254.169.254: a link-local address");
}

// What was meant for one server is not told to another, nor to another port.
static void test_redirect_to_another_server(void **state)
{
    struct fixture *f = *state;
    struct server *other = server_new(f->base);
    struct seen s;
    char location[100];
    snprintf(location, sizeof location, "http://127.0.0.1:%d/other", other->port);
    run_redirect(f, &s, 307, location, 1);
    assert_int_equal(s.end, HTTP_ANSWERED);
    assert_string_equal(buf_str(&other->method), "POST /other");
    assert_string_equal(buf_str(&other->asked_body), "{}");
    assert_contains(buf_str(&other->asked_headers), "x-public: offen");
    assert_null(strstr(buf_str(&other->asked_headers), "x-secret"));
    server_free(other);
}

// ------------------------------------------------------------------- injection

static void test_bad_urls(void **state)
{
    struct fixture *f = *state;
    static const char *const bad[] = {
        "",
        "/",
        "example.org",
        "//example.org/",
        "http:/example.org/",
        "http:///x",
        "http://",
        "http://?x",
        "http://#x",
        "http://:80/",
        "https:example.org",
        "ftp://example.org/",
        "file:///etc/passwd",
        "gopher://example.org:25/_MAIL",
        "dict://example.org:11211/stats",
        "ldap://example.org/",
        "smtp://example.org/",
        "unix:///run/docker.sock",
        "javascript:alert(1)",
        "data:text/plain,x",
        "http://user@example.org/",
        "http://user:pass@example.org/",
        "http://@example.org/",
        "http://good.org@127.0.0.1/",
        "http://example.org/ HTTP/1.1\r\nX: y",
        "http://example.org/\r\nX-Injected: yes",
        "http://example.org/\n",
        "http://exa mple.org/",
        "http://example.org\\@127.0.0.1/",
        "http://example.org/\t",
        "http://ex\x01mple.org/",
        "http://example.org/\xc3\xa4",
        "http://\xe2\x91\xa0.example/",
        "http://example.org:99999/",
        "http://example.org:port/",
        "http://[::1",
        "http://[zz]/",
        "http://example.org:-1/",
    };
    struct seen s;
    struct http_spec spec = spec_for(f, &s);
    for (size_t i = 0; i < ARRAY_SIZE(bad); i++) {
        err_clear(&f->e);
        spec.url = bad[i];
        if (http_send(f->http, &spec, &f->e) != NULL)
            fail_msg("\"%s\" is taken", bad[i]);
        assert_string_not_equal(f->e.msg, "");
    }
    static const char *const good[] = {
        "http://example.org",          "https://example.org:8443/a/b?c=d&e=%0a#f",
        "HTTP://EXAMPLE.ORG/",         "http://[2001:db8::1]:80/",
        "https://xn--exmple-cua.org/", "http://a/?u=http://b/",
    };
    for (size_t i = 0; i < ARRAY_SIZE(good); i++) {
        if (!http_check_url(good[i], &f->e))
            fail_msg("%s: %s", good[i], f->e.msg);
    }
}

static void test_bad_headers(void **state)
{
    struct fixture *f = *state;
    static const struct http_header bad[] = {
        {.name = "", .value = "x"},
        {.name = "a b", .value = "x"},
        {.name = "a:", .value = "x"},
        {.name = "a;", .value = "x"},
        {.name = "a\r\nb", .value = "x"},
        {.name = "a\nb", .value = "x"},
        {.name = "\xc3\xa4", .value = "x"},
        {.name = "a(b)", .value = "x"},
        {.name = "@file", .value = "x"},
        {.name = "x", .value = "geheim\r\nInjected: yes"},
        {.name = "x", .value = "geheim\nInjected: yes"},
        {.name = "x", .value = "geheim\rInjected: yes"},
        {.name = "x", .value = "\r\n\r\nGET /admin HTTP/1.1\r\n"},
        {.name = "x", .value = "geheim\x0b"},
        {.name = "x", .value = "geheim\x7f"},
        {.name = "x", .value = "geheim\x1b[31m"},
        {.name = "Host", .value = "internal"},
        {.name = "content-LENGTH", .value = "0"},
        {.name = "Transfer-Encoding", .value = "chunked"},
        {.name = "Connection", .value = "close"},
        {.name = "Expect", .value = "100-continue"},
        {.name = "Upgrade", .value = "h2c"},
        {.name = "Proxy-Authorization", .value = "x"},
        {.name = "TE", .value = "trailers"},
    };
    struct seen s;
    struct http_spec spec = spec_for(f, &s);
    char *url = url_on(f->server->port, "/");
    spec.url = url;
    spec.header_count = 1;
    for (size_t i = 0; i < ARRAY_SIZE(bad); i++) {
        err_clear(&f->e);
        spec.headers = &bad[i];
        if (http_send(f->http, &spec, &f->e) != NULL)
            fail_msg("\"%s: %s\" is taken", bad[i].name, bad[i].value);
        assert_string_not_equal(f->e.msg, "");
        assert_null(strstr(f->e.msg, "geheim"));
    }
    static const struct http_header good[] = {
        {.name = "x", .value = "a\tb"},
        {.name = "x", .value = " a:b;c=\"d\" "},
        {.name = "x", .value = "\xc3\xa4"},
        {.name = "!#$%&'*+-.^_`|~0aZ", .value = "x"},
    };
    for (size_t i = 0; i < ARRAY_SIZE(good); i++)
        assert_true(http_check_header(good[i].name, good[i].value, &f->e));
    free(url);
}

// ------------------------------------------------------------------ abort, many

static void test_abort(void **state)
{
    struct fixture *f = *state;
    struct seen s;
    struct http_spec spec = spec_for(f, &s);
    char *url = url_on(f->server->port, "/");
    spec.url = url;
    // At once, while it waits, and in the middle of an answer.
    http_abort(http_send(f->http, &spec, &f->e));
    f->server->handle = server_hold;
    struct http_request *r = http_send(f->http, &spec, &f->e);
    run_until(f->base, f->server->held_count == 1);
    http_abort(r);
    server_release(f->server);
    f->server->handle = server_stream;
    f->server->body = "x";
    r = http_send(f->http, &spec, &f->e);
    run_until(f->base, f->server->streaming != NULL);
    http_abort(r);
    run_until(f->base, f->server->closed);
    assert_int_equal(s.count, 0);
    free(url);
}

struct pair {
    struct http_request *other;
    int done;
};

static void abort_other(const struct http_answer *a, void *arg)
{
    (void)a;
    struct pair **pairs = arg;
    pairs[0]->done++;
    if (pairs[1]->other != NULL) {
        http_abort(pairs[1]->other);
        pairs[0]->other = NULL;
        pairs[1]->other = NULL;
    }
}

// Both are answered in the same moment; the first to know aborts the other.
static void test_abort_from_callback(void **state)
{
    struct fixture *f = *state;
    struct seen s;
    char *url = url_on(f->server->port, "/");
    for (int round = 0; round < 20; round++) {
        struct pair a = {0}, b = {0};
        struct pair *ab[] = {&a, &b}, *ba[] = {&b, &a};
        struct http_spec spec = spec_for(f, &s);
        spec.url = url;
        spec.done = abort_other;
        f->server->handle = server_hold;
        spec.arg = ab;
        a.other = http_send(f->http, &spec, &f->e);
        spec.arg = ba;
        b.other = http_send(f->http, &spec, &f->e);
        run_until(f->base, f->server->held_count == 2);
        server_release(f->server);
        run_until(f->base, a.done + b.done > 0);
        for (int i = 0; i < 5; i++)
            event_base_loop(f->base, EVLOOP_NONBLOCK);
        assert_int_equal(a.done + b.done, 1);
    }
    free(url);
}

static int count_fds(void)
{
    DIR *dir = opendir("/proc/self/fd");
    int n = 0;
    while (readdir(dir) != NULL)
        n++;
    closedir(dir);
    return n;
}

static size_t count_done(const struct seen *s, size_t n)
{
    size_t done = 0;
    for (size_t i = 0; i < n; i++)
        done += s[i].count > 0;
    return done;
}

// The server answers when all requests have come in: they must be under way at
// the same time. PGKIN_TEST_SCALE=10 makes it 5,000.
static void test_many_at_once(void **state)
{
    struct fixture *f = *state;
    const char *scale = getenv("PGKIN_TEST_SCALE");
    size_t many = MANY * (scale != NULL ? (size_t)atoi(scale) : 1);
    int fds = count_fds();
    struct seen *s = xcalloc(many, sizeof *s);
    char *url = url_on(f->server->port, "/");
    f->server->handle = server_hold;
    f->server->body = "{}";
    for (size_t i = 0; i < many; i++) {
        struct http_spec spec = spec_for(f, &s[i]);
        spec.url = url;
        assert_non_null(http_send(f->http, &spec, &f->e));
    }
    run_until(f->base, f->server->held_count == many);
    server_release(f->server);
    run_until(f->base, count_done(s, many) == many);
    for (size_t i = 0; i < many; i++) {
        assert_int_equal(s[i].count, 1);
        assert_int_equal(s[i].status, 200);
    }
    assert_true(count_fds() - fds <= (int)(2 * many + 10));
    free(url);
    free(s);
}

static void test_environment_is_ignored(void **state)
{
    struct fixture *f = *state;
    struct seen s;
    static const char *const names[] = {"http_proxy", "HTTP_PROXY", "all_proxy",
                                        "ALL_PROXY"};
    for (size_t i = 0; i < ARRAY_SIZE(names); i++)
        setenv(names[i], "http://127.0.0.1:1/", 1);
    get_path(f, f->server->port, "/", &s);
    for (size_t i = 0; i < ARRAY_SIZE(names); i++)
        unsetenv(names[i]);
    assert_int_equal(s.end, HTTP_ANSWERED);
}

static void test_no_cookies(void **state)
{
    struct fixture *f = *state;
    struct seen s;
    f->server->headers[0] = "Set-Cookie";
    f->server->headers[1] = "a=b; Path=/";
    get_path(f, f->server->port, "/", &s);
    get_path(f, f->server->port, "/", &s);
    assert_null(strstr(buf_str(&f->server->asked_headers), "ookie"));
}

// Whether the answer comes, or nobody answers: neither the end of the time nor an
// abort waits for the thread that asks.
static void test_unknown_host(void **state)
{
    struct fixture *f = *state;
    struct http *http =
        http_new(f->base, &(struct http_options){.connect_timeout_ms = 100}, &f->e);
    struct seen s;
    struct http_spec spec = spec_for(f, &s);
    int64_t start_ms = loop_now_ms();
    spec.url = "http://does-not-exist.invalid/";
    assert_non_null(http_send(http, &spec, &f->e));
    run_until(f->base, s.count == 1);
    assert_true(s.end == HTTP_FAILED || s.end == HTTP_TIMED_OUT);
    spec = spec_for(f, &s);
    spec.url = "http://neither-does-this.invalid/";
    struct http_request *r = http_send(http, &spec, &f->e);
    event_base_loop(f->base, EVLOOP_NONBLOCK);
    http_abort(r);
    http_free(http);
    assert_true(loop_now_ms() - start_ms < 4000);
}

static void test_bad_options(void **state)
{
    struct fixture *f = *state;
    assert_null(http_new(f->base, &(struct http_options){.user_agent = "a\r\nb"}, &f->e));
    assert_null(http_new(f->base, &(struct http_options){.ca_file = "/nowhere"}, &f->e));
    assert_string_equal(f->e.msg, "cannot read the certificates in /nowhere");
}

#define TEST(name) cmocka_unit_test_setup_teardown(name, set_up, tear_down)

int main(void)
{
    const struct CMUnitTest tests[] = {
        TEST(test_post),
        TEST(test_methods),
        TEST(test_large_post),
        TEST(test_connection_is_reused),
        TEST(test_status_and_retry_after),
        TEST(test_chunked),
        TEST(test_too_large),
        TEST(test_headers_without_end),
        TEST(test_no_http),
        TEST(test_timeout),
        TEST(test_refused_addresses),
        TEST(test_allowed_network),
        TEST(test_reuse_is_checked),
        TEST(test_redirects),
        TEST(test_bad_redirects),
        TEST(test_redirect_to_another_server),
        TEST(test_bad_urls),
        TEST(test_bad_headers),
        TEST(test_abort),
        TEST(test_abort_from_callback),
        TEST(test_many_at_once),
        TEST(test_environment_is_ignored),
        TEST(test_no_cookies),
        TEST(test_unknown_host),
        TEST(test_bad_options),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
