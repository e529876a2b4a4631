// SPDX-License-Identifier: Apache-2.0
//
// Requests on a connection that stays up.

#include "test_conn_common.h"

#define BIG (8 * 1024 * 1024)

static void test_query_is_prepared_once(void **state)
{
    struct fixture *f = *state;
    struct answer a = {0};
    start_up(f, (struct conn_options){0});
    // The second and third go out before the first is answered.
    struct answer b[3] = {0};
    for (int i = 0; i < 3; i++)
        ask(f, (struct conn_request){.query = "server_version"}, &b[i]);
    WAIT_FOR(f, conn_pending(f->conn) == 0);
    for (int i = 0; i < 3; i++) {
        assert_int_equal(b[i].calls, 1);
        assert_int_equal(number(b[i].value), conn_server_version(f->conn));
        answer_clear(&b[i]);
    }
    ask_now(f, (struct conn_request){.query = "server_version"}, &a);
    assert_false(a.failed);
    ask_now(f,
            (struct conn_request){.sql = "select count(*) from pg_prepared_statements"},
            &a);
    assert_string_equal(a.value, "1");
    answer_clear(&a);
}

static void test_unprepared_mode_leaves_nothing_behind(void **state)
{
    struct fixture *f = *state;
    struct answer a = {0};
    start_up(f, (struct conn_options){.unprepared = true});
    for (int i = 0; i < 2; i++) {
        ask_now(f, (struct conn_request){.query = "server_version"}, &a);
        assert_int_equal(number(a.value), conn_server_version(f->conn));
    }
    ask_now(f,
            (struct conn_request){.sql = "select count(*) from pg_prepared_statements"},
            &a);
    assert_string_equal(a.value, "0");
    answer_clear(&a);
}

// Pipelined without a pause: the reset sits between two uses.
static void test_reset_of_the_session_prepares_anew(void **state)
{
    struct fixture *f = *state;
    struct answer a[4] = {0};
    start_up(f, (struct conn_options){0});
    ask_now(f, (struct conn_request){.query = "server_version"}, &a[0]);
    ask(f, (struct conn_request){.query = "server_version"}, &a[1]);
    ask(f, (struct conn_request){.sql = "discard all", .resets_session = true}, &a[2]);
    ask(f, (struct conn_request){.query = "server_version"}, &a[3]);
    WAIT_FOR(f, conn_pending(f->conn) == 0);
    for (int i = 0; i < 4; i++) {
        assert_false(a[i].failed);
        answer_clear(&a[i]);
    }
}

// One that went behind our back costs one failed request, not all later ones.
static void test_lost_statement_is_prepared_again(void **state)
{
    struct fixture *f = *state;
    struct answer a = {0};
    start_up(f, (struct conn_options){0});
    ask_now(f, (struct conn_request){.query = "server_version"}, &a);
    ask_now(f, (struct conn_request){.sql = "deallocate all"}, &a);
    ask_now(f, (struct conn_request){.query = "server_version"}, &a);
    assert_string_equal(a.sqlstate, "26000");
    ask_now(f, (struct conn_request){.query = "server_version"}, &a);
    assert_false(a.failed);
    answer_clear(&a);
}

// With this schema in front the embedded query does not parse: a void cannot
// be cast. The second goes out before the first has failed, and must fail for
// the same reason; later they work again.
static void test_query_that_does_not_parse(void **state)
{
    struct fixture *f = *state;
    struct answer a[2] = {0};
    free(plain(f, "create schema conn_test_shadow"));
    free(plain(f, "create function conn_test_shadow.current_setting(text) returns void "
                  "language sql as ''"));
    static const char *const session[] = {
        "set search_path = conn_test_shadow, pg_catalog", NULL};
    start_up(f, (struct conn_options){.session_sql = session});
    ask(f, (struct conn_request){.query = "server_version"}, &a[0]);
    ask(f, (struct conn_request){.query = "server_version"}, &a[1]);
    WAIT_FOR(f, conn_pending(f->conn) == 0);
    free(plain(f, "drop schema conn_test_shadow cascade"));
    assert_string_equal(a[0].sqlstate, "42846");
    assert_string_equal(a[1].sqlstate, "42846");
    ask_now(f, (struct conn_request){.query = "server_version"}, &a[0]);
    assert_false(a[0].failed);
    answer_clear(&a[0]);
}

static void test_parameters(void **state)
{
    struct fixture *f = *state;
    struct answer a = {0};
    const char bytes[] = {0, 1, '\'', '\\', (char)0xff, 0};
    const int64_t ids[] = {INT64_MIN, -1, 0, INT64_MAX};
    const char *texts[] = {"",           "NULL", NULL,      "a,b",
                           "{\"x\\y\"}", " ' ",  "ünïcode", "\n\t"};
    start_up(f, (struct conn_options){0});

    struct conn_params p = CONN_PARAMS_INIT;
    conn_params_add_int64(&p, INT64_MIN);
    conn_params_add_text(&p, "it's");
    conn_params_add_text(&p, NULL);
    conn_params_add_bool(&p, true);
    conn_params_add_bytea(&p, bytes, sizeof bytes);
    ask_now(
        f,
        (struct conn_request){
            .sql =
                "select $1::bigint || '|' || $2::text || '|' || ($3::text is null) || '|'"
                " || $4::bool || '|' || encode($5::bytea, 'hex')",
            .params = &p},
        &a);
    assert_string_equal(a.value, "-9223372036854775808|it's|true|true|0001275cff00");
    assert_int_equal(p.count, 0);

    conn_params_add_int64s(&p, ids, 4);
    ask_now(f,
            (struct conn_request){.sql = "select array_to_string($1::bigint[], ' ')",
                                  .params = &p},
            &a);
    assert_string_equal(a.value, "-9223372036854775808 -1 0 9223372036854775807");

    // The server takes the array apart: as many elements, each as it was.
    conn_params_add_texts(&p, texts, 8);
    for (int i = 0; i < 8; i++)
        conn_params_add_text(&p, texts[i]);
    ask_now(
        f,
        (struct conn_request){
            .sql = "select $1::text[] is not distinct from array[$2, $3, $4, $5, $6, $7, "
                   "$8, $9]::text[]",
            .params = &p},
        &a);
    assert_string_equal(a.value, "t");

    conn_params_add_texts(&p, NULL, 0);
    ask_now(f,
            (struct conn_request){.sql = "select cardinality($1::text[])", .params = &p},
            &a);
    assert_string_equal(a.value, "0");
    answer_clear(&a);
}

static void test_binary_results(void **state)
{
    struct fixture *f = *state;
    struct answer a = {0};
    start_up(f, (struct conn_options){0});
    ask_now(f, (struct conn_request){.sql = "select 258::bigint", .binary = true}, &a);
    assert_int_equal(a.len, 8);
    assert_memory_equal(a.value, "\0\0\0\0\0\0\1\2", 8);
    answer_clear(&a);
}

static void test_error_keeps_its_sqlstate(void **state)
{
    struct fixture *f = *state;
    struct answer a = {0};
    start_up(f, (struct conn_options){0});
    ask_now(f, (struct conn_request){.sql = "select 1 / 0"}, &a);
    assert_true(a.failed);
    assert_false(a.null_res);
    assert_string_equal(a.sqlstate, "22012");
    assert_string_equal(a.msg, "division by zero");

    ask_now(
        f,
        (struct conn_request){
            .sql = "do $$ begin raise exception e'two\\nlines' using hint = 'try again', "
                   "detail = 'secret row', errcode = 'PK001'; end $$"},
        &a);
    assert_string_equal(a.sqlstate, "PK001");
    assert_string_equal(a.msg, "two lines");
    assert_string_equal(a.hint, "try again");

    ask_now(f, (struct conn_request){.sql = "this is not sql"}, &a);
    assert_string_equal(a.sqlstate, "42601");
    ask_now(f, (struct conn_request){.sql = "select 'still here'"}, &a);
    assert_string_equal(a.value, "still here");
    assert_int_equal(f->downs, 0);
    answer_clear(&a);
}

// The insert itself succeeds; the commit that belongs to it does not.
static void test_failure_at_commit_is_a_failure(void **state)
{
    struct fixture *f = *state;
    struct answer a[3] = {0};
    static const char *const session[] = {
        "create temp table t (i int unique deferrable initially deferred)",
        "insert into t values (1)", NULL};
    start_up(f, (struct conn_options){.session_sql = session});
    ask(f, (struct conn_request){.sql = "insert into t values (1)"}, &a[0]);
    ask(f, (struct conn_request){.sql = "insert into t values (2)"}, &a[1]);
    ask(f, (struct conn_request){.sql = "select count(*) from t"}, &a[2]);
    WAIT_FOR(f, conn_pending(f->conn) == 0);
    assert_true(a[0].failed);
    assert_string_equal(a[0].sqlstate, "23505");
    assert_false(a[1].failed);
    assert_string_equal(a[2].value, "2");
    answer_clear(&a[2]);
}

static void test_thousand_in_the_pipeline(void **state)
{
    struct fixture *f = *state;
    enum {
        N = 1000
    };
    struct answer *a = xcalloc(N, sizeof *a);
    start_up(f, (struct conn_options){0});
    for (int i = 0; i < N; i++) {
        struct conn_params p = CONN_PARAMS_INIT;
        conn_params_add_int64(&p, i);
        const char *sql = i % 10 == 3 ? "select $1::int / 0" : "select $1::int + 1";
        ask(f, (struct conn_request){.sql = sql, .params = &p}, &a[i]);
    }
    assert_int_equal(conn_pending(f->conn), N);
    WAIT_FOR(f, a[0].calls > 0);
    WAIT_FOR(f, conn_pending(f->conn) == 0);
    for (int i = 0; i < N; i++) {
        assert_int_equal(a[i].calls, 1);
        if (i % 10 == 3) {
            assert_string_equal(a[i].sqlstate, "22012");
        } else {
            assert_false(a[i].failed);
            assert_int_equal(number(a[i].value), i + 1);
        }
        answer_clear(&a[i]);
    }
    free(a);
    WAIT_FOR(f, conn_get_state(f->conn) == CONN_IDLE);
}

// More each way than both sockets hold: whoever only writes waits for ever.
static void test_large_both_ways(void **state)
{
    struct fixture *f = *state;
    struct answer a[4] = {0};
    char *big = xmalloc(BIG + 1);
    memset(big, 'x', BIG);
    big[BIG] = '\0';
    start_up(f, (struct conn_options){0});
    for (int i = 0; i < 4; i++) {
        struct conn_params p = CONN_PARAMS_INIT;
        big[i] = 'y';
        conn_params_add_text(&p, big);
        ask(f, (struct conn_request){.sql = "select $1::text || $1::text", .params = &p},
            &a[i]);
    }
    WAIT_FOR(f, conn_pending(f->conn) == 0);
    for (int i = 0; i < 4; i++) {
        assert_int_equal(a[i].len, 2 * BIG);
        assert_int_equal(a[i].value[BIG + i], 'y');
        assert_int_equal(a[i].value[2 * BIG - 1], 'x');
        answer_clear(&a[i]);
    }
    free(big);
}

static void test_session_settings(void **state)
{
    struct fixture *f = *state;
    struct answer a = {0};
    static const char *const session[] = {"set statement_timeout = '77s'",
                                          "set work_mem = '3MB'", NULL};
    start_up(f, (struct conn_options){.app_name = "pgkin test",
                                      .options = "-c lock_timeout=1234",
                                      .session_sql = session});
    ask_now(f,
            (struct conn_request){.sql = "select concat_ws('|', "
                                         "current_setting('application_name'), "
                                         "current_setting('lock_timeout'), "
                                         "current_setting('statement_timeout'), "
                                         "current_setting('work_mem'), "
                                         "current_setting('client_encoding'))"},
            &a);
    assert_string_equal(a.value, "pgkin test|1234ms|77s|3MB|UTF8");
    answer_clear(&a);
}

static void test_notices(void **state)
{
    struct fixture *f = *state;
    struct answer a = {0};
    const char *sql = "do $$ begin raise warning 'mind the gap'; end $$";
    start_up(f, (struct conn_options){0});
    ask_now(f, (struct conn_request){.sql = sql}, &a);
    assert_int_equal(count_text(f, "mind the gap"), 1);
    conn_free(f->conn);
    start_up(f, (struct conn_options){.on_notice = on_notice});
    ask_now(f, (struct conn_request){.sql = sql}, &a);
    assert_string_equal(f->notice, "WARNING mind the gap");
    assert_int_equal(f->notices, 1);
    answer_clear(&a);
}

static void test_copy_is_refused(void **state)
{
    struct fixture *f = *state;
    struct answer a = {0};
    start_up(f, (struct conn_options){0});
    ask_now(f, (struct conn_request){.sql = "copy (select 1) to stdout"}, &a);
    assert_true(a.failed);
    assert_true(a.null_res);
    assert_non_null(strstr(a.msg, "copy is not possible"));
    WAIT_FOR(f, f->ups == 2);
}

static void test_refused_requests(void **state)
{
    struct fixture *f = *state;
    struct err e = ERR_INIT;
    start_up(f, (struct conn_options){0});
    struct conn_params p = CONN_PARAMS_INIT;
    conn_params_add_int64(&p, 1);
    assert_false(
        conn_request(f->conn, &(struct conn_request){.query = "nope", .params = &p}, &e));
    assert_string_equal(e.msg, "there is no query named nope");
    assert_int_equal(p.count, 0);
    for (int i = 0; i <= CONN_PARAMS_MAX; i++)
        conn_params_add_null(&p);
    assert_false(
        conn_request(f->conn, &(struct conn_request){.sql = "x", .params = &p}, &e));
    conn_close(f->conn);
    assert_int_equal(conn_get_state(f->conn), CONN_CLOSED);
    assert_false(conn_request(f->conn, &(struct conn_request){.sql = "select 1"}, &e));
    assert_string_equal(e.msg, "connection test is closed");
    // Closed is not freed.
    assert_true(conn_open(f->conn, &e));
    assert_false(conn_open(f->conn, &e));
    WAIT_FOR(f, f->ups == 2);
}

// ------------------------------------------------- from inside a callback

struct chain {
    int left;
    int calls;
};

static void chain_next(struct conn *c, PGresult *res, const struct err *e, void *arg)
{
    struct chain *ch = arg;
    if (test_over)
        return;
    assert_non_null(res);
    assert_null(e);
    ch->calls++;
    if (--ch->left > 0)
        assert_true(conn_request(c,
                                 &(struct conn_request){.query = "server_version",
                                                        .done = chain_next,
                                                        .arg = ch},
                                 NULL));
}

static void test_request_from_a_callback(void **state)
{
    struct fixture *f = *state;
    struct chain ch = {.left = 100};
    start_up(f, (struct conn_options){0});
    assert_true(conn_request(
        f->conn,
        &(struct conn_request){.query = "server_version", .done = chain_next, .arg = &ch},
        NULL));
    WAIT_FOR(f, ch.left == 0);
    assert_int_equal(ch.calls, 100);
}

struct ender {
    struct fixture *f;
    int calls;
    int refused;
};

static void close_it(struct conn *c, PGresult *res, const struct err *e, void *arg)
{
    struct ender *en = arg;
    if (test_over)
        return;
    if (en->calls++ == 0) {
        conn_close(c);
        return;
    }
    assert_null(res);
    assert_non_null(e);
    // A request made on the way out is refused: else this would never end.
    const struct conn_request r = {.sql = "select 1", .done = close_it, .arg = en};
    en->refused += !conn_request(c, &r, NULL);
}

static void ask_many(struct ender *en, int n,
                     void (*done)(struct conn *, PGresult *, const struct err *, void *))
{
    const struct conn_request r = {
        .sql = "select 1", .deadline_ms = 60000, .done = done, .arg = en};
    start_up(en->f, (struct conn_options){0});
    for (int i = 0; i < n; i++)
        assert_true(conn_request(en->f->conn, &r, NULL));
}

static void test_close_in_a_callback(void **state)
{
    struct ender en = {.f = *state};
    ask_many(&en, 10, close_it);
    WAIT_FOR(en.f, en.calls > 0);
    assert_int_equal(en.calls, 10);
    assert_int_equal(en.refused, 9);
    assert_int_equal(conn_get_state(en.f->conn), CONN_CLOSED);
}

static void free_first(struct conn *c, PGresult *res, const struct err *e, void *arg)
{
    struct ender *en = arg;
    (void)e;
    if (test_over)
        return;
    if (en->calls++ > 0) {
        assert_null(res);
        return;
    }
    conn_free(c);
    en->f->conn = NULL;
    assert_int_equal(en->calls, 10);
    assert_int_equal(PQntuples(res), 1); // borrowed until the callback returns
}

static void test_free_in_a_callback(void **state)
{
    struct ender en = {.f = *state};
    ask_many(&en, 10, free_first);
    WAIT_FOR(en.f, en.calls == 10);
}

// Freed by a request that conn_close() itself is answering.
static void free_while_closing(struct conn *c, PGresult *res, const struct err *e,
                               void *arg)
{
    struct ender *en = arg;
    (void)res;
    (void)e;
    if (test_over)
        return;
    if (en->calls++ == 0)
        conn_free(c);
}

static void test_free_while_closing(void **state)
{
    struct ender en = {.f = *state};
    ask_many(&en, 5, free_while_closing);
    conn_close(en.f->conn);
    en.f->conn = NULL;
    assert_int_equal(en.calls, 5);
}

static void test_free_in_the_other_callbacks(void **state)
{
    struct fixture *f = *state;
    struct answer a = {0};

    f->free_on_up = true;
    start(f, (struct conn_options){0});
    ask(f, (struct conn_request){.sql = "select 1"}, &a);
    WAIT_FOR(f, f->conn == NULL);
    assert_int_equal(a.calls, 1);
    assert_false(a.unknown);
    f->free_on_up = false;

    f->free_on_notice = true;
    start_up(f, (struct conn_options){.on_notice = on_notice});
    ask(f, (struct conn_request){.sql = "do $$ begin raise notice 'bye'; end $$"}, &a);
    WAIT_FOR(f, f->conn == NULL);
    assert_int_equal(a.calls, 2);

    f->free_on_notify = true;
    start_up(f, (struct conn_options){0});
    conn_listen(f->conn, "Odd \"channel\"");
    ask(f, (struct conn_request){.sql = "select pg_notify('Odd \"channel\"', 'now')"},
        &a);
    WAIT_FOR(f, f->conn == NULL);
    assert_string_equal(f->notify, "Odd \"channel\":now");

    f->free_on_down = true;
    start_up(f, (struct conn_options){0});
    terminate(f);
    WAIT_FOR(f, f->conn == NULL);
    assert_int_equal(f->downs, 1);
    answer_clear(&a);
}

#define T(name) cmocka_unit_test_setup_teardown(name, setup, teardown)

int main(void)
{
    const struct CMUnitTest tests[] = {
        T(test_query_is_prepared_once),
        T(test_unprepared_mode_leaves_nothing_behind),
        T(test_reset_of_the_session_prepares_anew),
        T(test_lost_statement_is_prepared_again),
        T(test_query_that_does_not_parse),
        T(test_parameters),
        T(test_binary_results),
        T(test_error_keeps_its_sqlstate),
        T(test_failure_at_commit_is_a_failure),
        T(test_thousand_in_the_pipeline),
        T(test_large_both_ways),
        T(test_session_settings),
        T(test_notices),
        T(test_copy_is_refused),
        T(test_refused_requests),
        T(test_request_from_a_callback),
        T(test_close_in_a_callback),
        T(test_free_in_a_callback),
        T(test_free_while_closing),
        T(test_free_in_the_other_callbacks),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
