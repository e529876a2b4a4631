// SPDX-License-Identifier: Apache-2.0
//
// What the tests of core/http.h share. Include after cmocka.h.

#ifndef PGKIN_TEST_HTTP_COMMON_H
#define PGKIN_TEST_HTTP_COMMON_H

#include <signal.h>

#include "core/http.h"
#include "test_http_server.h"

#define ARRAY_SIZE(a) (sizeof(a) / sizeof(a)[0])

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

static inline int set_up(void **state)
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

static inline int tear_down(void **state)
{
    struct fixture *f = *state;
    http_free(f->http);
    server_free(f->server);
    event_base_free(f->base);
    free(f);
    return 0;
}

static inline void on_done(const struct http_answer *a, void *arg)
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

static inline char *url_on(int port, const char *path)
{
    return xasprintf("http://127.0.0.1:%d%s", port, path);
}

static inline struct http_spec spec_for(struct fixture *f, struct seen *s)
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
static inline void run_request(struct fixture *f, const struct http_spec *spec)
{
    struct seen *s = spec->arg;
    if (http_send(f->http, spec, &f->e) == NULL)
        fail_msg("%s", f->e.msg);
    assert_int_equal(s->count, 0);
    run_until(f->base, s->count > 0);
    assert_int_equal(s->count, 1);
}

static inline void get_path(struct fixture *f, int port, const char *path, struct seen *s)
{
    struct http_spec spec = spec_for(f, s);
    char *url = url_on(port, path);
    spec.url = url;
    run_request(f, &spec);
    free(url);
}

static inline void assert_contains(const char *text, const char *part)
{
    if (strstr(text, part) == NULL)
        fail_msg("no \"%s\" in: %s", part, text);
}

#define TEST(name) cmocka_unit_test_setup_teardown(name, set_up, tear_down)

#endif
