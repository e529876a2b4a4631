// SPDX-License-Identifier: Apache-2.0
//
// The literals; that the server reads them as they were meant is in test_conn.

#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <string.h>

#include <cmocka.h>

#include "core/conn_param.h"

static void test_array_literals(void **state)
{
    (void)state;
    struct buf b = BUF_INIT;
    const int64_t ids[] = {INT64_MIN, 0, INT64_MAX};
    const char *texts[] = {"plain", "", NULL, "NULL", "a\"b\\c", "{x, y}"};
    conn_array_int64(&b, ids, 3);
    assert_string_equal(buf_str(&b), "{-9223372036854775808,0,9223372036854775807}");
    buf_reset(&b);
    conn_array_text(&b, texts, 6);
    assert_string_equal(buf_str(&b),
                        "{\"plain\",\"\",NULL,\"NULL\",\"a\\\"b\\\\c\",\"{x, y}\"}");
    buf_reset(&b);
    conn_array_int64(&b, NULL, 0);
    conn_array_text(&b, NULL, 0);
    assert_string_equal(buf_str(&b), "{}{}");
    buf_clear(&b);
}

static void test_params(void **state)
{
    (void)state;
    struct conn_params p = CONN_PARAMS_INIT;
    for (int i = 0; i < 20; i++)
        conn_params_add_int64(&p, i);
    conn_params_add_bytea(&p, "\0x", 2);
    conn_params_add_bytea(&p, NULL, 0);
    conn_params_add_text(&p, NULL);
    conn_params_add_bool(&p, false);
    assert_int_equal(p.count, 24);
    assert_string_equal(p.values[19], "19");
    assert_int_equal(p.formats[19], 0);
    assert_memory_equal(p.values[20], "\0x", 2);
    assert_int_equal(p.lengths[20], 2);
    assert_int_equal(p.formats[20], 1);
    assert_non_null(p.values[21]); // empty is not null
    assert_int_equal(p.lengths[21], 0);
    assert_null(p.values[22]);
    assert_string_equal(p.values[23], "f");
    conn_params_clear(&p);
    assert_int_equal(p.count, 0);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_array_literals),
        cmocka_unit_test(test_params),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
