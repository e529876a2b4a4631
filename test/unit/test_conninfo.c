// SPDX-License-Identifier: Apache-2.0

#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <stdlib.h>
#include <string.h>

#include <cmocka.h>

#include "core/conninfo.h"

#define UNREADABLE "(unreadable connection string)"

static void assert_redacted(const char *in, const char *want)
{
    struct buf b = BUF_INIT;
    conninfo_redact(in, &b);
    assert_string_equal(buf_str(&b), want);
    buf_clear(&b);
}

static void test_redact_uri(void **state)
{
    (void)state;
    assert_redacted("postgresql://user:secret@host/db?password=x",
                    "postgresql://user:***@host/db?password=***");
    assert_redacted("postgres://u:p%40ss%2F@h:5432/d", "postgres://u:***@h:5432/d");
    assert_redacted("postgresql://u@h/d", "postgresql://u@h/d");
    assert_redacted("postgresql://u:@h/d", "postgresql://u:***@h/d");
    assert_redacted("postgresql:///d?host=/tmp&sslpassword=a&user=u&password=b",
                    "postgresql:///d?host=/tmp&sslpassword=***&user=u&password=***");
    assert_redacted("postgresql:///d?p%61ssword=b", "postgresql:///d?p%61ssword=***");
    assert_redacted("postgresql://h1:1,[::1]:2/d?target_session_attrs=read-write",
                    "postgresql://h1:1,[::1]:2/d?target_session_attrs=read-write");
    assert_redacted("postgresql://u:a?b=c@h/d?user=x", "postgresql://u:***@h/d?user=x");
    assert_redacted("postgresql://", "postgresql://");
}

// Passwords that should have been escaped: libpq takes a part of them for
// something else, and would show it.
static void test_redact_misread_passwords(void **state)
{
    (void)state;
    assert_redacted("postgresql://u:se@cret@h/d", "postgresql://u:***@h/d");
    assert_redacted("postgresql://u:12/cret@h/d", "postgresql://u:***@h/d");
    assert_redacted("postgresql://u:se/cret@h/d", UNREADABLE);
    assert_redacted("postgresql://u:secret", UNREADABLE);
    assert_redacted("postgresql://u:se%zzcret@h/d", UNREADABLE);
    assert_redacted("postgresql://u:p@[secret/d", UNREADABLE);
    assert_redacted("postgresql:///d?password=se&cret", UNREADABLE);
    assert_redacted("host=h password=se cret", UNREADABLE);
    assert_redacted("host=h password='se cret", UNREADABLE);
}

static void test_redact_pairs(void **state)
{
    (void)state;
    assert_redacted("", "");
    assert_redacted("host=h password=secret dbname=d", "host=h password=*** dbname=d");
    assert_redacted("password='a b' user=u", "password=*** user=u");
    assert_redacted("password = 'it\\'s \\\\ ' user=u", "password=*** user=u");
    assert_redacted("password=a\\ b user=u", "password=*** user=u");
    assert_redacted("  sslpassword=x\thost = '/a b' ", "sslpassword=*** host='/a b'");
    assert_redacted("password='' user=u", "password=*** user=u");
}

static void test_messages_do_not_quote_passwords(void **state)
{
    (void)state;
    static const char *const bad[] = {
        "host=h password=open secret",         "host=h password='open secret",
        "host=h password=open secret=x",       "postgresql://u:secret%zz@h/d",
        "postgresql://u:open@[secret/d",       "postgresql://u:open@secret@h/d",
        "postgresql://u:open/secret@h/d",      "postgresql:///d?password=open&secret",
        "postgresql:///d?password=a&secret=x", "postgresql://u:secret",
    };
    for (size_t i = 0; i < sizeof bad / sizeof bad[0]; i++) {
        struct err e = ERR_INIT;
        assert_false(conninfo_check(bad[i], &e));
        assert_int_equal(e.code, ERR_USAGE);
        if (strstr(e.msg, "secret") != NULL || strstr(e.hint, "secret") != NULL)
            fail_msg("%s: %s", bad[i], e.msg);
        assert_true(e.hint[0] != '\0');
    }
}

static void test_messages_say_what_they_can(void **state)
{
    (void)state;
    struct err e = ERR_INIT;
    assert_false(conninfo_check("hots=x", &e));
    assert_non_null(strstr(e.msg, "\"hots\""));
    assert_false(conninfo_check("postgresql://h/d?hots=x", &e));
    assert_non_null(strstr(e.msg, "\"hots\""));
    assert_true(conninfo_check("", &e));
    assert_true(conninfo_check("host=@abstract,/tmp,h port=1,2,3", &e));
    assert_true(conninfo_check("postgresql://u:p%40@h1:1,h2/d", &e));
}

static void assert_value(const char *conninfo, const char *key, const char *want)
{
    char *got = conninfo_get(conninfo, key);
    if (want == NULL)
        assert_null(got);
    else
        assert_string_equal(got, want);
    free(got);
}

static void test_params_fill_gaps(void **state)
{
    (void)state;
    const struct conninfo_param params[] = {
        {"connect_timeout", "7", false},
        {"user", "it's \\ me", false},
        {"dbname", "forced", true},
        {"options", NULL, true},
    };
    struct buf b = BUF_INIT;
    unsetenv("PGCONNECT_TIMEOUT");
    unsetenv("PGUSER");
    assert_true(conninfo_with_params("postgresql://:p%20w@h/d?connect_timeout=3", params,
                                     4, &b, NULL));
    assert_value(buf_str(&b), "connect_timeout", "3");
    assert_value(buf_str(&b), "user", "it's \\ me");
    assert_value(buf_str(&b), "dbname", "forced");
    assert_value(buf_str(&b), "password", "p w");
    assert_value(buf_str(&b), "host", "h");
    buf_reset(&b);

    // The user may also have spoken through the environment.
    setenv("PGCONNECT_TIMEOUT", "9", 1);
    assert_true(conninfo_with_params("host=h", params, 4, &b, NULL));
    assert_null(strstr(buf_str(&b), "connect_timeout"));
    assert_value("host=h", "connect_timeout", "9");
    unsetenv("PGCONNECT_TIMEOUT");
    buf_reset(&b);
    assert_false(conninfo_with_params("nonsense", params, 4, &b, NULL));
    assert_int_equal(b.len, 0);
    buf_clear(&b);
}

static void test_defaults(void **state)
{
    (void)state;
    struct buf b = BUF_INIT;
    assert_true(conninfo_with_defaults("host=h", &b, NULL));
    assert_value(buf_str(&b), "tcp_user_timeout", "3500");
    assert_value(buf_str(&b), "keepalives", "1");
    assert_value(buf_str(&b), "keepalives_idle", "10");
    buf_reset(&b);
    assert_true(
        conninfo_with_defaults("host=h tcp_user_timeout=0 keepalives=0", &b, NULL));
    assert_value(buf_str(&b), "tcp_user_timeout", "0");
    assert_value(buf_str(&b), "keepalives", "0");
    buf_clear(&b);
}

static void assert_rotated(const char *in, size_t by, const char *host, const char *port)
{
    struct buf b = BUF_INIT;
    assert_true(conninfo_rotate_hosts(in, by, &b, NULL));
    assert_value(buf_str(&b), "host", host);
    assert_value(buf_str(&b), "port", port);
    buf_clear(&b);
}

static void test_rotate_hosts(void **state)
{
    (void)state;
    unsetenv("PGHOST");
    unsetenv("PGPORT");
    unsetenv("PGHOSTADDR");
    assert_rotated("postgresql://a:1,b:2,c:3/d", 0, "a,b,c", "1,2,3");
    assert_rotated("postgresql://a:1,b:2,c:3/d", 1, "b,c,a", "2,3,1");
    assert_rotated("postgresql://a:1,b:2,c:3/d", 2, "c,a,b", "3,1,2");
    assert_rotated("postgresql://a:1,b:2,c:3/d", 4, "b,c,a", "2,3,1");
    assert_rotated("host=a,b port=5", 1, "b,a", "5");
    assert_rotated("host=a port=5", 1, "a", "5");
    assert_rotated("", 3, NULL, NULL);
    assert_int_equal(conninfo_count_hosts("host=a,b,c"), 3);
    assert_int_equal(conninfo_count_hosts(""), 1);
    setenv("PGHOST", "x,y", 1);
    assert_int_equal(conninfo_count_hosts(""), 2);
    assert_rotated("port=5", 1, "y,x", "5");
    unsetenv("PGHOST");
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_redact_uri),
        cmocka_unit_test(test_redact_misread_passwords),
        cmocka_unit_test(test_redact_pairs),
        cmocka_unit_test(test_messages_do_not_quote_passwords),
        cmocka_unit_test(test_messages_say_what_they_can),
        cmocka_unit_test(test_params_fill_gaps),
        cmocka_unit_test(test_defaults),
        cmocka_unit_test(test_rotate_hosts),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
