// SPDX-License-Identifier: Apache-2.0
//
// The option parser on a command of its own; what a user sees of the real
// commands is tested in test/system/cli.bats.

#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>

#include <cmocka.h>

#include <stdlib.h>
#include <string.h>

#include "cli/db.h"
#include "cli/options.h"

struct values {
    bool fast;
    const char *file;
    int limit;
};

static const struct cli_option options[] = {
    {"fast", 'f', CLI_FLAG, offsetof(struct values, fast), NULL, "do it fast"},
    {"file", 0, CLI_STRING, offsetof(struct values, file), "FILE", "what to read"},
    {"limit", 'n', CLI_INT, offsetof(struct values, limit), "N", "how many at most"},
    {0},
};

static const struct cli_command command = {
    .name = "try", .summary = "try it", .options = options, .max_operands = 2};

static const struct cli_command passing = {
    .name = "pass", .summary = "pass it on", .options = options, .pass_rest = true};

#define PARSE(cmd, ...) parse(cmd, NULL, (const char *[]){"try", __VA_ARGS__, NULL})

static struct values values;
static struct err err;
static char *operands[8];

// Without `common`, file and environment stay out of it.
static bool parse(const struct cli_command *cmd, struct cli_common *common,
                  const char **argv)
{
    int argc = 0, first = 0;
    while (argv[argc] != NULL)
        argc++;
    values = (struct values){.limit = 7};
    err = ERR_INIT;
    memset(operands, 0, sizeof operands);
    char **words = (char **)argv;
    if (!cli_parse(cmd, argc, words, &values, common, &first, &err))
        return false;
    for (int i = first; i < argc; i++)
        operands[i - first] = words[i];
    return true;
}

static void test_values(void **state)
{
    (void)state;
    assert_true(PARSE(&command, "one"));
    assert_false(values.fast);
    assert_int_equal(values.limit, 7);
    assert_true(PARSE(&command, "--file=a b", "one", "-f", "-n12", "two"));
    assert_true(values.fast);
    assert_string_equal(values.file, "a b");
    assert_int_equal(values.limit, 12);
    assert_string_equal(operands[0], "one");
    assert_string_equal(operands[1], "two");
    assert_true(PARSE(&command, "--limit", "0", "--", "--file"));
    assert_int_equal(values.limit, 0);
    assert_string_equal(operands[0], "--file");
}

static void check_mistake(const char *msg, const char *hint)
{
    assert_int_equal(err.code, ERR_USAGE);
    assert_string_equal(err.msg, msg);
    assert_string_equal(err.hint, hint);
}

static void test_mistakes(void **state)
{
    (void)state;
    const char *see = "see pgkin try --help";
    assert_false(PARSE(&command, "--flie=secret"));
    check_mistake("unknown option \"--flie\"", "did you mean \"--file\"?");
    assert_false(PARSE(&command, "--datbase", "x"));
    check_mistake("unknown option \"--datbase\"", "did you mean \"--database\"?");
    assert_false(PARSE(&command, "-fx"));
    check_mistake("unknown option \"-x\"", see);
    assert_false(PARSE(&command, "--file"));
    check_mistake("option \"--file\" needs a value", see);
    assert_false(PARSE(&command, "-n"));
    check_mistake("option \"--limit\" needs a value", see);
    assert_false(PARSE(&command, "--file="));
    check_mistake("option \"--file\" needs a value", see);
    assert_false(PARSE(&command, "--fast=yes"));
    check_mistake("option \"--fast\" takes no value", see);
    assert_false(PARSE(&command, "a", "b", "c"));
    check_mistake("unexpected argument \"c\"", see);
}

static void test_numbers(void **state)
{
    (void)state;
    static const char *const wrong[] = {"x", "1x", "-1", "99999999999", "1.5"};
    for (size_t i = 0; i < sizeof wrong / sizeof wrong[0]; i++) {
        assert_false(PARSE(&command, "--limit", wrong[i]));
        assert_int_equal(err.code, ERR_USAGE);
        assert_non_null(strstr(err.msg, "is not a whole number"));
    }
}

static void test_rest_is_passed_on(void **state)
{
    (void)state;
    assert_true(PARSE(&passing, "-f", "--file", "x", "-c", "select 1", "--fast"));
    assert_true(values.fast);
    assert_string_equal(values.file, "x");
    assert_string_equal(operands[0], "-c");
    assert_string_equal(operands[1], "select 1");
    assert_string_equal(operands[2], "--fast");
    assert_null(operands[3]);

    assert_true(PARSE(&passing, "--file=x", "--", "--fast"));
    assert_false(values.fast);
    assert_string_equal(operands[0], "--fast");

    assert_true(PARSE(&passing, "--unknown", "-f"));
    assert_false(values.fast);
    assert_string_equal(operands[0], "--unknown");

    assert_true(PARSE(&passing, "-", "-f"));
    assert_string_equal(operands[0], "-");
    assert_false(PARSE(&passing, "--file"));
    assert_true(PARSE(&passing, "-n3"));
    assert_int_equal(values.limit, 3);
    assert_null(operands[0]);
}

// Every option of the table is in the help, and so are the common ones.
static void test_help(void **state)
{
    (void)state;
    struct buf help = BUF_INIT;
    cli_help_command(&command, &help);
    assert_non_null(strstr(buf_str(&help), "usage: pgkin try\n"));
    assert_non_null(strstr(buf_str(&help), "  -f, --fast                do it fast\n"));
    assert_non_null(strstr(buf_str(&help), "      --file FILE           what to read\n"));
    assert_non_null(strstr(buf_str(&help), "  -d, --database URL "));
    assert_non_null(strstr(buf_str(&help), "  -h, --help "));
    buf_clear(&help);
}

static void clean_environment(void)
{
    static const char *const names[] = {
        "DATABASE_URL", "PGHOST",    "PGHOSTADDR",      "PGPORT",           "PGDATABASE",
        "PGUSER",       "PGSERVICE", "PGKIN_LOG_LEVEL", "PGKIN_LOG_FORMAT", "PGKIN_DATA"};
    for (size_t i = 0; i < sizeof names / sizeof names[0]; i++)
        unsetenv(names[i]);
    setenv("PGKIN_CONFIG", "/dev/null", 1);
}

static void test_common(void **state)
{
    (void)state;
    struct cli_common common;
    clean_environment();
    setenv("DATABASE_URL", "dbname=env", 1);
    setenv("PGKIN_LOG_LEVEL", "error", 1);
    setenv("PGKIN_LOG_FORMAT", "json", 1);

    assert_true(
        parse(&command, &common,
              (const char *[]){"try", "-d", "dbname=flag", "--log-level=debug", NULL}));
    assert_string_equal(common.database, "dbname=flag");
    assert_int_equal(common.log.level, LOG_DEBUG);
    assert_int_equal(common.log.format, LOG_JSON);
    assert_null(common.data_dir);
    cli_common_clear(&common);

    assert_true(parse(&command, &common, (const char *[]){"try", NULL}));
    assert_string_equal(common.database, "dbname=env");
    assert_int_equal(common.log.level, LOG_ERROR);
    cli_common_clear(&common);

    assert_false(
        parse(&command, &common, (const char *[]){"try", "--log-level=loud", NULL}));
    assert_int_equal(err.code, ERR_USAGE);
}

static void test_source(void **state)
{
    (void)state;
    clean_environment();
    assert_int_equal(db_find_source(NULL), DB_PRIVATE);
    setenv("PGPASSWORD", "x", 1); // says nothing about where
    setenv("PGHOST", "", 1);
    assert_int_equal(db_find_source(NULL), DB_PRIVATE);
    setenv("PGSERVICE", "x", 1);
    assert_int_equal(db_find_source(NULL), DB_ENV_PG);
    setenv("DATABASE_URL", "", 1);
    assert_int_equal(db_find_source(NULL), DB_ENV_PG);
    setenv("DATABASE_URL", "dbname=x", 1);
    assert_int_equal(db_find_source(NULL), DB_ENV_URL);
    assert_int_equal(db_find_source("dbname=y"), DB_FLAG);
    unsetenv("PGPASSWORD");
    clean_environment();
}

static void check_conninfo(const char *flag, const char *expected)
{
    struct buf out = BUF_INIT;
    struct err e = ERR_INIT;
    assert_true(db_conninfo(flag, &out, &e));
    assert_string_equal(buf_str(&out), expected);
    buf_clear(&out);
}

static void test_conninfo(void **state)
{
    (void)state;
    clean_environment();
    setenv("PGPORT", "6000", 1);
    check_conninfo(NULL, "");
    check_conninfo("postgresql://u:p@h/db", "postgresql://u:p@h/db");
    check_conninfo("host=h dbname=db", "host=h dbname=db");
    setenv("DATABASE_URL", "postgres://h/env", 1);
    check_conninfo(NULL, "postgres://h/env");

    // A bare name is a database's, however it is spelled.
    struct buf out = BUF_INIT;
    struct err e = ERR_INIT;
    assert_true(db_conninfo("o'clock", &out, &e));
    char *name = NULL;
    PQconninfoOption *parsed = PQconninfoParse(buf_str(&out), NULL);
    assert_non_null(parsed);
    for (PQconninfoOption *o = parsed; o->keyword != NULL; o++)
        if (strcmp(o->keyword, "dbname") == 0)
            name = o->val;
    assert_string_equal(name, "o'clock");
    PQconninfoFree(parsed);
    buf_clear(&out);
    clean_environment();
}

static void test_bad_conninfo(void **state)
{
    (void)state;
    static const char *const bad[] = {
        "postgresql://u:hush@hush@h/db", "postgresql://u:hush/hush@h/db",
        "postgresql://u:hush%zz@h/db",   "postgresql://u:hush@[::1/db",
        "postgresql://u:hush@h/db?a=b",  "host=h password=a hush",
        "host=h password='hush",         "mysql://u:hush@h/db",
    };
    clean_environment();
    for (size_t i = 0; i < sizeof bad / sizeof bad[0]; i++) {
        struct buf out = BUF_INIT;
        struct err e = ERR_INIT;
        assert_false(db_conninfo(bad[i], &out, &e));
        assert_int_equal(e.code, ERR_USAGE);
        assert_null(strstr(e.msg, "hush"));
        assert_null(strstr(e.hint, "hush"));
        assert_true(e.msg[0] != '\0' && e.hint[0] != '\0');
        buf_clear(&out);
    }
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_values),       cmocka_unit_test(test_mistakes),
        cmocka_unit_test(test_numbers),      cmocka_unit_test(test_rest_is_passed_on),
        cmocka_unit_test(test_help),         cmocka_unit_test(test_common),
        cmocka_unit_test(test_source),       cmocka_unit_test(test_conninfo),
        cmocka_unit_test(test_bad_conninfo),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
