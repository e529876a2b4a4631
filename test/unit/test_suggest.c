// SPDX-License-Identifier: Apache-2.0

#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>

#include <cmocka.h>

#include <string.h>

#include "core/suggest.h"

static const char *const names[] = {
    "start", "migrate", "work", "enqueue", "tasks", "show", "cancel", "psql", "log.level",
};

static const char *nearest(const char *word)
{
    return suggest_nearest(word, names, sizeof names / sizeof names[0]);
}

static void test_each_kind_of_edit(void **state)
{
    (void)state;
    assert_string_equal(nearest("start"), "start");
    assert_string_equal(nearest("sttart"), "start");    // one letter too many
    assert_string_equal(nearest("strt"), "start");      // one missing
    assert_string_equal(nearest("stbrt"), "start");     // one wrong
    assert_string_equal(nearest("strat"), "start");     // two swapped
    assert_string_equal(nearest("MIGRAET"), "migrate"); // case does not count
    assert_string_equal(nearest("log.levle"), "log.level");
}

// A swap is one edit: two replacements would put "ab" as far from "ba" as
// from any two-letter word.
static void test_swap_counts_once(void **state)
{
    (void)state;
    static const char *const two[] = {"xyba", "abcd"};
    assert_string_equal(suggest_nearest("abdc", two, 2), "abcd");
    static const char *const pair[] = {"ba"};
    assert_string_equal(suggest_nearest("ab", pair, 1), "ba");
}

static void test_beginning_of_a_name(void **state)
{
    (void)state;
    assert_string_equal(nearest("mig"), "migrate");
    assert_string_equal(nearest("enq"), "enqueue");
    assert_null(nearest("m"));
}

static void test_nearest_wins_and_ties_go_to_the_first(void **state)
{
    (void)state;
    static const char *const list[] = {"abcdxx", "abcdex", "abcdey"};
    assert_string_equal(suggest_nearest("abcdef", list, 3), "abcdex");
}

static void test_too_far(void **state)
{
    (void)state;
    assert_null(nearest("xylophone"));
    assert_null(nearest(""));
    assert_null(nearest("q"));
    assert_null(suggest_nearest("start", NULL, 0));
}

static void test_lengths(void **state)
{
    (void)state;
    char word[300], name[300];
    memset(word, 'a', sizeof word);
    memset(name, 'a', sizeof name);
    const char *one = name;
    word[64] = name[63] = '\0';
    assert_ptr_equal(suggest_nearest(word, &one, 1), name);
    name[63] = 'a';
    name[299] = word[299] = '\0';
    word[64] = 'a';
    assert_null(suggest_nearest(word, &one, 1));
    word[64] = '\0';
    assert_null(suggest_nearest(word, &one, 1));
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_each_kind_of_edit),
        cmocka_unit_test(test_swap_counts_once),
        cmocka_unit_test(test_beginning_of_a_name),
        cmocka_unit_test(test_nearest_wins_and_ties_go_to_the_first),
        cmocka_unit_test(test_too_far),
        cmocka_unit_test(test_lengths),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
