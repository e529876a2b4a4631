// SPDX-License-Identifier: Apache-2.0
//
// The parts of the benchmark that can be wrong without anybody noticing:
// percentiles, the report, payloads and the reading of CPU time.

#include <math.h>
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>
#include <unistd.h>

#include <cmocka.h>

#include "bench/load.h"
#include "bench/meter.h"
#include "bench/report.h"
#include "bench/samples.h"
#include "expect_bug.h"

// Within a rounding error; cmocka's own comparison is of float.
static void assert_near(double a, double b)
{
    if (!(fabs(a - b) <= 1e-9 * fabs(b)))
        fail_msg("%.17g is not %.17g", a, b);
}

static void test_percentiles(void **state)
{
    (void)state;
    struct samples s = SAMPLES_INIT;
    assert_true(isnan(samples_percentile(&s, 50)));
    assert_true(isnan(samples_median(&s)));
    assert_true(isnan(samples_mean(&s)));
    samples_add(&s, 7);
    assert_near(samples_percentile(&s, 1), 7);
    assert_near(samples_percentile(&s, 99), 7);
    assert_near(samples_median(&s), 7);
    samples_clear(&s);

    // 1 to 1000 in an order that is not sorted.
    for (int i = 0; i < 1000; i++)
        samples_add(&s, (double)(i * 7 % 1000 + 1));
    assert_near(samples_percentile(&s, 50), 500);
    assert_near(samples_percentile(&s, 95), 950);
    assert_near(samples_percentile(&s, 99), 990);
    assert_near(samples_percentile(&s, 99.9), 999);
    assert_near(samples_percentile(&s, 100), 1000);
    assert_near(samples_percentile(&s, 0.001), 1);
    assert_near(samples_median(&s), 500.5);
    assert_near(samples_mean(&s), 500.5);

    // Added after it was sorted.
    samples_add(&s, -1e6);
    assert_near(samples_percentile(&s, 0.01), -1e6);
    assert_near(samples_median(&s), 500);
    samples_clear(&s);
}

static void ask_percentile_zero(void)
{
    struct samples s = SAMPLES_INIT;
    samples_percentile(&s, 0);
}

static void test_percentile_zero_is_a_bug(void **state)
{
    (void)state;
    expect_bug(ask_percentile_zero, "percentile");
}

static void test_report(void **state)
{
    (void)state;
    struct report r = REPORT_INIT;
    struct buf out = BUF_INIT;
    report_add_text(&r, "scenario", "drain \"x\"");
    report_add_int(&r, "tasks", 1234567);
    report_add_number(&r, "tasks_per_s", 271234.567);
    report_add_number(&r, "p50_ms", 0.30000000000000004);
    report_add_number(&r, "small", 0.000123456);
    report_add_number(&r, "server_us_per_task", NAN);
    report_add_ratio(&r, "ratio", 3, 2);
    report_add_ratio(&r, "no_ratio", 3, 0);
    report_print_json(&r, &out);
    assert_string_equal(buf_str(&out),
                        "{\"scenario\":\"drain \\\"x\\\"\",\"tasks\":1234567,"
                        "\"tasks_per_s\":271235,\"p50_ms\":0.3,\"small\":0.0001235,"
                        "\"server_us_per_task\":null,\"ratio\":1.5,\"no_ratio\":null}");
    buf_reset(&out);
    report_print_table(&r, &out);
    assert_non_null(strstr(buf_str(&out), "tasks               1,234,567\n"));
    assert_non_null(strstr(buf_str(&out), "tasks_per_s         271,235\n"));
    assert_non_null(strstr(buf_str(&out), "server_us_per_task  not known\n"));
    assert_non_null(report_find(&r, "ratio"));
    assert_null(report_find(&r, "rat"));
    report_clear(&r);
    buf_clear(&out);
}

static void test_payloads(void **state)
{
    (void)state;
    struct buf out = BUF_INIT;
    load_add_payload(&out, 12, 0);
    assert_string_equal(out.data, "{\"n\":12}");
    assert_int_equal(load_read_payload(out.data), 12);
    for (int bytes = 0; bytes < 40; bytes++) {
        buf_reset(&out);
        load_add_payload(&out, 3456, bytes);
        assert_int_equal(load_read_payload(out.data), 3456);
        assert_int_equal(out.len, strlen(out.data));
        if (bytes > 20)
            assert_int_equal(out.len, bytes);
    }
    // As the server prints it.
    assert_int_equal(load_read_payload("{\"n\": 9, \"pad\": \"x\"}"), 9);
    assert_int_equal(load_read_payload("{\"n\": \"9\"}"), -1);
    assert_int_equal(load_read_payload("{\"m\": 9}"), -1);
    assert_int_equal(load_read_payload("{}"), -1);

    buf_reset(&out);
    load_add_array(&out, 8, 3, 0);
    assert_string_equal(out.data,
                        "{\"{\\\"n\\\":8}\",\"{\\\"n\\\":9}\",\"{\\\"n\\\":10}\"}");
    buf_reset(&out);
    load_add_rows(&out, 1, 2, 0);
    assert_string_equal(out.data, "bench_noop\t{\"n\":1}\nbench_noop\t{\"n\":2}\n");
    buf_clear(&out);
}

// What this process uses up must show.
static void test_cpu_time(void **state)
{
    (void)state;
    double before = meter_read_cpu((int)getpid());
    assert_false(isnan(before));
    clock_t end = clock() + CLOCKS_PER_SEC / 20;
    while (clock() < end)
        ;
    double used = meter_read_cpu((int)getpid()) - before;
    assert_true(used > 20e3 && used < 10e6);
    assert_true(isnan(meter_read_cpu(0x7fffffff)));
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_percentiles),
        cmocka_unit_test(test_percentile_zero_is_a_bug),
        cmocka_unit_test(test_report),
        cmocka_unit_test(test_payloads),
        cmocka_unit_test(test_cpu_time),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
