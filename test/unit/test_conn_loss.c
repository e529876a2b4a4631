// SPDX-License-Identifier: Apache-2.0
//
// Connections that are lost, late, or cannot be made.

#include <arpa/inet.h>
#include <netinet/in.h>
#include <sys/socket.h>
#include <unistd.h>

#include "core/conn_impl.h"
#include "test_conn_common.h"

// The test's database with some parameters replaced. The caller frees it.
static char *url_with(const struct conninfo_param *params, size_t n)
{
    struct buf b = BUF_INIT;
    struct err e = ERR_INIT;
    if (!conninfo_with_params(test_url(), params, n, &b, &e))
        fail_msg("%s", e.msg);
    return buf_detach(&b);
}

// A server that accepts and then says nothing: the kernel's backlog answers,
// nobody calls accept().
static int silent_server(int *port)
{
    struct sockaddr_in addr = {.sin_family = AF_INET,
                               .sin_addr.s_addr = htonl(INADDR_LOOPBACK)};
    socklen_t len = sizeof addr;
    int fd = socket(AF_INET, SOCK_STREAM, 0);
    assert_true(fd >= 0);
    assert_int_equal(bind(fd, (struct sockaddr *)&addr, sizeof addr), 0);
    assert_int_equal(listen(fd, 64), 0);
    assert_int_equal(getsockname(fd, (struct sockaddr *)&addr, &len), 0);
    *port = ntohs(addr.sin_port);
    return fd;
}

static void test_idle_loss_reconnects_and_prepares_again(void **state)
{
    struct fixture *f = *state;
    struct answer a = {0};
    start_up(f, (struct conn_options){0});
    int pid = conn_backend_pid(f->conn);
    ask_now(f, (struct conn_request){.query = "server_version"}, &a);
    assert_false(a.failed);
    terminate(f);
    WAIT_FOR(f, f->downs == 1);
    assert_string_equal(f->down_msg,
                        "terminating connection due to administrator command");
    assert_false(conn_is_up(f->conn));
    assert_int_equal(conn_backend_pid(f->conn), 0);
    // Asked while there is no session: it waits for the next one.
    ask_now(f, (struct conn_request){.query = "server_version"}, &a);
    assert_false(a.failed);
    assert_int_equal(f->ups, 2);
    assert_int_not_equal(conn_backend_pid(f->conn), pid);
    ask_now(f,
            (struct conn_request){.sql = "select count(*) from pg_prepared_statements"},
            &a);
    assert_string_equal(a.value, "1");
    answer_clear(&a);
}

// ----------------------------------------------------- answers on a loss

struct tally {
    struct fixture *f;
    int calls[64];
    int again;
    int again_ok;
};

struct tally_item {
    struct tally *t;
    int i;
};

static void again_done(struct conn *c, PGresult *res, const struct err *e, void *arg)
{
    struct tally *t = arg;
    (void)c;
    (void)res;
    if (test_over)
        return;
    t->again++;
    t->again_ok += e == NULL;
}

static void count_loss(struct conn *c, PGresult *res, const struct err *e, void *arg)
{
    struct tally_item *item = arg;
    if (test_over)
        return;
    item->t->calls[item->i]++;
    if (item->i == 0) {
        assert_non_null(res); // answered before the loss
        return;
    }
    assert_null(res);
    assert_non_null(e);
    assert_false(conn_is_up(c));
    assert_int_equal(item->t->f->downs, 0); // requests first, then on_down
    // Everything behind the sleeper was sent, but its outcome is not known.
    assert_true(conn_outcome_unknown(c));
    const struct conn_request r = {
        .query = "server_version", .done = again_done, .arg = item->t};
    assert_true(conn_request(c, &r, NULL));
}

static void test_loss_answers_each_request_once(void **state)
{
    struct tally t = {.f = *state};
    struct tally_item items[64];
    start_up(t.f, (struct conn_options){0});
    for (int i = 0; i < 64; i++) {
        items[i] = (struct tally_item){&t, i};
        const struct conn_request r = {.sql =
                                           i == 1 ? "select pg_sleep(600)" : "select 1",
                                       .deadline_ms = 300000,
                                       .done = count_loss,
                                       .arg = &items[i]};
        assert_true(conn_request(t.f->conn, &r, NULL));
    }
    WAIT_FOR(t.f, t.calls[0] == 1);
    terminate(t.f);
    WAIT_FOR(t.f, t.again == 63);
    for (int i = 0; i < 64; i++)
        assert_int_equal(t.calls[i], 1);
    assert_int_equal(t.again_ok, 63);
    assert_int_equal(t.f->ups, 2);
    assert_int_equal(t.f->downs, 1);
}

// More than the sockets take, to a server that does not read: the second
// request is still here when the connection goes, and we know it.
static void test_loss_while_sending_much(void **state)
{
    struct fixture *f = *state;
    struct answer a[3] = {0};
    size_t size = 8 * 1024 * 1024;
    char *big = xmalloc(size + 1);
    memset(big, 'x', size);
    big[size] = '\0';
    start_up(f, (struct conn_options){0});
    ask(f, (struct conn_request){.sql = "select pg_sleep(600)"}, &a[0]);
    for (int i = 1; i < 3; i++) {
        struct conn_params p = CONN_PARAMS_INIT;
        conn_params_add_text(&p, big);
        ask(f, (struct conn_request){.sql = "select $1::text", .params = &p}, &a[i]);
    }
    free(big);
    WAIT_FOR(f, conn_get_state(f->conn) == CONN_BUSY);
    terminate(f);
    WAIT_FOR(f, f->downs == 1);
    for (int i = 0; i < 3; i++) {
        assert_int_equal(a[i].calls, 1);
        assert_true(a[i].null_res);
        assert_int_equal(a[i].unknown, i < 2);
    }
    assert_non_null(strstr(a[1].msg, "connection lost before the answer came"));
    assert_non_null(strstr(a[2].msg, "not sent"));
}

static void test_drop_by_the_owner(void **state)
{
    struct fixture *f = *state;
    struct answer a = {0};
    start_up(f, (struct conn_options){0});
    ask(f, (struct conn_request){.sql = "select 1"}, &a);
    conn_drop(f->conn, "not the primary any more");
    assert_int_equal(a.calls, 1);
    assert_false(a.unknown);
    assert_string_equal(f->down_msg, "not the primary any more");
    WAIT_FOR(f, f->ups == 2);
}

// -------------------------------------------------------------- deadlines

static void test_deadline_drops_the_connection(void **state)
{
    struct fixture *f = *state;
    struct answer slow = {0}, other = {0}, a = {0};
    start_up(f, (struct conn_options){0});
    int pid = conn_backend_pid(f->conn);
    int64_t start_ms = loop_now_ms();
    ask(f, (struct conn_request){.sql = "select pg_sleep(600)", .deadline_ms = 100},
        &slow);
    ask(f, (struct conn_request){.sql = "select 1"}, &other);
    WAIT_FOR(f, slow.calls > 0);
    assert_true(loop_now_ms() - start_ms >= 90);
    assert_true(slow.null_res);
    assert_true(slow.unknown);
    assert_string_equal(slow.msg, "no answer within 100 ms; the connection was dropped");
    assert_int_equal(other.calls, 1);
    assert_true(other.null_res);
    assert_string_equal(f->down_msg, "a request was not answered within 100 ms");
    WAIT_FOR(f, f->ups == 2);
    assert_int_equal(slow.calls, 1);
    // One that is answered in time does nothing afterwards.
    ask_now(f, (struct conn_request){.sql = "select 1", .deadline_ms = 60000}, &a);
    assert_false(a.failed);
    answer_clear(&a);
    terminate_pid(f, pid); // it is still asleep: the server does not look up
}

static void test_deadline_without_a_connection(void **state)
{
    struct fixture *f = *state;
    struct answer a = {0}, b = {0};
    start(f, (struct conn_options){.conninfo = "host=/nonexistent"});
    ask(f, (struct conn_request){.sql = "select 1", .deadline_ms = 50}, &a);
    ask(f, (struct conn_request){.sql = "select 1"}, &b);
    WAIT_FOR(f, a.calls > 0);
    assert_true(a.null_res);
    assert_false(a.unknown);
    assert_string_equal(a.msg, "not sent within 50 ms");
    assert_int_equal(b.calls, 0);
    conn_free(f->conn);
    f->conn = NULL;
    assert_int_equal(b.calls, 1);
}

// ------------------------------------------------------------- reconnects

static void test_terminated_again_and_again(void **state)
{
    struct fixture *f = *state;
    start_up(f, (struct conn_options){.backoff_min_ms = 1, .backoff_max_ms = 20});
    for (int i = 1; i <= 10; i++) {
        terminate(f);
        WAIT_FOR(f, f->downs == i);
        WAIT_FOR(f, f->ups == i + 1);
    }
    assert_int_equal(count_text(f, "msg=\"connection lost\""), 10);
    assert_int_equal(count_text(f, "msg=reconnected"), 10);
    assert_int_equal(count_text(f, "msg=connected"), 1);
}

// A socket directory where the server appears only later: one line when it is
// missed, one when it is found, and nothing above debug in between.
static void test_outage_is_two_lines(void **state)
{
    struct fixture *f = *state;
    struct answer a = {0};
    char dir[] = "/tmp/pgkin-test-XXXXXX";
    assert_non_null(mkdtemp(dir));
    const char *host = PQhost(f->plain);
    if (host[0] != '/') {
        rmdir(dir);
        skip();
    }
    char *target = xasprintf("%s/.s.PGSQL.%s", host, PQport(f->plain));
    char *link = xasprintf("%s/.s.PGSQL.%s", dir, PQport(f->plain));
    const struct conninfo_param there = {"host", dir, true};
    char *url = url_with(&there, 1);

    f->log.level = LOG_INFO;
    start(f, (struct conn_options){.conninfo = url, .backoff_max_ms = 10});
    ask(f, (struct conn_request){.query = "server_version"}, &a);
    WAIT_FOR(f, conn_tries(f->conn) >= 10);
    assert_int_equal(f->downs, 1);
    assert_int_equal(count_text(f, "\n"), 1);
    assert_int_equal(count_text(f, "level=warn msg=\"cannot connect\" conn=test"), 1);
    assert_int_equal(a.calls, 0);
    assert_int_equal(symlink(target, link), 0);
    WAIT_FOR(f, a.calls == 1);
    assert_false(a.failed);
    assert_int_equal(count_text(f, "\n"), 2);
    assert_int_equal(count_text(f, "level=info msg=connected conn=test tries="), 1);
    assert_int_equal(conn_tries(f->conn), 0);

    unlink(link);
    rmdir(dir);
    free(target);
    free(link);
    free(url);
    answer_clear(&a);
}

static void test_session_setup_that_fails(void **state)
{
    struct fixture *f = *state;
    static const char *const sql[] = {"set work_mem = '3MB'", "select 1 / 0", NULL};
    start(f, (struct conn_options){.session_sql = sql});
    WAIT_FOR(f, conn_tries(f->conn) >= 2);
    assert_int_equal(f->ups, 0);
    assert_int_equal(f->downs, 1);
    assert_string_equal(f->down_msg, "session setup: division by zero");
}

// How often the delay has grown after `losses` short sessions.
static unsigned growth_after(struct fixture *f, int losses, int stable_ms)
{
    f->ups = f->downs = 0;
    start_up(f, (struct conn_options){.stable_ms = stable_ms});
    for (int i = 1; i <= losses; i++) {
        int64_t up_ms = loop_now_ms();
        WAIT_FOR(f, loop_now_ms() > up_ms + 2);
        terminate(f);
        WAIT_FOR(f, f->ups == i + 1);
    }
    unsigned tries = f->conn->backoff.tries;
    conn_free(f->conn);
    f->conn = NULL;
    return tries;
}

static void test_stable_session_resets_the_backoff(void **state)
{
    assert_int_equal(growth_after(*state, 4, 1), 1);
    assert_int_equal(growth_after(*state, 4, 600000), 4);
}

static void test_backoff(void **state)
{
    (void)state;
    struct backoff b = {.min_ms = 100, .max_ms = 5000};
    const int ceilings[] = {100, 200, 400, 800, 1600, 3200, 5000, 5000};
    for (size_t i = 0; i < sizeof ceilings / sizeof ceilings[0]; i++) {
        assert_int_equal(backoff_ceiling_ms(&b), ceilings[i]);
        int delay = backoff_next_ms(&b);
        assert_true(delay >= 0 && delay <= ceilings[i]);
    }
    for (int i = 0; i < 1000; i++)
        assert_true(backoff_next_ms(&b) <= 5000);
    // Full jitter: the whole range is used.
    int low = 0, high = 0;
    for (int i = 0; i < 1000; i++) {
        int delay = backoff_next_ms(&b);
        low += delay < 1000;
        high += delay > 4000;
    }
    assert_true(low > 50 && high > 50);
    backoff_reset(&b);
    assert_int_equal(backoff_ceiling_ms(&b), 100);
}

// ------------------------------------------------------- hosts that do not

static void test_connect_time_limit(void **state)
{
    struct fixture *f = *state;
    int port;
    int fd = silent_server(&port);
    char *conninfo =
        xasprintf("host=127.0.0.1 port=%d dbname=x user=x password=opensesame", port);
    int64_t start_ms = loop_now_ms();
    start(f, (struct conn_options){.conninfo = conninfo, .connect_timeout_ms = 150});
    WAIT_FOR(f, f->downs == 1);
    assert_true(loop_now_ms() - start_ms >= 140);
    assert_string_equal(f->down_msg, "no connection from 127.0.0.1 within 150 ms");
    WAIT_FOR(f, conn_tries(f->conn) >= 2);
    assert_int_equal(f->downs, 1);
    assert_int_equal(count_text(f, "password=***"), 1);
    assert_int_equal(count_text(f, "opensesame"), 0);
    free(conninfo);
    close(fd);
}

static void test_the_users_time_limit_wins(void **state)
{
    struct fixture *f = *state;
    int port;
    int fd = silent_server(&port);
    char *conninfo = xasprintf("host=127.0.0.1 port=%d connect_timeout=1", port);
    start(f, (struct conn_options){.conninfo = conninfo, .connect_timeout_ms = 600000});
    WAIT_FOR(f, f->downs == 1);
    assert_string_equal(f->down_msg, "no connection from 127.0.0.1 within 1000 ms");
    free(conninfo);
    close(fd);
}

// The first host refuses, the second is silent, the third is the server.
static void test_many_hosts(void **state)
{
    struct fixture *f = *state;
    struct answer a = {0};
    int port;
    int fd = silent_server(&port);
    char *hosts = xasprintf("/nonexistent,127.0.0.1,%s", PQhost(f->plain));
    char *ports = xasprintf("1,%d,%s", port, PQport(f->plain));
    const struct conninfo_param params[] = {{"host", hosts, true},
                                            {"port", ports, true},
                                            {"target_session_attrs", "read-write", true}};
    char *url = url_with(params, 3);
    start(f, (struct conn_options){.conninfo = url, .connect_timeout_ms = 100});
    WAIT_FOR(f, conn_is_up(f->conn));
    ask_now(f, (struct conn_request){.query = "server_version"}, &a);
    assert_false(a.failed);
    free(hosts);
    free(ports);
    free(url);
    close(fd);
    answer_clear(&a);
}

static void test_read_only_server_is_not_taken(void **state)
{
    struct fixture *f = *state;
    const struct conninfo_param params[] = {
        {"options", "-c default_transaction_read_only=on", true},
        {"target_session_attrs", "read-write", true}};
    char *url = url_with(params, 2);
    start(f, (struct conn_options){.conninfo = url});
    WAIT_FOR(f, conn_tries(f->conn) >= 2);
    assert_int_equal(f->ups, 0);
    assert_non_null(strstr(f->down_msg, "session is read-only"));
    free(url);
}

static void test_bad_connection_string(void **state)
{
    struct fixture *f = *state;
    struct err e = ERR_INIT;
    const struct conn_options o = {.conninfo = "host=h password=open sesame"};
    assert_null(conn_new(f->base, &o, &e));
    assert_int_equal(e.code, ERR_USAGE);
    assert_null(strstr(e.msg, "sesame"));
}

// --------------------------------------------------------- notifications

static void test_listen_across_a_reconnect(void **state)
{
    struct fixture *f = *state;
    start(f, (struct conn_options){0});
    conn_listen(f->conn, "early");
    WAIT_FOR(f, conn_is_up(f->conn));
    free(plain(f, "notify early, 'one'"));
    WAIT_FOR(f, f->notifies == 1);
    assert_string_equal(f->notify, "early:one");
    conn_listen(f->conn, "late");
    conn_listen(f->conn, "late");
    WAIT_FOR(f, conn_get_state(f->conn) == CONN_BUSY);
    WAIT_FOR(f, conn_get_state(f->conn) == CONN_IDLE);
    terminate(f);
    WAIT_FOR(f, f->ups == 2);
    free(plain(f, "begin; notify early, 'two'; notify late, 'three'; commit"));
    WAIT_FOR(f, f->notifies == 3);
    assert_string_equal(f->notify, "late:three");
}

#define T(name) cmocka_unit_test_setup_teardown(name, setup, teardown)

int main(void)
{
    const struct CMUnitTest tests[] = {
        T(test_idle_loss_reconnects_and_prepares_again),
        T(test_loss_answers_each_request_once),
        T(test_loss_while_sending_much),
        T(test_drop_by_the_owner),
        T(test_deadline_drops_the_connection),
        T(test_deadline_without_a_connection),
        T(test_terminated_again_and_again),
        T(test_outage_is_two_lines),
        T(test_session_setup_that_fails),
        T(test_stable_session_resets_the_backoff),
        cmocka_unit_test(test_backoff),
        T(test_connect_time_limit),
        T(test_the_users_time_limit_wins),
        T(test_many_hosts),
        T(test_read_only_server_is_not_taken),
        T(test_bad_connection_string),
        T(test_listen_across_a_reconnect),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
