// SPDX-License-Identifier: Apache-2.0

#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>

#include <cmocka.h>

#include <string.h>

#include "cli/when.h"

static void test_durations(void **state)
{
    static const struct {
        const char *text;
        int64_t ms; // -1: refused
    } cases[] = {
        {"10s", 10000},   {"250ms", 250},
        {"5m", 300000},   {"2h", 7200000},
        {"1d", 86400000}, {"1.5h", 5400000},
        {"0s", 0},        {"0.25s", 250},
        {"10", -1},       {"", -1},
        {"s", -1},        {"-5s", -1},
        {"+5s", -1},      {" 5s", -1},
        {"5 s", -1},      {"5S", -1},
        {"5.s", -1},      {".5s", -1},
        {"5s5", -1},      {"1e3s", -1},
        {"99999d", -1},   {"nan", -1},
        {"5w", -1},       {"99999999999999999999999999999999999999999s", -1},
    };
    (void)state;
    for (size_t i = 0; i < sizeof cases / sizeof cases[0]; i++) {
        int64_t ms = -1;
        bool ok = when_parse_duration(cases[i].text, false, &ms);
        if (ok != (cases[i].ms >= 0) || ms != cases[i].ms)
            fail_msg("%s came out as %lld", cases[i].text, (long long)ms);
    }
    int64_t ms;
    assert_true(when_parse_duration("90", true, &ms));
    assert_int_equal(ms, 90000);
    assert_true(when_parse_duration("2m", true, &ms));
    assert_int_equal(ms, 120000);
    assert_false(when_parse_duration("", true, &ms));
}

static void test_times(void **state)
{
    static const char *const good[] = {
        "2026-11-15",
        "2026-11-15T18:00",
        "2026-11-15 18:00:00",
        "2026-11-15T18:00:00Z",
        "2026-11-15T18:00:00.123456+01:00",
        "2026-11-15T18:00-0330",
        "2026-11-15T18:00:00+01",
    };
    // Some of these the server would take, in a way that surprises.
    static const char *const bad[] = {
        "now",
        "tomorrow",
        "infinity",
        "epoch",
        "15.11.2026",
        "18:00",
        "2026-11-1",
        "2026-11-15T",
        "2026-11-15T18",
        "2026-11-15T18:00 PST",
        "2026-11-15T18:00:00Zx",
        "",
        "+",
        "+5",
        "+-5s",
        "++5s",
        "2026-11-15T18:00:00.",
        "2026-11-15T18:00+1",
    };
    struct when w;
    struct err e = ERR_INIT;
    (void)state;
    for (size_t i = 0; i < sizeof good / sizeof good[0]; i++) {
        if (!when_parse(good[i], &w, &e) || w.relative)
            fail_msg("%s: %s", good[i], e.msg);
        assert_string_equal(w.text, good[i]);
    }
    for (size_t i = 0; i < sizeof bad / sizeof bad[0]; i++) {
        e = ERR_INIT;
        if (when_parse(bad[i], &w, &e))
            fail_msg("\"%s\" is no time", bad[i]);
        assert_int_equal(e.code, ERR_USAGE);
        assert_string_not_equal(e.hint, "");
    }
    assert_true(when_parse("+5m", &w, &e));
    assert_true(w.relative);
    assert_int_equal(w.ms, 300000);
}

static void test_spans(void **state)
{
    static const struct {
        double seconds;
        const char *text;
    } cases[] = {
        {0, "0ms"},    {0.0426, "43ms"}, {1, "1.0s"},     {9.94, "9.9s"},
        {45.4, "45s"}, {119, "119s"},    {120, "2m"},     {7199, "120m"},
        {7200, "2h"},  {172799, "48h"},  {864000, "10d"}, {-2, "-2.0s"},
    };
    (void)state;
    for (size_t i = 0; i < sizeof cases / sizeof cases[0]; i++) {
        struct buf out = BUF_INIT;
        when_add_span(cases[i].seconds, &out);
        assert_string_equal(buf_str(&out), cases[i].text);
        buf_clear(&out);
    }
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_durations),
        cmocka_unit_test(test_times),
        cmocka_unit_test(test_spans),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
