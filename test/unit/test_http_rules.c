// SPDX-License-Identifier: Apache-2.0
//
// What a request must not do, whoever asks for it.

#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>

#include <cmocka.h>

#include "test_http_common.h"

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

int main(void)
{
    const struct CMUnitTest tests[] = {
        TEST(test_refused_addresses),
        TEST(test_allowed_network),
        TEST(test_reuse_is_checked),
        TEST(test_redirects),
        TEST(test_bad_redirects),
        TEST(test_redirect_to_another_server),
        TEST(test_bad_urls),
        TEST(test_bad_headers),
        TEST(test_environment_is_ignored),
        TEST(test_no_cookies),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
