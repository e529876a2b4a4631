// SPDX-License-Identifier: Apache-2.0
//
// The exchange: its parameters, its answers, and both against a real schema.

#include <endian.h>
#include <inttypes.h>
#include <unistd.h>

#include "test_conn_common.h"

#include "expect_bug.h"
#include "lib/exchange.h"
#include "lib/migrate.h"

// --------------------------------------------------------------- parameters

enum param {
    PARAM_QUEUE,
    PARAM_WANT,
    PARAM_WORKER,
    PARAM_PID,
    PARAM_DONE,
    PARAM_MEANS,
    PARAM_LEASES,
    PARAM_TASKS,
    PARAM_OUTCOMES,
    PARAM_ERRORS,
    PARAM_RESULTS,
    PARAM_DURATIONS,
    PARAM_DELAYS,
    PARAM_LANES,
    PARAM_COUNT,
};

static const struct exchange_call plain_call = {.queue = "q", .want = 5};

static struct exchange_task task_of(int64_t lease_id, size_t lease_size, int64_t task_id)
{
    return (struct exchange_task){
        .lease_id = lease_id, .lease_size = lease_size, .task_id = task_id};
}

static void end_plain(struct exchange *x, int64_t lease_id, size_t lease_size,
                      int64_t task_id)
{
    struct exchange_task t = task_of(lease_id, lease_size, task_id);
    exchange_end_task(x, &t, NULL);
}

static void build(const struct exchange *x, const struct exchange_call *call,
                  struct conn_params *p)
{
    conn_params_clear(p);
    exchange_build(x, call, p);
    assert_int_equal(p->count, PARAM_COUNT);
}

static void assert_no_singles(const struct conn_params *p)
{
    for (int i = PARAM_LEASES; i < PARAM_COUNT; i++)
        assert_null(p->values[i]);
}

static void test_build_nothing_finished(void **state)
{
    (void)state;
    struct exchange x = EXCHANGE_INIT;
    struct conn_params p = CONN_PARAMS_INIT;
    build(&x, &plain_call, &p);
    assert_string_equal(p.values[PARAM_QUEUE], "q");
    assert_string_equal(p.values[PARAM_WANT], "5");
    assert_null(p.values[PARAM_WORKER]);
    assert_null(p.values[PARAM_PID]);
    assert_null(p.values[PARAM_DONE]);
    assert_no_singles(&p);
    build(&x, &(struct exchange_call){.queue = "q", .worker_id = 7, .pid = 99}, &p);
    assert_string_equal(p.values[PARAM_WANT], "0");
    assert_string_equal(p.values[PARAM_WORKER], "7");
    assert_string_equal(p.values[PARAM_PID], "99");
    conn_params_clear(&p);
    exchange_clear(&x);
}

static void test_build_whole_lease_is_one_number(void **state)
{
    (void)state;
    struct exchange x = EXCHANGE_INIT;
    struct conn_params p = CONN_PARAMS_INIT;
    // Two leases whose tasks end in between each other, many of them.
    for (int64_t i = 0; i < 300; i++) {
        end_plain(&x, 41, 300, 1000 + i);
        end_plain(&x, INT64_MAX, 300, 2000 + i);
    }
    build(&x, &plain_call, &p);
    assert_string_equal(p.values[PARAM_DONE], "{41,9223372036854775807}");
    assert_no_singles(&p);

    // One task less, and it is no whole lease.
    exchange_reset(&x);
    end_plain(&x, 41, 1, 1);
    end_plain(&x, 42, 2, 2);
    build(&x, &plain_call, &p);
    assert_string_equal(p.values[PARAM_DONE], "{41}");
    assert_string_equal(p.values[PARAM_LEASES], "{42}");
    assert_string_equal(p.values[PARAM_TASKS], "{2}");
    assert_string_equal(p.values[PARAM_OUTCOMES], "{\"completed\"}");
    assert_null(p.values[PARAM_ERRORS]);
    assert_null(p.values[PARAM_RESULTS]);
    assert_null(p.values[PARAM_DURATIONS]);

    exchange_reset(&x);
    build(&x, &plain_call, &p);
    assert_null(p.values[PARAM_DONE]);
    assert_no_singles(&p);
    conn_params_clear(&p);
    exchange_clear(&x);
}

// A result keeps the whole lease from being a number; the others still are.
static void test_build_outcomes(void **state)
{
    (void)state;
    struct exchange x = EXCHANGE_INIT;
    struct conn_params p = CONN_PARAMS_INIT;
    char error[] = "say \"no\" \\ {x}";
    struct exchange_task t = task_of(7, 5, 1);
    end_plain(&x, 7, 5, 1);
    t.task_id = 2;
    exchange_end_task(
        &x, &t, &(struct exchange_end){.result = "{\"a\": 1}", .duration_ms = 0.25});
    t.task_id = 3;
    exchange_end_task(&x, &t,
                      &(struct exchange_end){.outcome = EXCHANGE_FAILED,
                                             .error = error,
                                             .duration_ms = 1500});
    memset(error, 'z', sizeof error - 1); // it was copied
    t.task_id = 4;
    exchange_end_task(
        &x, &t, &(struct exchange_end){.outcome = EXCHANGE_CANCELED, .duration_ms = -1});
    t.task_id = 5;
    exchange_end_task(
        &x, &t, &(struct exchange_end){.outcome = EXCHANGE_RELEASED, .duration_ms = -1});
    end_plain(&x, 8, 1, 6);
    build(&x, &plain_call, &p);
    assert_string_equal(p.values[PARAM_DONE], "{8}");
    assert_string_equal(p.values[PARAM_LEASES], "{7,7,7,7,7}");
    assert_string_equal(p.values[PARAM_TASKS], "{1,2,3,4,5}");
    assert_string_equal(
        p.values[PARAM_OUTCOMES],
        "{\"completed\",\"completed\",\"failed\",\"canceled\",\"released\"}");
    assert_string_equal(p.values[PARAM_ERRORS],
                        "{NULL,NULL,\"say \\\"no\\\" \\\\ {x}\",NULL,NULL}");
    assert_string_equal(p.values[PARAM_RESULTS],
                        "{NULL,\"{\\\"a\\\": 1}\",NULL,NULL,NULL}");
    assert_string_equal(p.values[PARAM_DURATIONS], "{null,0.25,1500,null,null}");
    conn_params_clear(&p);
    exchange_clear(&x);
}

static void end_timed(struct exchange *x, int64_t lease_id, size_t lease_size,
                      int64_t task_id, double duration_ms)
{
    struct exchange_task t = task_of(lease_id, lease_size, task_id);
    exchange_end_task(x, &t, &(struct exchange_end){.duration_ms = duration_ms});
}

// Quick tasks of a lease share their mean; a slow one is recorded by itself.
static void test_build_durations(void **state)
{
    (void)state;
    struct exchange x = EXCHANGE_INIT;
    struct conn_params p = CONN_PARAMS_INIT;
    end_timed(&x, 1, 2, 10, 0.25);
    end_timed(&x, 1, 2, 11, 0.75);
    end_plain(&x, 2, 1, 12);
    end_timed(&x, 3, 2, 13, 0.5);
    end_timed(&x, 3, 2, 14, 1.5);
    build(&x, &plain_call, &p);
    assert_string_equal(p.values[PARAM_DONE], "{1,2}");
    assert_string_equal(p.values[PARAM_MEANS], "{0.5,null}");
    assert_string_equal(p.values[PARAM_TASKS], "{13,14}");
    assert_string_equal(p.values[PARAM_DURATIONS], "{0.5,1.5}");
    conn_params_clear(&p);
    exchange_clear(&x);
}

static void test_build_delays_and_lanes(void **state)
{
    (void)state;
    struct exchange x = EXCHANGE_INIT;
    struct conn_params p = CONN_PARAMS_INIT;
    struct exchange_task t = task_of(1, 2, 10);
    exchange_end_task(&x, &t,
                      &(struct exchange_end){.outcome = EXCHANGE_SNOOZED,
                                             .delay_ms = 1500,
                                             .duration_ms = -1});
    t.task_id = 11;
    exchange_end_task(
        &x, &t, &(struct exchange_end){.outcome = EXCHANGE_FATAL, .duration_ms = -1});
    build(&x,
          &(struct exchange_call){
              .queue = "q", .want = 1, .lanes = (int64_t[]){2, 3, 18}, .lane_count = 3},
          &p);
    assert_string_equal(p.values[PARAM_OUTCOMES], "{\"snoozed\",\"fatal\"}");
    assert_string_equal(p.values[PARAM_DELAYS], "{1.5,null}");
    assert_string_equal(p.values[PARAM_LANES], "{2,3,18}");
    conn_params_clear(&p);
    exchange_clear(&x);
}

// Ends that the server would not take are halved until the bad one is alone,
// and that one becomes a failure.
static void test_split_and_spoil(void **state)
{
    (void)state;
    struct exchange x = EXCHANGE_INIT, rest = EXCHANGE_INIT;
    struct conn_params p = CONN_PARAMS_INIT;
    for (int64_t i = 1; i <= 3; i++)
        end_plain(&x, 1, 3, i);
    exchange_split(&x, &rest);
    build(&x, &plain_call, &p);
    assert_null(p.values[PARAM_DONE]); // two calls may not both end the lease
    assert_string_equal(p.values[PARAM_TASKS], "{1}");
    build(&rest, &plain_call, &p);
    assert_null(p.values[PARAM_DONE]);
    assert_string_equal(p.values[PARAM_TASKS], "{2,3}");
    exchange_spoil(&x, "no good");
    build(&x, &plain_call, &p);
    assert_string_equal(p.values[PARAM_OUTCOMES], "{\"fatal\"}");
    assert_string_equal(p.values[PARAM_ERRORS],
                        "{\"the server refused the result: no good\"}");
    conn_params_clear(&p);
    exchange_clear(&x);
    exchange_clear(&rest);
}

// Leases that are done go; what has not all ended waits for the rest of it.
static void test_take_whole(void **state)
{
    (void)state;
    struct exchange x = EXCHANGE_INIT, whole = EXCHANGE_INIT;
    struct conn_params p = CONN_PARAMS_INIT;
    struct exchange_task failed = task_of(3, 1, 30);
    end_timed(&x, 1, 2, 10, 0.5);
    end_timed(&x, 2, 2, 20, 0.5);
    end_timed(&x, 1, 2, 11, 0.5);
    exchange_end_task(&x, &failed,
                      &(struct exchange_end){
                          .outcome = EXCHANGE_FAILED, .error = "no", .duration_ms = 1});
    exchange_take_whole(&x, &whole);
    build(&whole, &plain_call, &p);
    assert_string_equal(p.values[PARAM_DONE], "{1}");
    assert_null(p.values[PARAM_TASKS]);
    build(&x, &plain_call, &p);
    assert_null(p.values[PARAM_DONE]);
    assert_string_equal(p.values[PARAM_TASKS], "{20,30}");
    assert_string_equal(p.values[PARAM_ERRORS], "{NULL,\"no\"}");
    end_timed(&x, 2, 2, 21, 0.5);
    build(&x, &plain_call, &p);
    assert_string_equal(p.values[PARAM_DONE], "{2}");
    conn_params_clear(&p);
    exchange_clear(&x);
    exchange_clear(&whole);
}

static void end_twice(void)
{
    struct exchange x = EXCHANGE_INIT;
    end_plain(&x, 1, 1, 10);
    end_plain(&x, 1, 1, 10);
}

static void test_end_more_than_there_are(void **state)
{
    (void)state;
    expect_bug(end_twice, "more tasks of a lease have ended");
}

// ------------------------------------------------------------------ answers

enum {
    COLUMNS = 6
};

static PGresult *make_result(int columns, int format)
{
    static const Oid types[COLUMNS] = {20, 20, 23, 25, 3802, 3802};
    char name[] = "c";
    PGresAttDesc attrs[COLUMNS] = {0};
    PGresult *res = PQmakeEmptyPGresult(NULL, PGRES_TUPLES_OK);
    for (int i = 0; i < columns; i++) {
        attrs[i].name = name;
        attrs[i].typid = types[i];
        attrs[i].format = format;
    }
    assert_int_equal(PQsetResultAttrs(res, columns, attrs), 1);
    return res;
}

static void set_bytes(PGresult *res, int row, int col, const void *data, int len)
{
    char copy[256];
    assert_true(len < (int)sizeof copy);
    if (data != NULL)
        memcpy(copy, data, (size_t)len);
    assert_int_equal(PQsetvalue(res, row, col, data != NULL ? copy : NULL, len), 1);
}

static void set_int64(PGresult *res, int row, int col, int64_t v)
{
    uint64_t be = htobe64((uint64_t)v);
    set_bytes(res, row, col, &be, sizeof be);
}

static void set_text(PGresult *res, int row, int col, const char *s)
{
    set_bytes(res, row, col, s, s != NULL ? (int)strlen(s) : -1);
}

static void add_task(PGresult *res, int row, int64_t lease_id, int64_t task_id)
{
    uint32_t attempt = htobe32(3);
    set_int64(res, row, 0, lease_id);
    set_int64(res, row, 1, task_id);
    set_bytes(res, row, 2, &attempt, sizeof attempt);
    set_text(res, row, 3, "email");
    set_text(res, row, 4, "\1{\"n\": 1}");
    set_text(res, row, 5, NULL);
}

static void add_refusal(PGresult *res, int row, int64_t lease_id, int64_t task_id)
{
    set_int64(res, row, 0, lease_id);
    if (task_id != 0)
        set_int64(res, row, 1, task_id);
    else
        set_text(res, row, 1, NULL);
    for (int col = 2; col < COLUMNS; col++)
        set_text(res, row, col, NULL);
}

static void test_parse(void **state)
{
    (void)state;
    struct arena arena = ARENA_INIT;
    struct exchange_answer a;
    struct err e = ERR_INIT;
    PGresult *res = make_result(COLUMNS, 1);
    add_refusal(res, 0, 11, 0);
    add_refusal(res, 1, 12, 5);
    add_task(res, 2, INT64_MAX, 21);
    add_task(res, 3, 14, 22); // alone, in between
    add_task(res, 4, INT64_MAX, 23);
    set_text(res, 4, 5, "\1{\"traceparent\": \"x\"}");

    assert_true(exchange_parse(res, &arena, &a, &e));
    assert_int_equal(a.refusal_count, 2);
    assert_int_equal(a.refusals[0].lease_id, 11);
    assert_int_equal(a.refusals[0].task_id, 0);
    assert_int_equal(a.refusals[1].lease_id, 12);
    assert_int_equal(a.refusals[1].task_id, 5);
    assert_int_equal(a.task_count, 3);
    assert_true(a.tasks[0].lease_id == INT64_MAX);
    assert_int_equal(a.tasks[0].task_id, 21);
    assert_int_equal(a.tasks[0].attempt, 3);
    assert_int_equal(a.tasks[0].lease_size, 2);
    assert_int_equal(a.tasks[1].lease_size, 1);
    assert_int_equal(a.tasks[2].lease_size, 2);
    assert_null(a.tasks[0].headers);

    exchange_keep(&a, &arena);
    PQclear(res);
    assert_string_equal(a.tasks[0].command, "email");
    assert_string_equal(a.tasks[0].payload, "{\"n\": 1}");
    assert_int_equal(a.tasks[0].payload_len, 8);
    assert_string_equal(a.tasks[2].headers, "{\"traceparent\": \"x\"}");
    arena_clear(&arena);
}

static void assert_refused(PGresult *res, const char *text)
{
    struct arena arena = ARENA_INIT;
    struct exchange_answer a;
    struct err e = ERR_INIT;
    assert_false(exchange_parse(res, &arena, &a, &e));
    assert_non_null(strstr(e.msg, text));
    arena_clear(&arena);
    PQclear(res);
}

static void test_parse_refuses_nonsense(void **state)
{
    (void)state;
    PGresult *res;
    assert_refused(make_result(COLUMNS, 0), "other columns");
    assert_refused(make_result(COLUMNS - 1, 1), "other columns");
    assert_refused(PQmakeEmptyPGresult(NULL, PGRES_FATAL_ERROR), "other columns");

    res = make_result(COLUMNS, 1);
    add_task(res, 0, 1, 1);
    add_task(res, 1, 1, 2);
    set_bytes(res, 1, 1, "1234", 4); // half a number
    assert_refused(res, "row 1");

    res = make_result(COLUMNS, 1);
    add_task(res, 0, 1, 1);
    set_text(res, 0, 4, "\2{}"); // a version of jsonb to come
    assert_refused(res, "row 0");

    res = make_result(COLUMNS, 1);
    add_task(res, 0, 1, 1);
    set_text(res, 0, 0, NULL); // no lease
    assert_refused(res, "row 0");
}

static void test_parse_held_back(void **state)
{
    (void)state;
    struct arena arena = ARENA_INIT;
    struct exchange_answer a;
    struct err e = ERR_INIT;
    PGresult *res = make_result(COLUMNS, 1);
    add_task(res, 0, 1, 1);
    for (int col = 0; col < COLUMNS; col++)
        set_text(res, 1, col, NULL);
    assert_true(exchange_parse(res, &arena, &a, &e));
    assert_int_equal(a.task_count, 1);
    assert_int_equal(a.refusal_count, 0);
    assert_true(a.held_back);
    PQclear(res);
    arena_clear(&arena);
}

static void test_parse_nothing(void **state)
{
    (void)state;
    struct arena arena = ARENA_INIT;
    struct exchange_answer a;
    struct err e = ERR_INIT;
    PGresult *res = make_result(COLUMNS, 1);
    assert_true(exchange_parse(res, &arena, &a, &e));
    assert_int_equal(a.task_count, 0);
    assert_int_equal(a.refusal_count, 0);
    exchange_keep(&a, &arena);
    PQclear(res);
    arena_clear(&arena);
}

// --------------------------------------------------------------- the schema

struct heard {
    struct arena arena;
    struct exchange_answer answer;
    int calls;
};

static void on_answer(struct conn *c, PGresult *res, const struct err *e, void *arg)
{
    (void)c;
    struct heard *h = arg;
    struct err parse = ERR_INIT;
    if (test_over)
        return;
    h->calls++;
    if (e != NULL)
        fail_msg("exchange: %s", e->msg);
    arena_reset(&h->arena);
    if (!exchange_parse(res, &h->arena, &h->answer, &parse))
        fail_msg("exchange: %s", parse.msg);
    exchange_keep(&h->answer, &h->arena);
}

static void exchange_now(struct fixture *f, const struct exchange *x, int want,
                         struct heard *h)
{
    struct err e = ERR_INIT;
    const struct exchange_call call = {.queue = "t", .want = want, .pid = 1};
    int calls = h->calls;
    assert_true(exchange_send(x, f->conn, &call, WAIT_MS, on_answer, h, &e));
    WAIT_FOR(f, h->calls > calls);
}

static char *make_database(struct fixture *f)
{
    struct err e = ERR_INIT;
    struct migrate_report rep = MIGRATE_REPORT_INIT;
    struct buf info = BUF_INIT;
    char *name = xasprintf("exchange_%d", (int)getpid());
    char *sql = xasprintf("create database %s template template0", name);
    free(plain(f, sql));
    const struct conninfo_param param = {.key = "dbname", .value = name, .force = true};
    assert_true(conninfo_with_params(test_url(), &param, 1, &info, &e));
    PQfinish(f->plain);
    f->plain = PQconnectdb(info.data);
    if (!migrate_run(f->plain, &(struct migrate_options){0}, &rep, &e))
        fail_msg("migrate: %s", e.msg);
    migrate_report_clear(&rep);
    free(plain(f, "insert into worker.queue_registry (queue, top_concurrency)"
                  " values ('t', null)"));
    free(plain(f, "insert into worker.command_registry (command, queue, kind)"
                  " values ('t', 't', 'native')"));
    free(sql);
    free(name);
    return buf_detach(&info);
}

static void drop_database(struct fixture *f)
{
    char *sql = xasprintf("drop database exchange_%d with (force)", (int)getpid());
    conn_free(f->conn);
    f->conn = NULL;
    PQfinish(f->plain);
    f->plain = PQconnectdb(test_url());
    free(plain(f, sql));
    free(sql);
}

static void assert_value(struct fixture *f, const char *sql, const char *expected)
{
    char *value = plain(f, sql);
    assert_string_equal(value, expected);
    free(value);
}

static void test_round_trips(void **state)
{
    struct fixture *f = *state;
    struct exchange x = EXCHANGE_INIT;
    struct heard h = {.arena = ARENA_INIT};
    char *info = make_database(f);
    start_up(f, (struct conn_options){.conninfo = info});

    exchange_now(f, &x, 10, &h);
    assert_int_equal(h.answer.task_count, 0);

    free(plain(f,
               "select queues.enqueue_many('t', array(select jsonb_build_object('n', i)"
               " from generate_series(1, 5) i))"));
    exchange_now(f, &x, 3, &h);
    assert_int_equal(h.answer.task_count, 3);
    for (size_t i = 0; i < 3; i++) {
        const struct exchange_task *t = &h.answer.tasks[i];
        char *payload = xasprintf("{\"n\": %zu}", i + 1);
        assert_string_equal(t->payload, payload);
        assert_string_equal(t->command, "t");
        assert_int_equal(t->attempt, 1);
        assert_int_equal(t->lease_size, 3);
        exchange_end_task(&x, t, NULL);
        free(payload);
    }

    // The whole lease ends, and the rest comes.
    exchange_now(f, &x, 10, &h);
    assert_int_equal(h.answer.refusal_count, 0);
    assert_int_equal(h.answer.task_count, 2);
    assert_value(f, "select count(*) from queues.task_completed where worker_pid = 1",
                 "3");

    // Said once more, as after a lost answer: refused, and nothing is recorded.
    struct heard again = {.arena = ARENA_INIT};
    exchange_now(f, &x, 0, &again);
    assert_int_equal(again.answer.refusal_count, 1);
    assert_int_equal(again.answer.refusals[0].task_id, 0);
    assert_value(f, "select count(*) from queues.task_completed", "3");

    exchange_reset(&x);
    exchange_end_task(
        &x, &h.answer.tasks[0],
        &(struct exchange_end){.result = "{\"x\": \"\\\"\"}", .duration_ms = 2.5});
    exchange_end_task(&x, &h.answer.tasks[1],
                      &(struct exchange_end){.outcome = EXCHANGE_FAILED,
                                             .error = "it \"broke\", {so}",
                                             .duration_ms = -1});
    exchange_now(f, &x, 10, &again);
    assert_int_equal(again.answer.refusal_count, 0);
    assert_int_equal(again.answer.task_count, 0);
    assert_value(f,
                 "select string_agg(state || coalesce(' ' || duration_ms, '') ||"
                 " coalesce(' ' || result::text, ''), ', ' order by task_id)"
                 " from queues.task_completed where task_id > 3",
                 "completed 2.5 {\"x\": \"\\\"\"}, failed");
    assert_value(f, "select error_message from queues.error", "it \"broke\", {so}");
    assert_value(f, "select count(*) from queues.lease_open", "0");

    exchange_clear(&x);
    arena_clear(&h.arena);
    arena_clear(&again.arena);
    free(info);
    drop_database(f);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_build_nothing_finished),
        cmocka_unit_test(test_build_whole_lease_is_one_number),
        cmocka_unit_test(test_build_outcomes),
        cmocka_unit_test(test_build_durations),
        cmocka_unit_test(test_build_delays_and_lanes),
        cmocka_unit_test(test_split_and_spoil),
        cmocka_unit_test(test_take_whole),
        cmocka_unit_test(test_end_more_than_there_are),
        cmocka_unit_test(test_parse),
        cmocka_unit_test(test_parse_refuses_nonsense),
        cmocka_unit_test(test_parse_held_back),
        cmocka_unit_test(test_parse_nothing),
        cmocka_unit_test_setup_teardown(test_round_trips, setup, teardown),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
