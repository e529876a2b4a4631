// SPDX-License-Identifier: Apache-2.0
//
// Requests to hosts with names. The resolver is the test's own, in place of that
// of the C library, so that it can be slow, wrong, and counted.

#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>

#include <cmocka.h>

#include <netdb.h>
#include <pthread.h>
#include <signal.h>
#include <stdatomic.h>
#include <time.h>

#include "core/http.h"
#include "test_http_server.h"

#define MANY 300

static atomic_int lookups;
static atomic_int lookups_over;
static atomic_bool hold; // lookups do not end before it is false

static struct addrinfo *make_info(const char *address, const char *port)
{
    struct {
        struct addrinfo info;
        struct sockaddr_in in;
    } *both = xcalloc(1, sizeof *both);
    both->in.sin_family = AF_INET;
    both->in.sin_port = htons((uint16_t)atoi(port));
    inet_pton(AF_INET, address, &both->in.sin_addr);
    both->info = (struct addrinfo){.ai_family = AF_INET,
                                   .ai_socktype = SOCK_STREAM,
                                   .ai_protocol = IPPROTO_TCP,
                                   .ai_addrlen = sizeof both->in,
                                   .ai_addr = (struct sockaddr *)&both->in};
    return &both->info;
}

// The first lookup of rebind.test is harmless, those after it are not.
__attribute__((visibility("default"))) int getaddrinfo(const char *name,
                                                       const char *service,
                                                       const struct addrinfo *hints,
                                                       struct addrinfo **out)
{
    (void)hints;
    int n = atomic_fetch_add(&lookups, 1);
    // Not for ever: who waits for this thread shall fail, and not hang.
    for (int i = 0; atomic_load(&hold) && i < 4000; i++)
        nanosleep(&(struct timespec){.tv_nsec = 2000000}, NULL);
    atomic_fetch_add(&lookups_over, 1);
    if (strcmp(name, "unknown.test") == 0)
        return EAI_NONAME;
    bool inside =
        strcmp(name, "inside.test") == 0 || (strcmp(name, "rebind.test") == 0 && n > 0);
    *out = make_info(inside ? "10.9.8.7" : "127.0.0.1", service);
    return 0;
}

__attribute__((visibility("default"))) void freeaddrinfo(struct addrinfo *info)
{
    free(info);
}

struct fixture {
    struct event_base *base;
    struct http *http;
    struct server *server;
    struct address_net local;
    struct err e;
    int count[6]; // of the ends
    char error[256];
};

static int set_up(void **state)
{
    struct fixture *f = xcalloc(1, sizeof *f);
    *state = f;
    signal(SIGPIPE, SIG_IGN);
    atomic_store(&lookups, 0);
    atomic_store(&lookups_over, 0);
    f->base = event_base_new();
    f->http = http_new(f->base, &(struct http_options){.connect_timeout_ms = 300}, &f->e);
    f->server = server_new(f->base);
    return f->http != NULL && address_parse_net("127.0.0.0/8", &f->local, &f->e) ? 0 : -1;
}

static int tear_down(void **state)
{
    struct fixture *f = *state;
    atomic_store(&hold, false);
    http_free(f->http);
    server_free(f->server);
    // Threads that were left behind end by themselves.
    run_until(f->base, atomic_load(&lookups) == atomic_load(&lookups_over));
    event_base_free(f->base);
    free(f);
    return 0;
}

static void on_done(const struct http_answer *a, void *arg)
{
    struct fixture *f = arg;
    f->count[a->end]++;
    if (a->error != NULL)
        snprintf(f->error, sizeof f->error, "%s", a->error);
}

static struct http_request *start(struct fixture *f, const char *host, int64_t timeout_ms)
{
    char *url = xasprintf("http://%s:%d/", host, f->server->port);
    struct http_request *r = http_send(f->http,
                                       &(struct http_spec){.url = url,
                                                           .allow = &f->local,
                                                           .allow_count = 1,
                                                           .max_body_bytes = 1000,
                                                           .timeout_ms = timeout_ms,
                                                           .done = on_done,
                                                           .arg = f},
                                       &f->e);
    free(url);
    assert_non_null(r);
    return r;
}

// All at the same time, and one question.
static void test_one_lookup(void **state)
{
    struct fixture *f = *state;
    f->server->handle = server_hold;
    atomic_store(&hold, true);
    for (int i = 0; i < MANY; i++)
        start(f, "many.test", 0);
    run_until(f->base, atomic_load(&lookups) > 0);
    for (int i = 0; i < 10; i++)
        event_base_loop(f->base, EVLOOP_NONBLOCK);
    atomic_store(&hold, false);
    run_until(f->base, f->server->held_count == MANY);
    assert_int_equal(atomic_load(&lookups), 1);
    server_release(f->server);
    run_until(f->base, f->count[HTTP_ANSWERED] == MANY);
    // Connections are open now: no question at all.
    f->server->handle = NULL;
    for (int i = 0; i < MANY; i++)
        start(f, "many.test", 0);
    run_until(f->base, f->count[HTTP_ANSWERED] == 2 * MANY);
    assert_int_equal(atomic_load(&lookups), 1);
}

static void test_hosts_do_not_wait_for_each_other(void **state)
{
    struct fixture *f = *state;
    atomic_store(&hold, true);
    start(f, "slow.test", 0);
    run_until(f->base, atomic_load(&lookups) == 1);
    start(f, "127.0.0.1", 0);
    run_until(f->base, f->count[HTTP_ANSWERED] == 1);
    start(f, "other.test", 0);
    run_until(f->base, atomic_load(&lookups) == 2);
    atomic_store(&hold, false);
    run_until(f->base, f->count[HTTP_ANSWERED] == 3);
}

static void test_unknown(void **state)
{
    struct fixture *f = *state;
    for (int i = 0; i < MANY; i++)
        start(f, "unknown.test", 0);
    run_until(f->base, f->count[HTTP_FAILED] == MANY);
    assert_string_equal(f->error, "could not resolve host: unknown.test");
    assert_int_equal(atomic_load(&lookups), 1);
}

// Nobody answers. The loop does not stand still, and the time that all are given
// is over for all at once, not for one after the other.
static void test_no_answer(void **state)
{
    struct fixture *f = *state;
    atomic_store(&hold, true);
    int64_t start_ms = loop_now_ms();
    for (int i = 0; i < MANY; i++)
        start(f, "silent.test", 0);
    run_until(f->base, f->count[HTTP_TIMED_OUT] == MANY);
    assert_true(loop_now_ms() - start_ms < 5000);
    assert_int_equal(atomic_load(&lookups), 1);
}

// One that has less time than the others fails alone, leading or waiting.
static void test_short_of_time(void **state)
{
    struct fixture *f = *state;
    atomic_store(&hold, true);
    start(f, "slow.test", 50);
    start(f, "slow.test", 0);
    start(f, "slow.test", 60);
    run_until(f->base, f->count[HTTP_TIMED_OUT] == 2);
    assert_int_equal(f->count[HTTP_ANSWERED], 0);
    run_until(f->base, atomic_load(&lookups) == 2);
    atomic_store(&hold, false);
    run_until(f->base, f->count[HTTP_ANSWERED] == 1);
}

// The one that asks is aborted, then one that waits: the rest goes on.
static void test_abort(void **state)
{
    struct fixture *f = *state;
    atomic_store(&hold, true);
    struct http_request *leader = start(f, "slow.test", 0);
    struct http_request *waiting = start(f, "slow.test", 0);
    start(f, "slow.test", 0);
    run_until(f->base, atomic_load(&lookups) == 1);
    int64_t start_ms = loop_now_ms();
    http_abort(leader);
    http_abort(waiting);
    assert_true(loop_now_ms() - start_ms < 1000);
    run_until(f->base, atomic_load(&lookups) == 2);
    atomic_store(&hold, false);
    run_until(f->base, f->count[HTTP_ANSWERED] == 1);
}

static void abort_all_but(const struct http_answer *a, void *arg)
{
    (void)a;
    struct http_request **all = arg;
    for (int i = 1; all[0] != NULL && i < 4; i++)
        http_abort(all[i]);
    all[0] = NULL;
}

// Whoever is told of a shared failure may abort the others.
static void test_abort_in_failure(void **state)
{
    struct fixture *f = *state;
    struct http_request *all[4];
    for (int i = 0; i < 4; i++) {
        all[i] = http_send(f->http,
                           &(struct http_spec){.url = "http://unknown.test/",
                                               .max_body_bytes = 1000,
                                               .done = abort_all_but,
                                               .arg = all},
                           &f->e);
    }
    run_until(f->base, all[0] == NULL);
    assert_int_equal(atomic_load(&lookups), 1);
}

static void test_refused_name(void **state)
{
    struct fixture *f = *state;
    start(f, "inside.test", 0);
    run_until(f->base, f->count[HTTP_REFUSED] == 1);
    assert_string_equal(f->error, "refused to connect to 10.9.8.7: a private address");
}

// A name that means something else when it is looked up again is not looked up
// again between the check and the connection.
static void test_rebinding(void **state)
{
    struct fixture *f = *state;
    start(f, "rebind.test", 0);
    run_until(f->base, f->count[HTTP_ANSWERED] == 1);
    assert_int_equal(atomic_load(&lookups), 1);
    // With connections and cache of its own.
    http_free(f->http);
    f->http = http_new(f->base, &(struct http_options){.connect_timeout_ms = 300}, &f->e);
    start(f, "rebind.test", 0);
    run_until(f->base, f->count[HTTP_REFUSED] == 1);
    assert_int_equal(atomic_load(&lookups), 2);
}

#define TEST(name) cmocka_unit_test_setup_teardown(name, set_up, tear_down)

int main(void)
{
    const struct CMUnitTest tests[] = {
        TEST(test_one_lookup),       TEST(test_hosts_do_not_wait_for_each_other),
        TEST(test_unknown),          TEST(test_no_answer),
        TEST(test_short_of_time),    TEST(test_abort),
        TEST(test_abort_in_failure), TEST(test_refused_name),
        TEST(test_rebinding),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
