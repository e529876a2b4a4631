// SPDX-License-Identifier: Apache-2.0

#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>

#include <cmocka.h>

#include <fcntl.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

#include "core/secret.h"

#define ARRAY_SIZE(a) (sizeof(a) / sizeof(a)[0])

struct fixture {
    char dir[64];
    struct conf conf;
    struct buf value;
    struct err e;
};

static void write_file(const struct fixture *f, const char *name, const void *data,
                       size_t size)
{
    char path[256];
    snprintf(path, sizeof path, "%s/%s", f->dir, name);
    FILE *file = fopen(path, "w");
    assert_non_null(file);
    assert_int_equal(fwrite(data, 1, size, file), size);
    fclose(file);
}

static int set_up(void **state)
{
    struct fixture *f = xcalloc(1, sizeof *f);
    *state = f;
    unsetenv("CREDENTIALS_DIRECTORY");
    unsetenv("PGKIN_CREDENTIALS");
    snprintf(f->dir, sizeof f->dir, "/tmp/pgkin-secret-XXXXXX");
    if (mkdtemp(f->dir) == NULL)
        return -1;
    conf_init(&f->conf, conf_settings, conf_setting_count);
    return conf_set_flag(&f->conf, "credentials.directory", f->dir, "-c", &f->e) ? 0 : -1;
}

static int tear_down(void **state)
{
    struct fixture *f = *state;
    static const char *const names[] = {"a",     "link",    "pipe", "dir",
                                        "inner", ".hidden", "big"};
    for (size_t i = 0; i < ARRAY_SIZE(names); i++) {
        char path[256];
        snprintf(path, sizeof path, "%s/%s", f->dir, names[i]);
        remove(path);
    }
    int left = rmdir(f->dir);
    secret_clear(&f->value);
    conf_clear(&f->conf);
    free(f);
    return left;
}

static void check_value(struct fixture *f, const char *reference, const char *value)
{
    secret_clear(&f->value);
    if (!secret_read(&f->conf, reference, &f->value, &f->e))
        fail_msg("%s", f->e.msg);
    assert_string_equal(buf_str(&f->value), value);
    assert_int_equal(f->value.len, strlen(value));
}

static void check_error(struct fixture *f, const char *reference, const char *text)
{
    err_clear(&f->e);
    assert_false(secret_read(&f->conf, reference, &f->value, &f->e));
    if (strstr(f->e.msg, text) == NULL)
        fail_msg("expected \"%s\", got: %s", text, f->e.msg);
}

static void test_values(void **state)
{
    struct fixture *f = *state;
    static const struct {
        const char *content, *value;
    } cases[] = {
        {"geheim", "geheim"},
        {"geheim\n", "geheim"},
        {"geheim\r\n", "geheim"},
        {"two\n\n", "two\n"},
        {"", ""},
        {"\n", ""},
        {" kept \t", " kept \t"},
    };
    for (size_t i = 0; i < ARRAY_SIZE(cases); i++) {
        write_file(f, "a", cases[i].content, strlen(cases[i].content));
        check_value(f, "secret:a", cases[i].value);
    }
}

static void test_appends(void **state)
{
    struct fixture *f = *state;
    write_file(f, "a", "geheim\n", 7);
    buf_adds(&f->value, "Bearer ");
    assert_true(secret_read(&f->conf, "secret:a", &f->value, &f->e));
    assert_string_equal(buf_str(&f->value), "Bearer geheim");
}

static void test_bad_names(void **state)
{
    struct fixture *f = *state;
    write_file(f, ".hidden", "geheim", 6);
    static const char *const bad[] = {
        "secret:",
        "secret:.",
        "secret:..",
        "secret:../a",
        "secret:/etc/passwd",
        "secret:a/b",
        "secret:.hidden",
        "secret:a b",
        "secret:a\n",
        "secret:a%2fb",
        "secret:\xc3\xa4",
        "secret:a\\b",
        "Secret:a",
        "geheim",
        "",
    };
    for (size_t i = 0; i < ARRAY_SIZE(bad); i++) {
        check_error(f, bad[i], "a secret is written secret:NAME");
        assert_null(strstr(f->e.msg, "geheim"));
    }
    char name[300] = "secret:";
    memset(name + 7, 'a', 256);
    check_error(f, name, "a secret is written secret:NAME");
}

static void test_bad_files(void **state)
{
    struct fixture *f = *state;
    char path[256], target[256];
    check_error(f, "secret:a", "cannot read secret a in /tmp/pgkin-secret-");
    snprintf(path, sizeof path, "%s/dir", f->dir);
    assert_int_equal(mkdir(path, 0700), 0);
    check_error(f, "secret:dir", "secret dir is not a regular file");
    snprintf(path, sizeof path, "%s/pipe", f->dir);
    assert_int_equal(mkfifo(path, 0600), 0);
    check_error(f, "secret:pipe", "secret pipe is not a regular file");
    write_file(f, "a", "gehe\0im", 7);
    check_error(f, "secret:a", "secret a has a zero byte");
    assert_null(strstr(f->e.msg, "gehe"));

    // As Kubernetes does it.
    write_file(f, "inner", "geheim", 6);
    snprintf(path, sizeof path, "%s/link", f->dir);
    snprintf(target, sizeof target, "%s/inner", f->dir);
    assert_int_equal(symlink(target, path), 0);
    check_value(f, "secret:link", "geheim");
}

static void test_size(void **state)
{
    struct fixture *f = *state;
    char *big = xmalloc(SECRET_SIZE_MAX + 1);
    memset(big, 'x', SECRET_SIZE_MAX + 1);
    write_file(f, "big", big, SECRET_SIZE_MAX + 1);
    check_error(f, "secret:big", "secret big has more than 65536 bytes");
    secret_clear(&f->value);
    write_file(f, "big", big, SECRET_SIZE_MAX);
    assert_true(secret_read(&f->conf, "secret:big", &f->value, &f->e));
    assert_int_equal(f->value.len, SECRET_SIZE_MAX);
    free(big);
}

static void test_directory(void **state)
{
    struct fixture *f = *state;
    write_file(f, "a", "geheim", 6);
    struct conf own = f->conf;
    conf_init(&f->conf, conf_settings, conf_setting_count);
    check_error(f, "secret:a", "there is no credentials directory");
    setenv("CREDENTIALS_DIRECTORY", f->dir, 1);
    check_value(f, "secret:a", "geheim");
    setenv("PGKIN_CREDENTIALS", "/nowhere", 1);
    assert_true(conf_load_env(&f->conf, &f->e));
    check_error(f, "secret:a", "/nowhere");
    assert_true(conf_set_flag(&f->conf, "credentials.directory", "tmp", "-c", &f->e));
    check_error(f, "secret:a", "is not an absolute path");
    conf_clear(&f->conf);
    f->conf = own;
}

static void test_reference(void **state)
{
    (void)state;
    assert_true(secret_is_reference("secret:a"));
    assert_true(secret_is_reference("secret:"));
    assert_false(secret_is_reference("secret"));
    assert_false(secret_is_reference(" secret:a"));
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test_setup_teardown(test_values, set_up, tear_down),
        cmocka_unit_test_setup_teardown(test_appends, set_up, tear_down),
        cmocka_unit_test_setup_teardown(test_bad_names, set_up, tear_down),
        cmocka_unit_test_setup_teardown(test_bad_files, set_up, tear_down),
        cmocka_unit_test_setup_teardown(test_size, set_up, tear_down),
        cmocka_unit_test_setup_teardown(test_directory, set_up, tear_down),
        cmocka_unit_test(test_reference),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
