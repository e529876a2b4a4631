// SPDX-License-Identifier: Apache-2.0

#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>

#include <cmocka.h>

#include <errno.h>
#include <string.h>

#include "core/err.h"
#include "expect_bug.h"

static void test_set(void **state)
{
    (void)state;
    struct err e = ERR_INIT;
    assert_int_equal(e.code, ERR_NONE);
    assert_false(err_set(&e, "no %s in %d", "luck", 3));
    assert_int_equal(e.code, ERR_FAILED);
    assert_string_equal(e.msg, "no luck in 3");
    assert_string_equal(e.hint, "");
    assert_false(err_usage(&e, "which one?"));
    assert_int_equal(e.code, ERR_USAGE);
    assert_string_equal(e.msg, "which one?");
    err_clear(&e);
    assert_int_equal(e.code, ERR_NONE);
    assert_string_equal(e.msg, "");
}

static void test_errno(void **state)
{
    (void)state;
    struct err e = ERR_INIT;
    assert_false(err_errno(&e, ENOENT, "cannot open %s", "x"));
    assert_string_equal(e.msg, "cannot open x: No such file or directory");
    assert_int_equal(e.code, ERR_FAILED);
    assert_false(err_errno(&e, 98765, "odd"));
    assert_string_equal(e.msg, "odd: error 98765");
}

static void test_wrap_keeps_code_and_hint(void **state)
{
    (void)state;
    struct err e = ERR_INIT;
    err_usage(&e, "bad");
    assert_false(err_hint(&e, "try %s", "harder"));
    assert_false(err_wrap(&e, "cannot %s", "go"));
    assert_string_equal(e.msg, "cannot go: bad");
    assert_string_equal(e.hint, "try harder");
    assert_int_equal(e.code, ERR_USAGE);

    err_clear(&e);
    err_wrap(&e, "alone");
    assert_string_equal(e.msg, "alone");
    assert_int_equal(e.code, ERR_FAILED);
}

static void test_new_error_forgets_the_hint(void **state)
{
    (void)state;
    struct err e = ERR_INIT;
    err_set(&e, "one");
    err_hint(&e, "hint");
    err_set(&e, "two");
    assert_string_equal(e.hint, "");
}

static void test_one_line(void **state)
{
    (void)state;
    struct err e = ERR_INIT;
    err_set(&e, "\nserver said:\r\n\tno\n");
    assert_string_equal(e.msg, "server said: no");
    err_set(&e, "red \x1b[31malert\x7f!");
    assert_string_equal(e.msg, "red  [31malert !");
    err_set(&e, "\n\n");
    assert_string_equal(e.msg, "");
    err_set(&e, "inner\nline");
    err_wrap(&e, "outer\n");
    assert_string_equal(e.msg, "outer: inner line");
}

static void test_null_is_allowed(void **state)
{
    (void)state;
    assert_false(err_set(NULL, "x"));
    assert_false(err_usage(NULL, "x"));
    assert_false(err_errno(NULL, EIO, "x"));
    assert_false(err_wrap(NULL, "x"));
    assert_false(err_hint(NULL, "x"));
}

static void test_too_long_is_cut(void **state)
{
    (void)state;
    static char text[5000];
    memset(text, 'a', sizeof text - 1);
    struct err e = ERR_INIT;
    err_set(&e, "%s", text);
    assert_int_equal(strlen(e.msg), sizeof e.msg - 1);
    err_hint(&e, "%s", text);
    assert_int_equal(strlen(e.hint), sizeof e.hint - 1);
    err_wrap(&e, "context");
    assert_int_equal(strlen(e.msg), sizeof e.msg - 1);
    assert_memory_equal(e.msg, "context: aaa", 12);
    err_errno(&e, EIO, "%s", text);
    assert_int_equal(strlen(e.msg), sizeof e.msg - 1);
    err_wrap(&e, "%s", text);
    assert_int_equal(strlen(e.msg), sizeof e.msg - 1);
}

// A cut does not go through a character.
static void test_cut_keeps_utf8_whole(void **state)
{
    (void)state;
    for (size_t shift = 0; shift < 4; shift++) {
        char text[2048] = "xxx";
        size_t len = shift;
        while (len + 4 < sizeof text) {
            memcpy(text + len, "\xf0\x9f\x90\x98", 4);
            len += 4;
        }
        text[len] = '\0';
        struct err e = ERR_INIT;
        err_set(&e, "%s", text);
        size_t room = sizeof e.msg - 1;
        assert_int_equal(strlen(e.msg), shift + (room - shift) / 4 * 4);
    }
    char exact[sizeof((struct err *)0)->msg];
    memset(exact, 'a', sizeof exact - 1);
    memcpy(exact + sizeof exact - 3, "\xc3\xa9", 3);
    struct err e = ERR_INIT;
    err_set(&e, "%s", exact);
    assert_string_equal(e.msg, exact);
}

static void test_made_from_itself(void **state)
{
    (void)state;
    struct err e = ERR_INIT;
    err_set(&e, "disk full");
    err_set(&e, "cannot write (%s)", e.msg);
    assert_string_equal(e.msg, "cannot write (disk full)");
    err_hint(&e, "about: %s", e.msg);
    assert_string_equal(e.hint, "about: cannot write (disk full)");
}

static void call_bug(void)
{
    BUG("impossible %d", 7);
}

static void test_bug_aborts(void **state)
{
    (void)state;
    expect_bug(call_bug, "impossible 7");
    expect_bug(call_bug, "test_err.c:");
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_set),
        cmocka_unit_test(test_errno),
        cmocka_unit_test(test_wrap_keeps_code_and_hint),
        cmocka_unit_test(test_new_error_forgets_the_hint),
        cmocka_unit_test(test_one_line),
        cmocka_unit_test(test_null_is_allowed),
        cmocka_unit_test(test_too_long_is_cut),
        cmocka_unit_test(test_cut_keeps_utf8_whole),
        cmocka_unit_test(test_made_from_itself),
        cmocka_unit_test(test_bug_aborts),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
