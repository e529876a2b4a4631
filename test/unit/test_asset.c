// SPDX-License-Identifier: Apache-2.0
//
// The embedded files: the table is sorted, complete, and equal to the files it
// was made from. Runs in the root of the repository, as test/run does.

#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include <cmocka.h>
#include <glob.h>

#include "core/asset.h"

static void test_table_is_sorted(void **state)
{
    (void)state;
    assert_true(pgkin_asset_count > 0);
    for (size_t i = 1; i < pgkin_asset_count; i++)
        assert_true(strcmp(pgkin_assets[i - 1].name, pgkin_assets[i].name) < 0);
}

static void test_every_entry_is_found(void **state)
{
    (void)state;
    for (size_t i = 0; i < pgkin_asset_count; i++)
        assert_ptr_equal(asset_find(pgkin_assets[i].name), &pgkin_assets[i]);
}

static void test_unknown_names_are_not_found(void **state)
{
    (void)state;
    assert_null(asset_find(""));
    assert_null(asset_find("sql/migrations"));
    assert_null(asset_find("zzz"));
}

static void test_content_equals_the_file(void **state)
{
    (void)state;
    for (size_t i = 0; i < pgkin_asset_count; i++) {
        const struct asset *a = &pgkin_assets[i];
        FILE *f = fopen(a->name, "rb");
        assert_non_null(f);
        char *text = malloc(a->size + 1);
        assert_non_null(text);
        // One more than expected, to see that the file is not longer.
        assert_int_equal(fread(text, 1, a->size + 1, f), a->size);
        assert_memory_equal(text, a->data, a->size);
        assert_int_equal(a->data[a->size], '\0');
        free(text);
        fclose(f);
    }
}

static void test_every_file_is_embedded(void **state)
{
    (void)state;
    glob_t found;
    assert_int_equal(glob("sql/*/*.sql", 0, NULL, &found), 0);
    for (size_t i = 0; i < found.gl_pathc; i++)
        assert_non_null(asset_find(found.gl_pathv[i]));
    globfree(&found);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_table_is_sorted),
        cmocka_unit_test(test_every_entry_is_found),
        cmocka_unit_test(test_unknown_names_are_not_found),
        cmocka_unit_test(test_content_equals_the_file),
        cmocka_unit_test(test_every_file_is_embedded),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
