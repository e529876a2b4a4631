// SPDX-License-Identifier: Apache-2.0

#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>

#include <cmocka.h>

#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

#include "core/buf.h"
#include "core/conf.h"
#include "core/log.h"
#include "expect_bug.h"

static const char *const colours[] = {"red", "green", "blue", NULL};

// One of each type.
static const struct conf_setting table[] = {
    {.name = "a.text", .type = CONF_STRING, .env = "PGKIN_T_TEXT", .help = "a text"},
    {.name = "a.number",
     .type = CONF_INT,
     .env = "PGKIN_T_NUMBER",
     .fallback = "5",
     .help = "a number",
     .min = -10,
     .max = 10},
    {.name = "a.flag", .type = CONF_BOOL, .fallback = "no", .help = "a switch"},
    {.name = "b.wait",
     .type = CONF_DURATION,
     .env = "PGKIN_T_WAIT",
     .fallback = "5m",
     .help = "a duration",
     .min = 0,
     .max = 3600 * 1000},
    {.name = "b.size", .type = CONF_BYTES, .fallback = "16MB", .help = "a size"},
    {.name = "b.colour",
     .type = CONF_ENUM,
     .fallback = "green",
     .choices = colours,
     .help = "a colour"},
    {.name = "b.password",
     .type = CONF_STRING,
     .secret = true,
     .env = "PGKIN_T_PASSWORD",
     .help = "a secret"},
    {.name = "b.pin",
     .type = CONF_INT,
     .secret = true,
     .env = "PGKIN_T_PIN",
     .help = "too"},
    {.name = "b.unset", .type = CONF_INT, .help = "not set"},
};

struct fixture {
    char dir[64];
    char path[96];
    struct conf c;
    struct err e;
};

static int set_up(void **state)
{
    struct fixture *f = calloc(1, sizeof *f);
    snprintf(f->dir, sizeof f->dir, "/tmp/pgkin-conf-XXXXXX");
    if (mkdtemp(f->dir) == NULL)
        return -1;
    snprintf(f->path, sizeof f->path, "%s/t.conf", f->dir);
    conf_init(&f->c, table, sizeof table / sizeof table[0]);
    for (size_t i = 0; i < f->c.count; i++) {
        if (table[i].env != NULL)
            unsetenv(table[i].env);
    }
    unsetenv("PGKIN_CONFIG");
    unsetenv("XDG_CONFIG_HOME");
    *state = f;
    return 0;
}

static int tear_down(void **state)
{
    struct fixture *f = *state;
    conf_clear(&f->c);
    unlink(f->path);
    rmdir(f->dir);
    free(f);
    return 0;
}

static void write_bytes(const char *path, const char *text, size_t len)
{
    FILE *file = fopen(path, "w");
    assert_non_null(file);
    assert_int_equal(fwrite(text, 1, len, file), len);
    fclose(file);
}

static bool load(struct fixture *f, const char *text)
{
    write_bytes(f->path, text, strlen(text));
    err_clear(&f->e);
    return conf_load_file(&f->c, f->path, &f->e);
}

// The message after "FILE".
static void expect_file_error(struct fixture *f, const char *text, const char *message)
{
    assert_false(load(f, text));
    assert_int_equal(f->e.code, ERR_FAILED);
    size_t len = strlen(f->path);
    assert_memory_equal(f->e.msg, f->path, len);
    assert_string_equal(f->e.msg + len, message);
}

static void test_defaults(void **state)
{
    struct fixture *f = *state;
    assert_null(conf_get_string(&f->c, "a.text"));
    assert_false(conf_is_set(&f->c, "a.text"));
    assert_true(conf_is_set(&f->c, "a.number"));
    assert_int_equal(conf_get_int(&f->c, "a.number"), 5);
    assert_false(conf_get_bool(&f->c, "a.flag"));
    assert_int_equal(conf_get_int(&f->c, "b.wait"), 300000);
    assert_int_equal(conf_get_int(&f->c, "b.size"), 16777216);
    assert_int_equal(conf_get_enum(&f->c, "b.colour"), 1);
    assert_string_equal(conf_get_string(&f->c, "b.colour"), "green");
    assert_int_equal(conf_get_source(&f->c, "a.number"), CONF_FROM_DEFAULT);
}

static void test_file(void **state)
{
    struct fixture *f = *state;
    assert_true(load(f, "# comment\n"
                        "; comment\n"
                        "\n"
                        "[a]\n"
                        "  text = hello  world = x   ; comment\r\n"
                        "\tnumber=-10\n"
                        "  flag: on\n"
                        "[b]\n"
                        "wait = 90 s\n"
                        "size = 64kB\n"
                        "colour = blue"));
    assert_string_equal(conf_get_string(&f->c, "a.text"), "hello  world = x");
    assert_int_equal(conf_get_int(&f->c, "a.number"), -10);
    assert_true(conf_get_bool(&f->c, "a.flag"));
    assert_int_equal(conf_get_int(&f->c, "b.wait"), 90000);
    assert_int_equal(conf_get_int(&f->c, "b.size"), 65536);
    assert_int_equal(conf_get_enum(&f->c, "b.colour"), 2);
    assert_int_equal(conf_get_source(&f->c, "a.text"), CONF_FROM_FILE);
    assert_true(load(f, ""));
}

// inih alone would cut the line at 200 bytes, or take the rest for a new one.
static void test_long_lines(void **state)
{
    struct fixture *f = *state;
    char value[5001], text[20000];
    memset(value, 'v', sizeof value - 1);
    value[1000] = '=';
    value[sizeof value - 1] = '\0';
    snprintf(text, sizeof text, "# %s\n[a]\n  text =  %s  ; and %s\nnumber = 3\n", value,
             value, value);
    assert_true(load(f, text));
    assert_string_equal(conf_get_string(&f->c, "a.text"), value);
    assert_int_equal(conf_get_int(&f->c, "a.number"), 3);

    snprintf(text, sizeof text, "[a]\n%.500s = x\n", value);
    expect_file_error(f, text, ":2: expected key = value or [section]");
    for (size_t len = 180; len < 210; len++) { // around the size of the buffer
        snprintf(text, sizeof text, "[a]\ntext = %.*s\nnumber = 4\n", (int)len, value);
        assert_true(load(f, text));
        assert_int_equal(strlen(conf_get_string(&f->c, "a.text")), len);
    }
}

static void test_unknown_setting(void **state)
{
    struct fixture *f = *state;
    expect_file_error(f, "[a]\n\nnubmer = 1\n", ":3: unknown setting a.nubmer");
    assert_string_equal(f->e.hint, "did you mean a.number?");
    expect_file_error(f, "[elsewhere]\nthing = 1\n",
                      ":2: unknown setting elsewhere.thing");
    assert_string_equal(f->e.hint, "");
    expect_file_error(f, "number = 1\n", ":1: unknown setting number");
    assert_string_equal(f->e.hint, "did you mean a.number?");
}

static void test_file_mistakes(void **state)
{
    struct fixture *f = *state;
    expect_file_error(f, "[a]\nwhat is this\n", ":2: expected key = value or [section]");
    expect_file_error(f, "[a\ntext = x\n", ":1: expected key = value or [section]");
    // The first mistake is the one to hear of.
    expect_file_error(f, "[a]\njunk\nnumber = x\n",
                      ":2: expected key = value or [section]");
    expect_file_error(f, "[a]\nnumber = x\njunk\n",
                      ":2: bad value \"x\" for a.number: expected a whole number");
    expect_file_error(f, "[a]\nnumber = 1\ntext = x\nnumber = 2\n",
                      ":4: a.number is set already in line 2");
    expect_file_error(f, "[a]\ntext =\n",
                      ":2: bad value \"\" for a.text: expected some text");
    static const char zero[] = "[a]\ntext = a\0b\n";
    write_bytes(f->path, zero, sizeof zero - 1);
    assert_false(conf_load_file(&f->c, f->path, &f->e));
    assert_non_null(strstr(f->e.msg, ":2: the line has a zero byte"));
    assert_false(conf_load_file(&f->c, "/nonexistent/pgkin.conf", &f->e));
    assert_string_equal(f->e.msg,
                        "cannot read /nonexistent/pgkin.conf: No such file or directory");
    assert_false(conf_load_file(&f->c, f->dir, &f->e));
    assert_non_null(strstr(f->e.msg, ": Is a directory"));
    assert_false(conf_load_file(&f->c, f->dir, NULL));
}

static bool flag(struct fixture *f, const char *name, const char *value)
{
    err_clear(&f->e);
    return conf_set_flag(&f->c, name, value, "--flag", &f->e);
}

static void expect_flag_error(struct fixture *f, const char *name, const char *value,
                              const char *expected)
{
    assert_false(flag(f, name, value));
    assert_int_equal(f->e.code, ERR_USAGE);
    char message[256];
    snprintf(message, sizeof message, "--flag: bad value \"%s\" for %s: expected %s",
             value, name, expected);
    assert_string_equal(f->e.msg, message);
}

static void test_ints(void **state)
{
    struct fixture *f = *state;
    assert_true(flag(f, "a.number", "-10"));
    assert_int_equal(conf_get_int(&f->c, "a.number"), -10);
    assert_true(flag(f, "a.number", "010"));
    assert_int_equal(conf_get_int(&f->c, "a.number"), 10);
    expect_flag_error(f, "a.number", "11", "from -10 to 10");
    expect_flag_error(f, "a.number", "-11", "from -10 to 10");
    static const char *const bad[] = {"",   " 1", "1 ", "+1",  "1.5",
                                      "1x", "-",  "x1", "0x1", "99999999999999999999"};
    for (size_t i = 0; i < sizeof bad / sizeof bad[0]; i++)
        expect_flag_error(f, "a.number", bad[i], "a whole number");
    assert_int_equal(conf_get_int(&f->c, "a.number"), 10);
}

static void test_bools(void **state)
{
    struct fixture *f = *state;
    static const char *const yes[] = {"true", "yes", "on", "1", "TRUE"};
    static const char *const no[] = {"false", "no", "off", "0", "Off"};
    for (int i = 0; i < 5; i++) {
        assert_true(flag(f, "a.flag", yes[i]));
        assert_true(conf_get_bool(&f->c, "a.flag"));
        assert_true(flag(f, "a.flag", no[i]));
        assert_false(conf_get_bool(&f->c, "a.flag"));
    }
    expect_flag_error(f, "a.flag", "maybe", "true or false");
    expect_flag_error(f, "a.flag", "2", "true or false");
}

static void test_durations(void **state)
{
    struct fixture *f = *state;
    static const struct {
        const char *text;
        int64_t ms;
    } good[] = {
        {"0", 0}, {"250ms", 250}, {"30s", 30000}, {"5m", 300000}, {"1h", 3600000}};
    for (size_t i = 0; i < sizeof good / sizeof good[0]; i++) {
        assert_true(flag(f, "b.wait", good[i].text));
        assert_int_equal(conf_get_int(&f->c, "b.wait"), good[i].ms);
    }
    const char *expected = "a duration such as 250ms, 30s, 5m or 2h";
    static const char *const bad[] = {"",     "5",    "s",   "5d",
                                      "5 5s", "1.5s", "5sm", "9223372036854775807h"};
    for (size_t i = 0; i < sizeof bad / sizeof bad[0]; i++)
        expect_flag_error(f, "b.wait", bad[i], expected);
    expect_flag_error(f, "b.wait", "3601s", "from 0 to 1h");
    expect_flag_error(f, "b.wait", "-1s", "from 0 to 1h");
}

static void test_bytes(void **state)
{
    struct fixture *f = *state;
    static const struct {
        const char *text;
        int64_t bytes;
    } good[] = {{"512", 512},
                {"7B", 7},
                {"64kB", 65536},
                {"16 MB", 16777216},
                {"3gb", 3221225472},
                {"8589934591GB", INT64_MAX / (1 << 30) * (1 << 30)},
                {"9223372036854775807", INT64_MAX}};
    for (size_t i = 0; i < sizeof good / sizeof good[0]; i++) {
        assert_true(flag(f, "b.size", good[i].text));
        assert_true(conf_get_int(&f->c, "b.size") == good[i].bytes);
    }
    expect_flag_error(f, "b.size", "8589934592GB",
                      "a size such as 512, 64kB, 16MB or 1GB");
    expect_flag_error(f, "b.size", "5k", "a size such as 512, 64kB, 16MB or 1GB");
    expect_flag_error(f, "b.size", "-1", "at least 0");
}

static void test_enums(void **state)
{
    struct fixture *f = *state;
    assert_true(flag(f, "b.colour", "red"));
    assert_int_equal(conf_get_enum(&f->c, "b.colour"), 0);
    expect_flag_error(f, "b.colour", "gren", "one of red, green, blue");
    assert_string_equal(f->e.hint, "did you mean \"green\"?");
    expect_flag_error(f, "b.colour", "", "one of red, green, blue");
    assert_string_equal(f->e.hint, "");
}

// Whatever the order in which they are read.
static void test_precedence(void **state)
{
    struct fixture *f = *state;
    setenv("PGKIN_T_TEXT", "from env", 1);
    assert_true(flag(f, "a.number", "7"));
    assert_true(conf_load_env(&f->c, &f->e));
    assert_true(load(f, "[a]\nnumber = 1\ntext = from file\nflag = yes\n"));
    assert_int_equal(conf_get_int(&f->c, "a.number"), 7);
    assert_int_equal(conf_get_source(&f->c, "a.number"), CONF_FROM_FLAG);
    assert_string_equal(conf_get_string(&f->c, "a.text"), "from env");
    assert_int_equal(conf_get_source(&f->c, "a.text"), CONF_FROM_ENV);
    assert_true(conf_get_bool(&f->c, "a.flag"));
    assert_true(flag(f, "a.text", "from flag"));
    assert_true(conf_load_env(&f->c, &f->e));
    assert_string_equal(conf_get_string(&f->c, "a.text"), "from flag");
    // A value that loses is checked all the same.
    assert_false(load(f, "[a]\nnumber = nonsense\n"));
}

static void test_environment(void **state)
{
    struct fixture *f = *state;
    setenv("PGKIN_T_NUMBER", "", 1); // as if not set
    setenv("PGKIN_T_WAIT", "10s", 1);
    assert_true(conf_load_env(&f->c, &f->e));
    assert_int_equal(conf_get_int(&f->c, "a.number"), 5);
    assert_int_equal(conf_get_int(&f->c, "b.wait"), 10000);
    setenv("PGKIN_T_NUMBER", "many", 1);
    assert_false(conf_load_env(&f->c, &f->e));
    assert_int_equal(f->e.code, ERR_FAILED);
    assert_string_equal(f->e.msg,
                        "environment variable PGKIN_T_NUMBER: bad value \"many\" "
                        "for a.number: expected a whole number");
}

static void test_secrets_are_not_shown(void **state)
{
    struct fixture *f = *state;
    setenv("PGKIN_T_PASSWORD", "hunter2", 1);
    assert_true(conf_load_env(&f->c, &f->e));
    assert_string_equal(conf_get_string(&f->c, "b.password"), "hunter2");
    struct buf b = BUF_INIT;
    conf_describe(&f->c, &b);
    assert_null(strstr(buf_str(&b), "hunter2"));
    assert_non_null(strstr(
        buf_str(&b), "password = ********  ; environment variable PGKIN_T_PASSWORD\n"));
    buf_clear(&b);
    setenv("PGKIN_T_PIN", "hunter3", 1);
    assert_false(conf_load_env(&f->c, &f->e));
    assert_string_equal(f->e.msg,
                        "environment variable PGKIN_T_PIN: bad value for b.pin: "
                        "expected a whole number");
    // Nor when the secret stands where something else belongs.
    expect_file_error(f, "[b]\npasswort = hunter4\n", ":2: unknown setting b.passwort");
    assert_null(strstr(f->e.hint, "hunter4"));
}

static void test_describe(void **state)
{
    struct fixture *f = *state;
    assert_true(load(f, "[a]\nnumber = 2\n"));
    assert_true(flag(f, "a.text", "two\nlines"));
    struct buf b = BUF_INIT, want = BUF_INIT;
    conf_describe(&f->c, &b);
    buf_addf(&want,
             "[a]\n"
             "# a text\n"
             "text = two?lines  ; --flag\n"
             "# a number\n"
             "number = 2  ; %s:2\n"
             "# a switch\n"
             "flag = no  ; default\n"
             "\n"
             "[b]\n"
             "# a duration\n"
             "wait = 5m  ; default\n"
             "# a size\n"
             "size = 16MB  ; default\n"
             "# a colour\n"
             "colour = green  ; default\n"
             "# a secret\n"
             "# password is not set\n"
             "# too\n"
             "# pin is not set\n"
             "# not set\n"
             "# unset is not set\n",
             f->path);
    assert_string_equal(buf_str(&b), buf_str(&want));
    // What it says can be read again.
    assert_true(load(f, buf_str(&b)));
    buf_clear(&b);
    buf_clear(&want);
}

static void test_default_file(void **state)
{
    struct fixture *f = *state;
    char dir1[80], dir2[96], path[128];
    snprintf(dir1, sizeof dir1, "%s/.config", f->dir);
    snprintf(dir2, sizeof dir2, "%s/pgkin", dir1);
    snprintf(path, sizeof path, "%s/pgkin.conf", dir2);
    setenv("HOME", f->dir, 1);
    if (access("/etc/pgkin/pgkin.conf", F_OK) != 0) // having none is fine
        assert_true(conf_load_default_file(&f->c, NULL, &f->e));

    mkdir(dir1, 0700);
    mkdir(dir2, 0700);
    write_bytes(path, "[a]\nnumber = 1\n", 15);
    assert_true(conf_load_default_file(&f->c, NULL, &f->e));
    assert_int_equal(conf_get_int(&f->c, "a.number"), 1);

    write_bytes(path, "[a]\nnumber = 2\n", 15);
    setenv("HOME", "/nonexistent", 1);
    setenv("XDG_CONFIG_HOME", dir1, 1);
    assert_true(conf_load_default_file(&f->c, NULL, &f->e));
    assert_int_equal(conf_get_int(&f->c, "a.number"), 2);

    write_bytes(f->path, "[a]\nnumber = 3\n", 15);
    setenv("PGKIN_CONFIG", f->path, 1);
    assert_true(conf_load_default_file(&f->c, NULL, &f->e));
    assert_int_equal(conf_get_int(&f->c, "a.number"), 3);
    assert_true(conf_load_default_file(&f->c, path, &f->e));
    assert_int_equal(conf_get_int(&f->c, "a.number"), 2);

    // One that was asked for has to be there.
    setenv("PGKIN_CONFIG", "/nonexistent/x", 1);
    assert_false(conf_load_default_file(&f->c, NULL, &f->e));
    assert_non_null(strstr(f->e.msg, "/nonexistent/x"));
    unlink(path);
    rmdir(dir2);
    rmdir(dir1);
}

// The real table: names, variables and the enums of the log.
static void test_settings_of_pgkin(void **state)
{
    struct fixture *f = *state;
    struct conf c;
    conf_init(&c, conf_settings, conf_setting_count);
    static const char *const names[] = {"log.level", "log.format",    "database.url",
                                        "data.dir",  "server.bindir", "server.user"};
    for (size_t i = 0; i < sizeof names / sizeof names[0]; i++)
        conf_is_set(&c, names[i]); // aborts when it is not there
    assert_int_equal(conf_get_enum(&c, "log.level"), LOG_INFO);
    assert_int_equal(conf_get_enum(&c, "log.format"), LOG_LOGFMT);
    for (size_t i = 0; i < c.count; i++) {
        assert_non_null(strchr(conf_settings[i].name, '.'));
        assert_non_null(conf_settings[i].help);
    }
    static const char *const levels[] = {"debug", "info", "warn", "error"};
    for (size_t i = 0; i < 4; i++) {
        enum log_level level;
        assert_true(log_level_parse(levels[i], &level));
        assert_true(conf_set_flag(&c, "log.level", levels[i], "--log-level", &f->e));
        assert_int_equal(conf_get_enum(&c, "log.level"), level);
    }
    assert_true(conf_set_flag(&c, "log.format", "json", "--log-format", &f->e));
    assert_int_equal(conf_get_enum(&c, "log.format"), LOG_JSON);
    setenv("DATABASE_URL", "postgresql://u:geheim@h/db", 1);
    setenv("PGKIN_DATA", "/d", 1);
    setenv("PGKIN_BINDIR", "/b", 1);
    setenv("PGKIN_SERVER_USER", "u", 1);
    assert_true(conf_load_env(&c, &f->e));
    assert_string_equal(conf_get_string(&c, "database.url"),
                        "postgresql://u:geheim@h/db");
    assert_string_equal(conf_get_string(&c, "data.dir"), "/d");
    assert_string_equal(conf_get_string(&c, "server.bindir"), "/b");
    assert_string_equal(conf_get_string(&c, "server.user"), "u");
    struct buf b = BUF_INIT;
    conf_describe(&c, &b);
    assert_null(strstr(buf_str(&b), "geheim"));
    buf_clear(&b);
    conf_clear(&c);
}

static struct conf bug_conf;

static void wrong_name(void)
{
    conf_get_string(&bug_conf, "a.texd");
}

static void wrong_type(void)
{
    conf_get_int(&bug_conf, "a.text");
}

static void not_set(void)
{
    conf_get_int(&bug_conf, "b.unset");
}

static void flag_of_nothing(void)
{
    conf_set_flag(&bug_conf, "no.such", "x", "--x", NULL);
}

static void bad_default(void)
{
    static const struct conf_setting bad[] = {
        {.name = "x.y", .type = CONF_INT, .fallback = "five", .help = "h"}};
    struct conf c;
    conf_init(&c, bad, 1);
}

static void test_misuse_is_a_bug(void **state)
{
    struct fixture *f = *state;
    bug_conf = f->c;
    expect_bug(wrong_name, "no setting a.texd");
    expect_bug(wrong_type, "a.text is not of that type");
    expect_bug(not_set, "b.unset is not set");
    expect_bug(flag_of_nothing, "no setting no.such");
    expect_bug(bad_default, "bad value \"five\" for x.y");
}

#define TEST(name) cmocka_unit_test_setup_teardown(name, set_up, tear_down)

int main(void)
{
    const struct CMUnitTest tests[] = {
        TEST(test_defaults),
        TEST(test_file),
        TEST(test_long_lines),
        TEST(test_unknown_setting),
        TEST(test_file_mistakes),
        TEST(test_ints),
        TEST(test_bools),
        TEST(test_durations),
        TEST(test_bytes),
        TEST(test_enums),
        TEST(test_precedence),
        TEST(test_environment),
        TEST(test_secrets_are_not_shown),
        TEST(test_describe),
        TEST(test_default_file),
        TEST(test_settings_of_pgkin),
        TEST(test_misuse_is_a_bug),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
