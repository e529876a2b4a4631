// SPDX-License-Identifier: Apache-2.0

#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>

#include <cmocka.h>

#include <stdio.h>
#include <string.h>

#include "core/buf.h"
#include "lib/base64.h"
#include "lib/sha256.h"

#define ARRAY_SIZE(a) (sizeof(a) / sizeof(a)[0])

static void sum_to_hex(const unsigned char sum[SHA256_SIZE], char out[SHA256_HEX_SIZE])
{
    for (size_t i = 0; i < SHA256_SIZE; i++)
        snprintf(out + 2 * i, 3, "%02x", sum[i]);
}

static void check(const void *key, size_t key_size, const char *data, size_t size,
                  const char *expected)
{
    struct hmac_sha256 h;
    unsigned char sum[SHA256_SIZE];
    char hex[SHA256_HEX_SIZE];
    hmac_sha256_init(&h, key, key_size);
    hmac_sha256_add(&h, data, size);
    hmac_sha256_finish(&h, sum);
    sum_to_hex(sum, hex);
    assert_string_equal(hex, expected);
}

// RFC 4231: short keys, and keys of more than a block.
static void test_hmac_vectors(void **state)
{
    (void)state;
    unsigned char key[131];
    char data[50];
    memset(key, 0x0b, 20);
    check(key, 20, "Hi There", 8,
          "b0344c61d8db38535ca8afceaf0bf12b881dc200c9833da726e9376c2e32cff7");
    check("Jefe", 4, "what do ya want for nothing?", 28,
          "5bdcc146bf60754e6a042426089575c75a003f089d2739839dec58b964ec3843");
    memset(key, 0xaa, sizeof key);
    memset(data, 0xdd, sizeof data);
    check(key, 20, data, 50,
          "773ea91e36800e46854db8ebd09181a72959098b3ef8c122d9635514ced565fe");
    check(key, 131, "Test Using Larger Than Block-Size Key - Hash Key First", 54,
          "60e431591ee0b67f0d8a26aacbf5b77f8e0bc6213728c5140546040f0ee37f54");
    check(key, 131,
          "This is a test using a larger than block-size key and a larger than "
          "block-size data. The key needs to be hashed before being used by the HMAC "
          "algorithm.",
          152, "9b09ffa71b942fcb27635fbcd5b0e944bfdc63644f0713938a7f51535c3a35e2");
}

// However a text is cut into pieces, its sum is the same.
static void test_sha256_in_pieces(void **state)
{
    (void)state;
    char text[300];
    for (size_t i = 0; i < sizeof text; i++)
        text[i] = (char)i;
    for (size_t len = 0; len <= sizeof text; len++) {
        char whole[SHA256_HEX_SIZE];
        sha256_hex(text, len, whole);
        for (size_t step = 1; step < 140; step += 9) {
            struct sha256 h;
            unsigned char sum[SHA256_SIZE];
            char pieces[SHA256_HEX_SIZE];
            sha256_init(&h);
            for (size_t at = 0; at < len; at += step)
                sha256_add(&h, text + at, len - at < step ? len - at : step);
            sha256_finish(&h, sum);
            sum_to_hex(sum, pieces);
            assert_string_equal(pieces, whole);
        }
    }
}

// RFC 4648.
static void test_base64(void **state)
{
    (void)state;
    static const struct {
        const char *plain, *text;
    } vectors[] = {
        {"", ""},
        {"f", "Zg=="},
        {"fo", "Zm8="},
        {"foo", "Zm9v"},
        {"foob", "Zm9vYg=="},
        {"fooba", "Zm9vYmE="},
        {"foobar", "Zm9vYmFy"},
        {"\xfb\xff\xbf", "+/+/"},
    };
    for (size_t i = 0; i < ARRAY_SIZE(vectors); i++) {
        struct buf b = BUF_INIT;
        base64_encode(&b, vectors[i].plain, strlen(vectors[i].plain));
        assert_string_equal(buf_str(&b), vectors[i].text);
        buf_reset(&b);
        assert_true(base64_decode(&b, vectors[i].text, strlen(vectors[i].text)));
        assert_string_equal(buf_str(&b), vectors[i].plain);
        buf_reset(&b);
        assert_true(base64_decode(&b, vectors[i].text, strcspn(vectors[i].text, "=")));
        assert_string_equal(buf_str(&b), vectors[i].plain);
        buf_clear(&b);
    }
}

static void test_base64_refuses(void **state)
{
    (void)state;
    static const char *const bad[] = {"Z",        "Zg=",  "Zm9v=", "Zh==",
                                      "Zm9=",     "====", "Zm9-",  "Zm 9v",
                                      "Zg==Zg==", "=",    "Zm8=\n"};
    for (size_t i = 0; i < ARRAY_SIZE(bad); i++) {
        struct buf b = BUF_INIT;
        buf_adds(&b, "kept");
        assert_false(base64_decode(&b, bad[i], strlen(bad[i])));
        assert_string_equal(buf_str(&b), "kept");
        buf_clear(&b);
    }
    struct buf b = BUF_INIT;
    assert_false(base64_decode(&b, "Zm\0v", 4));
    buf_clear(&b);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_hmac_vectors),
        cmocka_unit_test(test_sha256_in_pieces),
        cmocka_unit_test(test_base64),
        cmocka_unit_test(test_base64_refuses),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
