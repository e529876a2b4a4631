// SPDX-License-Identifier: Apache-2.0

#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>

#include <cmocka.h>

#include "cli/text.h"

#define BAD "\xef\xbf\xbd"

static void check_clean(const char *in, const char *expected)
{
    struct buf out = BUF_INIT;
    text_add_clean(&out, in);
    assert_string_equal(buf_str(&out), expected);
    buf_clear(&out);
}

static void test_clean(void **state)
{
    (void)state;
    check_clean("", "");
    check_clean("plain ünï 漢字 🙂", "plain ünï 漢字 🙂");
    check_clean("a\nb\tc\rd", "a b c d");
    // An escape sequence, its eight-bit form, and a turned reading direction.
    check_clean("\033[31m", BAD "[31m");
    check_clean("\xc2\x9b"
                "31m",
                BAD "31m");
    check_clean("\xe2\x80\xae"
                "txt",
                BAD "txt");
    check_clean("\x7f", BAD);
    // No UTF-8: cut off, too long, a surrogate, a stray byte.
    check_clean("\xe6\xbc", BAD BAD);
    check_clean("\xc0\xaf", BAD BAD);
    check_clean("\xed\xa0\x80", BAD BAD BAD);
    check_clean("a\xff"
                "b",
                "a" BAD "b");
    check_clean("\xf4\x90\x80\x80", BAD BAD BAD BAD);
}

static void test_lines(void **state)
{
    struct buf out = BUF_INIT;
    (void)state;
    text_add_lines(&out, "one\ntwo\033\n\nthree\n\n", "  ");
    assert_string_equal(buf_str(&out), "one\n  two" BAD "\n  \n  three");
    buf_clear(&out);
}

static void check_cut(const char *in, size_t width, const char *expected)
{
    struct buf out = BUF_INIT;
    text_add_cut(&out, in, width);
    assert_string_equal(buf_str(&out), expected);
    buf_clear(&out);
}

static void test_width(void **state)
{
    (void)state;
    assert_int_equal(text_width(""), 0);
    assert_int_equal(text_width("ünï"), 3);
    assert_int_equal(text_width("漢字"), 4);
    assert_int_equal(text_width("e\xcc\x81"), 1); // an accent of its own
    check_cut("abc", 3, "abc");
    check_cut("abcd", 3, "ab…");
    check_cut("漢字漢", 6, "漢字漢");
    check_cut("漢字漢", 5, "漢字…");
    check_cut("漢字漢", 4, "漢…"); // half a character cannot be shown
    check_cut("abc", 1, "…");
    check_cut("abc", 0, "");
}

static void check_table(size_t width, const char *expected)
{
    static const struct text_column columns[] = {
        {"ID", true}, {"NAME", false}, {"N", true}, {"REST", false}};
    static const char *const cells[] = {"1",  "漢字", "10", "x",  //
                                        "20", "a",    NULL, NULL, //
                                        "3",  NULL,   "7",  "long\nend"};
    struct text_table t;
    struct buf out = BUF_INIT;
    text_table_init(&t, columns, 4);
    for (size_t i = 0; i < sizeof cells / sizeof cells[0]; i++)
        text_table_add(&t, cells[i]);
    text_table_print(&t, " ", width, &out);
    assert_string_equal(buf_str(&out), expected);
    text_table_clear(&t);
    buf_clear(&out);
}

static void test_table(void **state)
{
    (void)state;
    check_table(0, " ID  NAME   N  REST\n"
                   "  1  漢字  10  x\n"
                   " 20  a\n"
                   "  3         7  long end\n");
    check_table(17, " ID  NAME   N  R…\n"
                    "  1  漢字  10  x\n"
                    " 20  a\n"
                    "  3         7  l…\n");
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_clean),
        cmocka_unit_test(test_lines),
        cmocka_unit_test(test_width),
        cmocka_unit_test(test_table),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
