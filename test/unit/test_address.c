// SPDX-License-Identifier: Apache-2.0

#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>

#include <cmocka.h>

#include <string.h>
#include <sys/un.h>

#include "core/address.h"

#define ARRAY_SIZE(a) (sizeof(a) / sizeof(a)[0])

static const char *refusal(const char *text, const struct address_net *allow, size_t n)
{
    struct sockaddr_storage sa;
    if (!address_parse(text, &sa))
        fail_msg("%s is not an address", text);
    return address_refusal((const struct sockaddr *)&sa, allow, n);
}

static void test_refused(void **state)
{
    (void)state;
    static const struct {
        const char *address, *why;
    } cases[] = {
        {"0.0.0.0", "an unspecified address"},
        {"0.1.2.3", "an unspecified address"},
        {"10.0.0.1", "a private address"},
        {"10.255.255.255", "a private address"},
        {"100.64.0.1", "an address shared by a provider's customers"},
        {"100.100.100.200", "an address shared by a provider's customers"},
        {"127.0.0.1", "a loopback address"},
        {"127.255.255.254", "a loopback address"},
        {"168.63.129.16", "a cloud's metadata address"},
        {"169.254.169.254", "a link-local address"},
        {"172.16.0.1", "a private address"},
        {"172.31.255.255", "a private address"},
        {"192.0.0.192", "a special-purpose address"},
        {"192.168.0.1", "a private address"},
        {"198.19.255.255", "a benchmarking address"},
        {"203.0.113.7", "a documentation address"},
        {"224.0.0.1", "a multicast address"},
        {"239.255.255.255", "a multicast address"},
        {"255.255.255.255", "a reserved address"},
        {"::", "an unspecified address"},
        {"::1", "a loopback address"},
        {"::2", "an unspecified address"},
        {"::127.0.0.1", "a loopback address"},
        {"::ffff:127.0.0.1", "a loopback address"},
        {"::ffff:10.1.2.3", "a private address"},
        {"::ffff:169.254.169.254", "a link-local address"},
        {"::ffff:0:127.0.0.1", "a loopback address"},
        {"64:ff9b::7f00:1", "a loopback address"},
        {"64:ff9b::169.254.169.254", "a link-local address"},
        {"64:ff9b:1::1", "a local NAT64 address"},
        {"2002:7f00:1::", "a loopback address"},
        {"2002:a9fe:a9fe::1", "a link-local address"},
        {"2002:c0a8:101::1", "a private address"},
        {"2001:0:4136:e378:8000:63bf:3fff:fdd2", "a Teredo address"},
        {"2001:db8::1", "a documentation address"},
        {"100::1", "a discard-only address"},
        {"fc00::1", "a private address"},
        {"fd00:ec2::254", "a private address"},
        {"fe80::1", "a link-local address"},
        {"febf::1", "a link-local address"},
        {"fec0::1", "a private address"},
        {"ff02::1", "a multicast address"},
    };
    for (size_t i = 0; i < ARRAY_SIZE(cases); i++) {
        const char *why = refusal(cases[i].address, NULL, 0);
        if (why == NULL)
            fail_msg("%s is let through", cases[i].address);
        assert_string_equal(why, cases[i].why);
    }
}

static void test_public(void **state)
{
    (void)state;
    static const char *const cases[] = {
        "1.1.1.1",
        "8.8.8.8",
        "9.255.255.255",
        "11.0.0.0",
        "100.63.255.255",
        "100.128.0.0",
        "126.255.255.255",
        "128.0.0.1",
        "168.63.129.15",
        "169.253.255.255",
        "172.15.255.255",
        "172.32.0.0",
        "192.167.255.255",
        "223.255.255.255",
        "2606:4700:4700::1111",
        "2001:4860:4860::8888",
        "::ffff:8.8.8.8",
        "64:ff9b::808:808",
        "2002:808:808::1",
    };
    for (size_t i = 0; i < ARRAY_SIZE(cases); i++) {
        const char *why = refusal(cases[i], NULL, 0);
        if (why != NULL)
            fail_msg("%s is taken for %s", cases[i], why);
    }
}

// An IPv4 network also opens the ways to write its addresses in IPv6, and
// nothing besides.
static void test_allowed(void **state)
{
    (void)state;
    struct err e = ERR_INIT;
    struct address_net allow[3];
    assert_true(address_parse_net("10.1.0.0/16", &allow[0], &e));
    assert_true(address_parse_net("127.0.0.1", &allow[1], &e));
    assert_true(address_parse_net("fd12:3456::/33", &allow[2], &e));
    static const char *const open[] = {
        "10.1.0.0",         "10.1.255.255",    "127.0.0.1",         "::ffff:10.1.2.3",
        "64:ff9b::a01:203", "2002:a01:203::9", "fd12:3456:7fff::1",
    };
    static const char *const closed[] = {
        "10.0.255.255",      "10.2.0.0",     "127.0.0.2",       "::1",
        "fd12:3456:8000::1", "fd12:3457::1", "::ffff:10.2.0.0",
    };
    for (size_t i = 0; i < ARRAY_SIZE(open); i++)
        assert_null(refusal(open[i], allow, 3));
    for (size_t i = 0; i < ARRAY_SIZE(closed); i++)
        assert_non_null(refusal(closed[i], allow, 3));

    assert_true(address_parse_net("0.0.0.0/0", &allow[0], &e));
    assert_null(refusal("192.168.1.1", allow, 1));
    assert_non_null(refusal("::1", allow, 1));
}

static void test_parse_net(void **state)
{
    (void)state;
    struct err e = ERR_INIT;
    struct address_net net;
    assert_true(address_parse_net("192.168.4.0/22", &net, &e));
    assert_int_equal(net.family, AF_INET);
    assert_int_equal(net.prefix, 22);
    assert_true(address_parse_net("::1", &net, &e));
    assert_int_equal(net.prefix, 128);
    assert_true(address_parse_net("::/0", &net, &e));
    assert_int_equal(net.prefix, 0);
    static const char *const bad[] = {
        "",
        "10",
        "10/8",
        "10.0.0.0/33",
        "10.0.0.0/",
        "10.0.0.0/-1",
        "10.0.0.0/ 8",
        "10.0.0.0/8x",
        "10.0.0.1/8",
        "::1/127",
        "::/129",
        "localhost",
        "/8",
        "fe80::1%eth0",
        "10.0.0.0/0008",
        "010.0.0.0/8",
        "0x7f.0.0.1",
        "11111111111111111111111111111111111111111111111111111111111111111111111/8",
    };
    for (size_t i = 0; i < ARRAY_SIZE(bad); i++) {
        if (address_parse_net(bad[i], &net, &e))
            fail_msg("\"%s\" is taken for a network", bad[i]);
        assert_string_not_equal(e.msg, "");
    }
}

static void test_other_families(void **state)
{
    (void)state;
    struct sockaddr_un un = {.sun_family = AF_UNIX};
    char text[ADDRESS_TEXT_MAX];
    const struct sockaddr *sa = (const struct sockaddr *)&un;
    assert_string_equal(address_refusal(sa, NULL, 0), "not an internet address");
    assert_string_equal(address_text(sa, text), "?");
    struct sockaddr_storage v6;
    assert_true(address_parse("2001:0DB8::0:1", &v6));
    assert_string_equal(address_text((const struct sockaddr *)&v6, text), "2001:db8::1");
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_refused),        cmocka_unit_test(test_public),
        cmocka_unit_test(test_allowed),        cmocka_unit_test(test_parse_net),
        cmocka_unit_test(test_other_families),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
