// SPDX-License-Identifier: Apache-2.0

#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>

#include <cmocka.h>

#include <stdbool.h>
#include <string.h>

#include "core/arena.h"
#include "expect_bug.h"

#if defined(__has_feature)
#if __has_feature(address_sanitizer)
#define WITH_ASAN 1
#endif
#endif
#if defined(__SANITIZE_ADDRESS__)
#define WITH_ASAN 1
#endif
#ifdef WITH_ASAN
#include <sanitizer/asan_interface.h>
#endif

static void test_alignment_and_no_overlap(void **state)
{
    (void)state;
    struct arena a = ARENA_INIT;
    enum {
        COUNT = 2000
    };
    static unsigned char *p[COUNT];
    for (size_t i = 0; i < COUNT; i++) {
        p[i] = arena_alloc(&a, i % 97);
        assert_non_null(p[i]);
        assert_int_equal((uintptr_t)p[i] % 16, 0);
        memset(p[i], (int)(i & 255), i % 97);
    }
    for (size_t i = 0; i < COUNT; i++) {
        for (size_t k = 0; k < i % 97; k++)
            assert_int_equal(p[i][k], i & 255);
    }
    arena_clear(&a);
}

static void test_size_zero_is_distinct(void **state)
{
    (void)state;
    struct arena a = ARENA_INIT;
    void *p = arena_alloc(&a, 0), *q = arena_alloc(&a, 0);
    assert_non_null(p);
    assert_ptr_not_equal(p, q);
    assert_non_null(arena_calloc(&a, 0, 8));
    assert_non_null(arena_memdup(&a, NULL, 0));
    arena_clear(&a);
}

// Also in memory that an earlier use has left dirty.
static void test_calloc_is_zero(void **state)
{
    (void)state;
    struct arena a = ARENA_INIT;
    memset(arena_alloc(&a, 4000), 0xff, 4000);
    arena_reset(&a);
    const char *p = arena_calloc(&a, 40, 100);
    for (int i = 0; i < 4000; i++)
        assert_int_equal(p[i], 0);
    arena_clear(&a);
}

static void test_strings(void **state)
{
    (void)state;
    struct arena a = ARENA_INIT;
    assert_string_equal(arena_strdup(&a, ""), "");
    assert_string_equal(arena_strdup(&a, "hello"), "hello");
    assert_string_equal(arena_strndup(&a, "hello", 3), "hel");
    assert_string_equal(arena_strndup(&a, "hello", 50), "hello");
    assert_string_equal(arena_strndup(&a, "hello", 0), "");
    static const char open_ended[3] = {'a', 'b', 'c'};
    assert_string_equal(arena_strndup(&a, open_ended, 3), "abc");
    assert_string_equal(arena_printf(&a, "%s=%d", "n", 12), "n=12");
    const char *long_text = arena_printf(&a, "%20000d", 7);
    assert_int_equal(strlen(long_text), 20000);
    assert_int_equal(long_text[19999], '7');
    assert_memory_equal(arena_memdup(&a, "a\0b", 3), "a\0b", 3);
    arena_clear(&a);
}

static void test_large_allocation_leaves_the_block_in_use(void **state)
{
    (void)state;
    struct arena a = ARENA_INIT;
    char *p = arena_alloc(&a, 16);
    char *large = arena_alloc(&a, 10 << 20);
    memset(large, 1, 10 << 20);
    char *q = arena_alloc(&a, 16);
    assert_true(q > p && q - p <= 64);
    arena_clear(&a);
}

static void test_reset_reuses_the_same_memory(void **state)
{
    (void)state;
    struct arena a = ARENA_INIT;
    arena_reset(&a); // of an empty one
    void *first = NULL;
    for (int round = 0; round < 100; round++) {
        void *p = arena_alloc(&a, 100);
        if (round == 0)
            first = p;
        assert_ptr_equal(p, first);
        arena_alloc(&a, 1 << 20); // is given back
        arena_reset(&a);
    }
    arena_clear(&a);
    assert_null(a.blocks);
    assert_string_equal(arena_strdup(&a, "usable again"), "usable again");
    arena_clear(&a);
    arena_clear(&a);
}

#ifdef WITH_ASAN
static void test_poisoned_outside_allocations(void **state)
{
    (void)state;
    struct arena a = ARENA_INIT;
    char *p = arena_alloc(&a, 20);
    assert_false(__asan_address_is_poisoned(p));
    assert_false(__asan_address_is_poisoned(p + 19));
    assert_true(__asan_address_is_poisoned(p + 20));
    char *q = arena_alloc(&a, 32);
    assert_true(__asan_address_is_poisoned(q - 1));
    assert_true(__asan_address_is_poisoned(q + 32));
    arena_reset(&a);
    assert_true(__asan_address_is_poisoned(p));
    assert_true(__asan_address_is_poisoned(q));
    arena_clear(&a);
}
#endif

static void alloc_too_much(void)
{
    struct arena a = ARENA_INIT;
    arena_alloc(&a, SIZE_MAX - 8);
}

static void calloc_overflow(void)
{
    struct arena a = ARENA_INIT;
    arena_calloc(&a, SIZE_MAX / 4, 8);
}

static void test_absurd_sizes_are_bugs(void **state)
{
    (void)state;
    expect_bug(alloc_too_much, "allocation of");
    expect_bug(calloc_overflow, "allocation of");
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_alignment_and_no_overlap),
        cmocka_unit_test(test_size_zero_is_distinct),
        cmocka_unit_test(test_calloc_is_zero),
        cmocka_unit_test(test_strings),
        cmocka_unit_test(test_large_allocation_leaves_the_block_in_use),
        cmocka_unit_test(test_reset_reuses_the_same_memory),
#ifdef WITH_ASAN
        cmocka_unit_test(test_poisoned_outside_allocations),
#endif
        cmocka_unit_test(test_absurd_sizes_are_bugs),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
