// SPDX-License-Identifier: Apache-2.0

#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>

#include <cmocka.h>

#include <stdlib.h>
#include <string.h>

#include "core/buf.h"
#include "expect_bug.h"

static void test_empty(void **state)
{
    (void)state;
    struct buf b = BUF_INIT;
    assert_string_equal(buf_str(&b), "");
    buf_add(&b, NULL, 0);
    buf_adds(&b, "");
    assert_int_equal(b.len, 0);
    assert_string_equal(buf_str(&b), "");
    buf_reset(&b);
    buf_clear(&b);
    assert_null(b.data);
    buf_reset(&b);
    buf_clear(&b);
}

static void test_appends(void **state)
{
    (void)state;
    struct buf b = BUF_INIT;
    buf_adds(&b, "one");
    buf_addc(&b, ' ');
    buf_addf(&b, "%d %s", 2, "three");
    assert_string_equal(buf_str(&b), "one 2 three");
    assert_int_equal(b.len, 11);
    buf_clear(&b);
}

static void test_embedded_nul(void **state)
{
    (void)state;
    struct buf b = BUF_INIT;
    buf_add(&b, "a\0b", 3);
    buf_addc(&b, '\0');
    buf_addf(&b, "%c", 0);
    assert_int_equal(b.len, 5);
    assert_memory_equal(b.data, "a\0b\0\0", 6);
    buf_clear(&b);
}

// Byte by byte over every growth step: content and terminator stay right.
static void test_growth(void **state)
{
    (void)state;
    struct buf b = BUF_INIT;
    for (size_t i = 0; i < 5000; i++) {
        buf_addc(&b, (char)('a' + i % 26));
        assert_int_equal(b.len, i + 1);
        assert_true(b.cap > b.len);
        assert_int_equal(b.data[b.len], 0);
    }
    for (size_t i = 0; i < 5000; i++)
        assert_int_equal(b.data[i], 'a' + i % 26);
    buf_clear(&b);
}

static void test_huge(void **state)
{
    (void)state;
    size_t size = (size_t)20 << 20;
    char *big = malloc(size + 1);
    memset(big, 'x', size);
    big[size] = '\0';
    struct buf b = BUF_INIT;
    buf_addf(&b, "<%s>", big);
    assert_int_equal(b.len, size + 2);
    assert_int_equal(b.data[0], '<');
    assert_int_equal(b.data[size + 1], '>');
    free(big);
    buf_clear(&b);
}

static void test_reserve_and_reset_keep_memory(void **state)
{
    (void)state;
    struct buf b = BUF_INIT;
    buf_reserve(&b, 1000);
    assert_string_equal(buf_str(&b), "");
    char *data = b.data;
    for (int i = 0; i < 1000; i++)
        buf_addc(&b, 'x');
    assert_ptr_equal(b.data, data);
    buf_reset(&b);
    assert_int_equal(b.len, 0);
    assert_string_equal(buf_str(&b), "");
    buf_adds(&b, "again");
    assert_ptr_equal(b.data, data);
    buf_clear(&b);
}

static void test_detach(void **state)
{
    (void)state;
    struct buf b = BUF_INIT;
    char *s = buf_detach(&b);
    assert_string_equal(s, "");
    free(s);
    buf_adds(&b, "mine");
    s = buf_detach(&b);
    assert_string_equal(s, "mine");
    assert_null(b.data);
    assert_int_equal(b.len + b.cap, 0);
    free(s);
}

static void test_allocators(void **state)
{
    (void)state;
    free(xmalloc(0));
    unsigned char *p = xcalloc(3, 5);
    for (int i = 0; i < 15; i++)
        assert_int_equal(p[i], 0);
    p = xrealloc(p, 0);
    free(p);
    char *s = xstrdup("copy");
    assert_string_equal(s, "copy");
    free(s);
    s = xasprintf("%s-%05d", "n", 42);
    assert_string_equal(s, "n-00042");
    free(s);
}

static void reserve_too_much(void)
{
    struct buf b = BUF_INIT;
    buf_adds(&b, "x");
    buf_reserve(&b, SIZE_MAX - 1);
}

static void test_absurd_size_is_a_bug(void **state)
{
    (void)state;
    expect_bug(reserve_too_much, "cannot grow");
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_empty),
        cmocka_unit_test(test_appends),
        cmocka_unit_test(test_embedded_nul),
        cmocka_unit_test(test_growth),
        cmocka_unit_test(test_huge),
        cmocka_unit_test(test_reserve_and_reset_keep_memory),
        cmocka_unit_test(test_detach),
        cmocka_unit_test(test_allocators),
        cmocka_unit_test(test_absurd_size_is_a_bug),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
