// SPDX-License-Identifier: Apache-2.0

#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>

#include <cmocka.h>

#include <float.h>
#include <jansson.h>
#include <locale.h>
#include <math.h>
#include <stdlib.h>
#include <string.h>

#include "core/json.h"
#include "expect_bug.h"

static void test_nesting(void **state)
{
    (void)state;
    struct buf b = BUF_INIT;
    struct json j;
    json_init(&j, &b);
    json_begin_object(&j);
    json_add_key(&j, "a");
    json_begin_array(&j);
    json_add_int(&j, 1);
    json_begin_object(&j);
    json_end_object(&j);
    json_begin_array(&j);
    json_end_array(&j);
    json_add_null(&j);
    json_end_array(&j);
    json_add_key(&j, "b");
    json_begin_object(&j);
    json_add_key(&j, "");
    json_add_bool(&j, true);
    json_add_key(&j, "k\"");
    json_add_bool(&j, false);
    json_end_object(&j);
    json_add_key(&j, "c");
    json_add_raw(&j, "[1, 2]", 6);
    json_add_key(&j, "d");
    json_add_string(&j, NULL);
    json_end_object(&j);
    json_finish(&j);
    assert_string_equal(buf_str(&b),
                        "{\"a\":[1,{},[],null],\"b\":{\"\":true,\"k\\\"\":false},"
                        "\"c\":[1, 2],\"d\":null}");
    buf_clear(&b);
}

static void test_scalars_at_the_top_and_reuse(void **state)
{
    (void)state;
    struct buf b = BUF_INIT;
    struct json j;
    json_init(&j, &b);
    json_add_int(&j, INT64_MIN);
    json_finish(&j);
    buf_addc(&b, '\n');
    json_add_int(&j, INT64_MAX);
    json_finish(&j);
    assert_string_equal(buf_str(&b), "-9223372036854775808\n9223372036854775807");
    buf_clear(&b);
}

static void expect_bytes(const char *in, size_t len, const char *out)
{
    struct buf b = BUF_INIT;
    struct json j;
    json_init(&j, &b);
    json_add_bytes(&j, in, len);
    json_finish(&j);
    assert_string_equal(buf_str(&b), out);
    buf_clear(&b);
}

#define EXPECT(in, out) expect_bytes(in, sizeof in - 1, "\"" out "\"")
#define FFFD            "\xef\xbf\xbd"

static void test_strings(void **state)
{
    (void)state;
    EXPECT("", "");
    EXPECT("plain /text", "plain /text");
    EXPECT("\"\\\b\f\n\r\t", "\\\"\\\\\\b\\f\\n\\r\\t");
    EXPECT("\x01\x1f\x7f", "\\u0001\\u001f\\u007f");
    EXPECT("a\0b", "a\\u0000b");
    EXPECT("\xc2\x9b", "\\u009b"); // a terminal reads it as ESC [
    EXPECT("\xc2\xa0\xc3\xa9\xe2\x82\xac\xf0\x9f\x90\x98",
           "\xc2\xa0\xc3\xa9\xe2\x82\xac\xf0\x9f\x90\x98");
    EXPECT("\xf4\x8f\xbf\xbf\xef\xbf\xbf", "\xf4\x8f\xbf\xbf\xef\xbf\xbf");
}

static void test_invalid_utf8(void **state)
{
    (void)state;
    EXPECT("a\xffz", "a" FFFD "z");
    EXPECT("\x80", FFFD);
    EXPECT("\xc0\xaf", FFFD FFFD);                   // overlong
    EXPECT("\xe0\x80\xaf", FFFD FFFD FFFD);          // overlong
    EXPECT("\xed\xa0\x80", FFFD FFFD FFFD);          // a surrogate
    EXPECT("\xf4\x90\x80\x80", FFFD FFFD FFFD FFFD); // beyond U+10FFFF
    EXPECT("\xe2\x82", FFFD);                        // cut: one replacement
    EXPECT("\xe2\x82x", FFFD "x");
    EXPECT("\xf0\x9f\x90\"", FFFD "\\\"");
    EXPECT("\xc3", FFFD);
    EXPECT("\xc3\xc3\xa9", FFFD "\xc3\xa9");
}

// Whatever the bytes, another implementation can read it.
static void test_any_bytes_are_valid_json(void **state)
{
    (void)state;
    uint32_t random = 12345;
    for (int round = 0; round < 3000; round++) {
        char bytes[24];
        for (size_t i = 0; i < sizeof bytes; i++) {
            random = random * 1664525 + 1013904223;
            bytes[i] = (char)(random >> 24);
            if (round % 2 != 0) // more that looks like UTF-8
                bytes[i] = (char)("\x80\xbf\xc3\xe0\xed\xf0\xf4\x9f"[random >> 29]);
        }
        struct buf b = BUF_INIT;
        struct json j;
        json_init(&j, &b);
        json_add_bytes(&j, bytes, sizeof bytes);
        json_finish(&j);
        json_error_t why;
        json_t *read = json_loadb(b.data, b.len, JSON_DECODE_ANY | JSON_ALLOW_NUL, &why);
        if (read == NULL)
            fail_msg("%s: %s", why.text, b.data);
        json_decref(read);
        buf_clear(&b);
    }
}

static void test_huge_string(void **state)
{
    (void)state;
    size_t size = (size_t)4 << 20;
    char *bytes = malloc(size);
    memset(bytes, 1, size);
    struct buf b = BUF_INIT;
    struct json j;
    json_init(&j, &b);
    json_add_bytes(&j, bytes, size);
    json_finish(&j);
    assert_int_equal(b.len, size * 6 + 2);
    buf_clear(&b);
    free(bytes);
}

static void expect_double(double d, const char *text)
{
    char out[JSON_DOUBLE_MAX];
    size_t len = json_format_double(d, out);
    assert_int_equal(len, strlen(out));
    assert_string_equal(out, text);
}

static void test_doubles(void **state)
{
    (void)state;
    expect_double(0, "0");
    expect_double(-0.0, "-0");
    expect_double(1, "1");
    expect_double(0.1, "0.1");
    expect_double(0.1 + 0.2, "0.30000000000000004");
    expect_double(1.0 / 3, "0.3333333333333333");
    expect_double(1e21, "1e+21");
    expect_double(-1.5e-7, "-1.5e-07");
    expect_double(DBL_MAX, "1.7976931348623157e+308");
    expect_double(5e-324, "5e-324");
    expect_double(9007199254740993.0, "9007199254740992");
    expect_double(NAN, "null");
    expect_double(INFINITY, "null");
    expect_double(-INFINITY, "null");
}

static void test_doubles_read_back(void **state)
{
    (void)state;
    uint64_t random = 88172645463325252u;
    for (int round = 0; round < 20000; round++) {
        random ^= random << 13;
        random ^= random >> 7;
        random ^= random << 17;
        double d;
        memcpy(&d, &random, sizeof d);
        if (!isfinite(d))
            continue;
        char out[JSON_DOUBLE_MAX];
        json_format_double(d, out);
        assert_true(strtod(out, NULL) == d);
    }
}

static void test_doubles_in_another_locale(void **state)
{
    (void)state;
    static const char *const names[] = {"de_DE.UTF-8", "fr_FR.UTF-8", "de_DE.utf8",
                                        "ps_AF.UTF-8"};
    const char *found = NULL;
    for (size_t i = 0; found == NULL && i < sizeof names / sizeof names[0]; i++)
        found = setlocale(LC_NUMERIC, names[i]);
    if (found == NULL)
        skip();
    expect_double(1234.5, "1234.5");
    expect_double(-2.5e-10, "-2.5e-10");
    setlocale(LC_NUMERIC, "C");
}

static struct buf bug_buf;
static struct json bug_json;

static void begin_bug(void)
{
    json_init(&bug_json, &bug_buf);
}

static void value_without_key(void)
{
    begin_bug();
    json_begin_object(&bug_json);
    json_add_int(&bug_json, 1);
}

static void key_in_array(void)
{
    begin_bug();
    json_begin_array(&bug_json);
    json_add_key(&bug_json, "k");
}

static void key_after_key(void)
{
    begin_bug();
    json_begin_object(&bug_json);
    json_add_key(&bug_json, "k");
    json_add_key(&bug_json, "l");
}

static void key_without_value(void)
{
    begin_bug();
    json_begin_object(&bug_json);
    json_add_key(&bug_json, "k");
    json_end_object(&bug_json);
}

static void wrong_end(void)
{
    begin_bug();
    json_begin_array(&bug_json);
    json_end_object(&bug_json);
}

static void end_of_nothing(void)
{
    begin_bug();
    json_end_array(&bug_json);
}

static void two_values(void)
{
    begin_bug();
    json_add_int(&bug_json, 1);
    json_add_int(&bug_json, 2);
}

static void left_open(void)
{
    begin_bug();
    json_begin_array(&bug_json);
    json_finish(&bug_json);
}

static void nothing_written(void)
{
    begin_bug();
    json_finish(&bug_json);
}

static void too_deep(void)
{
    begin_bug();
    for (int i = 0; i <= JSON_DEPTH_MAX; i++)
        json_begin_array(&bug_json);
}

static void test_wrong_order_is_a_bug(void **state)
{
    (void)state;
    expect_bug(value_without_key, "without a key");
    expect_bug(key_in_array, "key \"k\"");
    expect_bug(key_after_key, "key \"l\"");
    expect_bug(key_without_value, "a key without a value");
    expect_bug(wrong_end, "end of an object");
    expect_bug(end_of_nothing, "end of an array");
    expect_bug(two_values, "second value");
    expect_bug(left_open, "still open");
    expect_bug(nothing_written, "no value");
    expect_bug(too_deep, "levels");
}

static void test_deepest_nesting_alternates(void **state)
{
    (void)state;
    struct buf b = BUF_INIT;
    struct json j;
    json_init(&j, &b);
    for (int i = 0; i < JSON_DEPTH_MAX; i++) {
        if (i % 2 == 0) {
            json_begin_array(&j);
        } else {
            json_begin_object(&j);
            json_add_key(&j, "k");
        }
        if (i == JSON_DEPTH_MAX - 1)
            json_add_int(&j, 1);
    }
    for (int i = JSON_DEPTH_MAX - 1; i >= 0; i--) {
        if (i % 2 == 0)
            json_end_array(&j);
        else
            json_end_object(&j);
    }
    json_finish(&j);
    json_t *read = json_loadb(b.data, b.len, 0, NULL);
    assert_non_null(read);
    json_decref(read);
    buf_clear(&b);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_nesting),
        cmocka_unit_test(test_scalars_at_the_top_and_reuse),
        cmocka_unit_test(test_strings),
        cmocka_unit_test(test_invalid_utf8),
        cmocka_unit_test(test_any_bytes_are_valid_json),
        cmocka_unit_test(test_huge_string),
        cmocka_unit_test(test_doubles),
        cmocka_unit_test(test_doubles_read_back),
        cmocka_unit_test(test_doubles_in_another_locale),
        cmocka_unit_test(test_wrong_order_is_a_bug),
        cmocka_unit_test(test_deepest_nesting_alternates),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
