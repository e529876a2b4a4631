// SPDX-License-Identifier: Apache-2.0
//
// Migrations with files made for the purpose, on a database of each test's
// own: upgrades, and everything that must be refused. The real schema is
// installed by test/system/migrate.bats.

#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>

#include <cmocka.h>

#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "lib/migrate.h"
#include "lib/migrate_files.h"
#include "lib/migrate_scan.h"

#define FILE_OF(path, text)                                                              \
    {                                                                                    \
        .name = (path), .data = (text), .size = sizeof(text) - 1                         \
    }
#define ONE FILE_OF("sql/migrations/0001_one.sql", "create table worker.one (id int);")
#define TWO FILE_OF("sql/migrations/0002_two.sql", "create table worker.two (id int);")
#define ROLES                                                                            \
    FILE_OF("sql/functions/90_roles.sql",                                                \
            "create or replace procedure worker.apply_roles() language plpgsql as $$\n"  \
            "begin raise warning 'no roles' using hint = 'make some'; end $$;")
#define LENGTH(array) (sizeof(array) / sizeof(array)[0])

// ---------------------------------------------------------------- scanning

static void check_statements(const char *text, size_t n, const char *const *expected)
{
    struct sql_scan scan = {text, strlen(text), 0};
    struct sql_statement st;
    for (size_t i = 0; i < n; i++) {
        assert_true(sql_scan_next(&scan, &st));
        assert_int_equal(st.end - st.start, strlen(expected[i]));
        assert_memory_equal(text + st.start, expected[i], strlen(expected[i]));
    }
    assert_false(sql_scan_next(&scan, &st));
}

#define STATEMENTS(text, ...)                                                            \
    check_statements(text, LENGTH(((const char *const[]){__VA_ARGS__})),                 \
                     (const char *const[]){__VA_ARGS__})

static void test_scan(void **state)
{
    (void)state;
    check_statements("", 0, NULL);
    check_statements(" ; -- x;\n;/* ; /* ; */ ; */;", 0, NULL);
    STATEMENTS("select 1", "select 1");
    STATEMENTS("-- c;\nselect 1 ;; select 2 -- d\n;", "select 1", "select 2");
    STATEMENTS("select ';''', E'\\';''\\'', \"a;\"; b",
               "select ';''', E'\\';''\\'', \"a;\"", "b");
    STATEMENTS("select '\\'; b", "select '\\'", "b");
    STATEMENTS("do $$ ; $a$ ; $$; do $a$ ; $$ ; $a$; c", "do $$ ; $a$ ; $$",
               "do $a$ ; $$ ; $a$", "c");
    STATEMENTS("select $1; a$b$; c", "select $1", "a$b$", "c");
    STATEMENTS("create rule r as on insert to t do (a; b); c",
               "create rule r as on insert to t do (a; b)", "c");
    STATEMENTS(
        "create or replace function f() returns int begin atomic select case when a "
        "then b end; select 2; end; begin; c",
        "create or replace function f() returns int begin atomic select case when a "
        "then b end; select 2; end",
        "begin", "c");
    // What is never closed goes to the end.
    STATEMENTS("select $$ ; ", "select $$ ; ");
    STATEMENTS("select ' ; ", "select ' ; ");
}

static void test_positions(void **state)
{
    (void)state;
    const char *text = "-- \xc3\xa4\xe2\x82\xac\nselect x";
    size_t size = strlen(text);
    assert_int_equal(sql_offset_of_position(text, size, 1), 0);
    assert_int_equal(sql_offset_of_position(text, size, 5), 5); // after the two-byte one
    assert_int_equal(sql_offset_of_position(text, size, 7), 9);
    assert_int_equal(sql_offset_of_position(text, size, 1000), size);
    assert_int_equal(sql_line_at(text, size, 8), 1);
    assert_int_equal(sql_line_at(text, size, 9), 2);
}

// ---------------------------------------------------------------- files

static void test_files(void **state)
{
    (void)state;
    const struct asset good[] = {ROLES, ONE, TWO, FILE_OF("sql/queries/x.sql", "commit")};
    struct migrate_files f;
    struct err e = ERR_INIT;
    assert_true(migrate_files_load(&f, good, LENGTH(good), &e));
    assert_int_equal(f.migration_count, 2);
    assert_int_equal(f.function_count, 1);
    assert_int_equal(migrate_files_version(&f), 2);
    assert_string_equal(f.migrations[1].name, "0002_two");
    assert_int_equal(strlen(f.migrations[0].checksum), 64);
    assert_string_not_equal(f.migrations[0].checksum, f.migrations[1].checksum);
    assert_null(migrate_files_find_migration(&f, 3));
    assert_non_null(migrate_files_find_function(&f, "90_roles"));
    migrate_files_clear(&f);
}

static void test_bad_files(void **state)
{
    (void)state;
    static const struct {
        struct asset a;
        const char *message;
    } cases[] = {
        {FILE_OF("sql/migrations/2_x.sql", ""), "not of the form NNNN_name.sql"},
        {FILE_OF("sql/migrations/0000_x.sql", ""), "not of the form NNNN_name.sql"},
        {FILE_OF("sql/migrations/0002_X'y.sql", ""), "not of the form NNNN_name.sql"},
        {FILE_OF("sql/migrations/0002_.sql", ""), "not of the form NNNN_name.sql"},
        {FILE_OF("sql/functions/x.sql", ""), "not of the form NN_name.sql"},
        {FILE_OF("sql/migrations/0001_other.sql", ""), "have the same number"},
        {FILE_OF("sql/migrations/0002_x.sql", "select 1;\n\n  COMMIT;"),
         "0002_x.sql:3: \"commit\" has no place"},
        {FILE_OF("sql/migrations/0002_x.sql", "copy t from stdin;"),
         "\"copy\" has no place"},
        {FILE_OF("sql/functions/10_x.sql", "begin; end"), "\"begin\" has no place"},
        {FILE_OF("sql/functions/10_x.sql", "select\0 1"), "null byte"},
    };
    for (size_t i = 0; i < LENGTH(cases); i++) {
        const struct asset assets[] = {ONE, cases[i].a};
        struct migrate_files f;
        struct err e = ERR_INIT;
        assert_false(migrate_files_load(&f, assets, LENGTH(assets), &e));
        assert_non_null(strstr(e.msg, cases[i].message));
        migrate_files_clear(&f);
    }
    // A word that only begins like one of them.
    const struct asset fine[] = {FILE_OF("sql/functions/10_x.sql", "commit_it; end1")};
    struct migrate_files f;
    assert_true(migrate_files_load(&f, fine, 1, NULL));
    migrate_files_clear(&f);
}

static void test_old_server(void **state)
{
    (void)state;
    struct err e = ERR_INIT;
    assert_true(migrate_server_supported(140000, &e));
    assert_true(migrate_server_supported(180001, &e));
    assert_false(migrate_server_supported(130014, &e));
    assert_string_equal(e.msg, "PostgreSQL 13 is too old");
    assert_string_equal(e.hint, "pgkin needs PostgreSQL 14 or later");
    assert_false(migrate_server_supported(90624, &e));
    assert_string_equal(e.msg, "PostgreSQL 9.6 is too old");
}

// ---------------------------------------------------------------- a database

struct fixture {
    PGconn *admin;
    PGconn *conn;
    char name[64];
    struct migrate_report rep;
    struct err e;
};

static PGconn *connect_to(const char *name)
{
    const char *url = getenv("PGKIN_TEST_URL");
    if (url == NULL)
        fail_msg("PGKIN_TEST_URL is not set");
    const char *keys[] = {"dbname", name != NULL ? "dbname" : NULL, NULL};
    const char *vals[] = {url, name, NULL};
    PGconn *conn = PQconnectdbParams(keys, vals, 1);
    if (PQstatus(conn) != CONNECTION_OK)
        fail_msg("%s", PQerrorMessage(conn));
    return conn;
}

// The first value, as a string that lasts until the next call.
static const char *ask(PGconn *conn, const char *sql)
{
    static char value[1024];
    PGresult *res = PQexec(conn, sql);
    ExecStatusType status = PQresultStatus(res);
    if (status != PGRES_TUPLES_OK && status != PGRES_COMMAND_OK)
        fail_msg("%s: %s", sql, PQerrorMessage(conn));
    snprintf(value, sizeof value, "%s", PQntuples(res) > 0 ? PQgetvalue(res, 0, 0) : "");
    PQclear(res);
    return value;
}

static int setup(void **state)
{
    static int number;
    struct fixture *f = calloc(1, sizeof *f);
    char sql[128];
    f->admin = connect_to(NULL);
    snprintf(f->name, sizeof f->name, "unit_migrate_%d_%d", (int)getpid(), ++number);
    snprintf(sql, sizeof sql, "create database %s", f->name);
    ask(f->admin, sql);
    f->conn = connect_to(f->name);
    *state = f;
    return 0;
}

static int teardown(void **state)
{
    struct fixture *f = *state;
    char sql[128];
    PQfinish(f->conn);
    snprintf(sql, sizeof sql, "drop database %s with (force)", f->name);
    ask(f->admin, sql);
    PQfinish(f->admin);
    migrate_report_clear(&f->rep);
    free(f);
    return 0;
}

static bool run_with(struct fixture *f, struct migrate_options opt,
                     const struct asset *assets, size_t count)
{
    opt.assets = assets;
    opt.asset_count = count;
    migrate_report_clear(&f->rep);
    f->e = ERR_INIT;
    bool ok = migrate_run(f->conn, &opt, &f->rep, &f->e);
    assert_int_equal(PQtransactionStatus(f->conn), PQTRANS_IDLE);
    return ok;
}

#define RUN(f, assets) run_with(f, (struct migrate_options){0}, assets, LENGTH(assets))

static void test_upgrade(void **state)
{
    struct fixture *f = *state;
    const struct asset first[] = {ROLES, ONE};
    const struct asset second[] = {ROLES, ONE, TWO};

    assert_true(RUN(f, first));
    assert_int_equal(f->rep.from_version, 0);
    assert_int_equal(f->rep.to_version, 1);
    assert_int_equal(f->rep.migration_count, 1);
    assert_int_equal(f->rep.function_count, 1);

    assert_true(RUN(f, second));
    assert_int_equal(f->rep.from_version, 1);
    assert_int_equal(f->rep.to_version, 2);
    assert_int_equal(f->rep.migration_count, 1);
    assert_string_equal(f->rep.migrations[0], "0002_two");
    // The shape of data changed, and so the functions are made again.
    assert_int_equal(f->rep.function_count, 1);
    assert_int_equal(f->rep.changed_count, 0);

    assert_true(RUN(f, second));
    assert_int_equal(f->rep.from_version, 2);
    assert_int_equal(f->rep.migration_count + f->rep.function_count, 0);
    assert_string_equal(
        ask(f->conn, "select string_agg(name, ' ' order by version) || count(distinct "
                     "applied_by) from worker.schema_migration"),
        "0001_one 0002_two1");
}

// One changed file brings all of them back, in name order.
static void test_functions(void **state)
{
    struct fixture *f = *state;
#define WITH_A(body)                                                                     \
    {                                                                                    \
        FILE_OF(                                                                         \
            "sql/functions/10_a.sql",                                                    \
            "create or replace function worker.a() returns int language sql as '" body   \
            "'"),                                                                        \
            FILE_OF("sql/functions/20_b.sql",                                            \
                    "drop function if exists worker.b();\n"                              \
                    "create function worker.b() returns int language sql as $$ select "  \
                    "worker.a() $$;"),                                                   \
            ROLES, ONE                                                                   \
    }
    const struct asset before[] = WITH_A("select 1");
    const struct asset after[] = WITH_A("select 2");
    const struct asset fewer[] = {ROLES, ONE};

    assert_true(RUN(f, before));
    const char *oid_query = "select 'worker.b'::regproc::oid";
    char *oid = strdup(ask(f->conn, oid_query));
    assert_true(RUN(f, before));
    assert_int_equal(f->rep.function_count, 0);
    assert_string_equal(ask(f->conn, oid_query), oid);

    assert_true(RUN(f, after));
    assert_int_equal(f->rep.changed_count, 1);
    assert_string_equal(f->rep.changed[0], "10_a");
    assert_int_equal(f->rep.function_count, 3);
    assert_string_equal(ask(f->conn, "select worker.b()"), "2");
    assert_string_not_equal(ask(f->conn, oid_query), oid);
    free(oid);

    assert_true(RUN(f, fewer));
    assert_int_equal(f->rep.removed_count, 2);
    assert_string_equal(f->rep.removed[1], "20_b");
    assert_string_equal(ask(f->conn, "select count(*) from worker.schema_function"), "1");
    assert_true(RUN(f, fewer));
    assert_int_equal(f->rep.removed_count, 0);
}

static void test_newer_database(void **state)
{
    struct fixture *f = *state;
    const struct asset both[] = {ROLES, ONE, TWO};
    const struct asset older[] = {ROLES, ONE};
    const struct asset other[] = {
        ROLES, ONE,
        FILE_OF("sql/migrations/0002_other.sql", "create table worker.other ();")};
    assert_true(RUN(f, both));

    assert_false(RUN(f, older));
    assert_string_equal(
        f->e.msg, "the database has schema version 2 (0002_two), this pgkin knows 1");
    assert_non_null(strstr(f->e.hint, "upgrade pgkin"));
    assert_false(RUN(f, other));
    assert_string_equal(
        f->e.msg, "the database has migration 0002_two, which this pgkin does not have");
    assert_string_equal(ask(f->conn, "select count(*) from worker.schema_migration"),
                        "2");
}

static void test_changed_migration(void **state)
{
    struct fixture *f = *state;
    const struct asset before[] = {ROLES, ONE};
    const struct asset after[] = {ROLES, FILE_OF("sql/migrations/0001_one.sql",
                                                 "create table worker.one (id bigint);")};
    assert_true(RUN(f, before));
    assert_false(RUN(f, after));
    assert_non_null(
        strstr(f->e.msg, "migration 0001_one is not the one that was applied"));
}

static void test_gap(void **state)
{
    struct fixture *f = *state;
    const struct asset three = FILE_OF("sql/migrations/0003_three.sql", "select 3");
    const struct asset before[] = {ROLES, ONE, three};
    const struct asset after[] = {ROLES, ONE, TWO, three};
    assert_true(RUN(f, before));
    assert_false(RUN(f, after));
    assert_string_equal(f->e.msg,
                        "migration 0002_two was never applied, but later ones were");
}

// Each fails on its third line, and leaves nothing behind.
static void test_failure(void **state)
{
    struct fixture *f = *state;
    static const struct {
        const char *text;
        const char *message;
    } cases[] = {
        // The server says where, in characters and not in bytes.
        {"-- \xc3\xa4\xe2\x82\xac\xc3\xa4\xc3\xa4\xc3\xa4\xc3\xa4\nselect 1;\nselect "
         "nonsense;",
         "column \"nonsense\" does not exist"},
        {"select 1;\nselect 2;\nselec 3;", "syntax error at or near \"selec\""},
        // It does not say where.
        {"create table worker.two ();\ncomment on table worker.two is ';';\n"
         "create table worker.two ();",
         "relation \"two\" already exists"},
        {"select 1;\n\n do $$\nbegin\nraise 'no luck'; end $$;\nselect 2", "no luck"},
        {"create table worker.two (id int unique);\ninsert into worker.two values (1);\n"
         "insert into worker.two values (1);",
         "duplicate key value violates unique constraint \"two_id_key\" (Key (id)=(1) "
         "already "
         "exists.)"},
    };
    for (size_t i = 0; i < LENGTH(cases); i++) {
        const struct asset assets[] = {
            ROLES,
            ONE,
            {"sql/migrations/0002_two.sql", cases[i].text, strlen(cases[i].text)},
        };
        char expected[256];
        snprintf(expected, sizeof expected, "sql/migrations/0002_two.sql:3: %s",
                 cases[i].message);
        assert_false(RUN(f, assets));
        assert_string_equal(f->e.msg, expected);
        assert_int_equal(f->e.code, ERR_FAILED);
        assert_string_equal(
            ask(f->conn, "select count(*) from pg_namespace where nspname = 'worker'"),
            "0");
    }
}

static void test_warnings(void **state)
{
    struct fixture *f = *state;
    const struct asset assets[] = {ROLES, ONE};
    for (int i = 0; i < 2; i++) { // the roles are seen to at every run
        assert_true(RUN(f, assets));
        assert_int_equal(f->rep.warning_count, 1);
        assert_string_equal(f->rep.warnings[0].text, "no roles");
        assert_string_equal(f->rep.warnings[0].hint, "make some");
    }
}

static void test_dry_run(void **state)
{
    struct fixture *f = *state;
    const struct asset assets[] = {ROLES, ONE, TWO};
    const struct migrate_options dry = {.dry_run = true};
    assert_true(run_with(f, dry, assets, LENGTH(assets)));
    assert_int_equal(f->rep.migration_count, 2);
    assert_int_equal(f->rep.function_count, 1);
    assert_string_equal(
        ask(f->conn, "select count(*) from pg_namespace where nspname = 'worker'"), "0");
    assert_true(RUN(f, assets));
    assert_true(run_with(f, dry, assets, LENGTH(assets)));
    assert_int_equal(f->rep.from_version, 2);
    assert_int_equal(f->rep.migration_count + f->rep.function_count, 0);
}

// Whatever the role or the database has set, the outcome is the same.
static void test_odd_session(void **state)
{
    struct fixture *f = *state;
    const struct asset assets[] = {
        ROLES,
        FILE_OF("sql/migrations/0001_one.sql",
                "create table worker.one as select current_setting('search_path') p, "
                "'\\n'::text s, pg_sleep(0.02)::text;")};
    ask(f->conn, "set default_transaction_read_only = on;"
                 "set default_transaction_isolation = 'repeatable read';"
                 "set search_path = nowhere;"
                 "set standard_conforming_strings = off;"
                 "set client_min_messages = error;"
                 "set statement_timeout = '10ms';"
                 "set lock_timeout = 1");
    assert_true(RUN(f, assets));
    assert_string_equal(ask(f->conn, "select p || length(s) from worker.one"),
                        "pg_catalog, pg_temp2");
    assert_string_equal(ask(f->conn, "show search_path"), "nowhere");
    assert_string_equal(ask(f->conn, "show lock_timeout"), "1ms");
}

static void test_locked_table(void **state)
{
    struct fixture *f = *state;
    const struct asset before[] = {ROLES, ONE};
    const struct asset after[] = {ROLES, ONE,
                                  FILE_OF("sql/migrations/0002_two.sql",
                                          "\nalter table worker.one add column x int;")};
    assert_true(RUN(f, before));

    PGconn *other = connect_to(f->name);
    ask(other, "begin; lock table worker.one in access share mode");
    assert_false(run_with(f, (struct migrate_options){.lock_timeout = "50ms"}, after,
                          LENGTH(after)));
    assert_string_equal(f->e.msg,
                        "sql/migrations/0002_two.sql:2: a lock was not granted in time");
    assert_non_null(strstr(f->e.hint, "pg_stat_activity"));
    PQfinish(other);
    assert_true(RUN(f, after));

    assert_false(run_with(f, (struct migrate_options){.lock_timeout = "soon"}, after,
                          LENGTH(after)));
    assert_int_equal(f->e.code, ERR_USAGE);
}

struct holder {
    PGconn *conn;
    int called;
};

static void on_wait(void *arg)
{
    struct holder *h = arg;
    h->called++;
    ask(h->conn, "rollback"); // lets it go on
}

// The lock of another migration is waited for, with or without lock_timeout,
// and said so.
static void test_waiting(void **state)
{
    struct fixture *f = *state;
    const struct asset assets[] = {ROLES, ONE};
    struct holder h = {.conn = connect_to(f->name)};
    struct migrate_options opt = {.lock_timeout = "1ms", .on_wait = on_wait, .arg = &h};
    const struct asset *lock = asset_find("sql/queries/migrate_lock.sql");
    assert_non_null(lock);
    ask(h.conn, "begin");
    ask(h.conn, lock->data);
    assert_true(run_with(f, opt, assets, LENGTH(assets)));
    assert_int_equal(h.called, 1);
    assert_true(run_with(f, opt, assets, LENGTH(assets)));
    assert_int_equal(h.called, 1);
    PQfinish(h.conn);
}

static void test_lost_connection(void **state)
{
    struct fixture *f = *state;
    const struct asset assets[] = {
        ROLES, FILE_OF("sql/migrations/0001_one.sql",
                       "create table worker.one ();\n"
                       "select pg_terminate_backend(pg_backend_pid());")};
    struct err e = ERR_INIT;
    struct migrate_options opt = {.assets = assets, .asset_count = LENGTH(assets)};
    assert_false(migrate_run(f->conn, &opt, &f->rep, &e));
    assert_non_null(strstr(e.msg, "0001_one.sql:2: terminating connection"));
    PQreset(f->conn);
    assert_string_equal(
        ask(f->conn, "select count(*) from pg_namespace where nspname = 'worker'"), "0");
}

static void test_check(void **state)
{
    struct fixture *f = *state;
    int known = migrate_known_version();
    int version = -1;
    assert_true(known > 0);
    assert_false(migrate_check(f->conn, &version, &f->e));
    assert_int_equal(version, 0);
    assert_non_null(
        strstr(f->e.msg, "the schema is not installed in database \"unit_migrate_"));
    assert_string_equal(f->e.hint, "run pgkin migrate");

    assert_true(migrate_run(f->conn, NULL, &f->rep, &f->e));
    assert_true(migrate_check(f->conn, &version, &f->e));
    assert_int_equal(version, known);

    ask(f->conn, "update worker.schema_migration set version = 9999, name = '9999_later'"
                 " where version = (select max(version) from worker.schema_migration)");
    assert_false(migrate_check(f->conn, &version, &f->e));
    assert_int_equal(version, 9999);
    assert_non_null(
        strstr(f->e.msg, "the database has schema version 9999 (9999_later)"));

    ask(f->conn, "delete from worker.schema_migration where version = 9999");
    assert_false(migrate_check(f->conn, NULL, &f->e));
    assert_string_equal(f->e.hint, "run pgkin migrate");
}

#define DATABASE_TEST(test) cmocka_unit_test_setup_teardown(test, setup, teardown)

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_scan),           cmocka_unit_test(test_positions),
        cmocka_unit_test(test_files),          cmocka_unit_test(test_bad_files),
        cmocka_unit_test(test_old_server),     DATABASE_TEST(test_upgrade),
        DATABASE_TEST(test_functions),         DATABASE_TEST(test_newer_database),
        DATABASE_TEST(test_changed_migration), DATABASE_TEST(test_gap),
        DATABASE_TEST(test_failure),           DATABASE_TEST(test_warnings),
        DATABASE_TEST(test_dry_run),           DATABASE_TEST(test_odd_session),
        DATABASE_TEST(test_locked_table),      DATABASE_TEST(test_waiting),
        DATABASE_TEST(test_lost_connection),   DATABASE_TEST(test_check),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
