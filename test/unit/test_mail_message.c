// SPDX-License-Identifier: Apache-2.0

#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>

#include <cmocka.h>

#include <stdlib.h>
#include <string.h>

#include "daemon/mail_encode.h"
#include "daemon/mail_message.h"

#define ARRAY_SIZE(a) (sizeof(a) / sizeof(a)[0])
#define NOON          1893499200 // 2030-01-01 12:00:00 UTC
#define KEY           "0198-4711"

struct built {
    bool ok;
    struct mail_message m;
    struct arena texts;
    struct err e;
};

static void build(struct built *b, const char *payload)
{
    json_error_t why;
    json_t *j = json_loads(payload, JSON_ALLOW_NUL, &why);
    if (j == NULL)
        fail_msg("%s: %s", payload, why.text);
    *b = (struct built){0};
    b->ok = mail_message_build(&b->m, j, KEY, NOON, &b->texts, &b->e);
    json_decref(j);
}

static void clear(struct built *b)
{
    mail_message_clear(&b->m);
    arena_clear(&b->texts);
}

static void assert_built(struct built *b, const char *payload)
{
    build(b, payload);
    if (!b->ok)
        fail_msg("%s: %s", payload, b->e.msg);
}

static void assert_has(const struct built *b, const char *part)
{
    if (strstr(buf_str(&b->m.data), part) == NULL)
        fail_msg("no \"%s\" in:\n%s", part, buf_str(&b->m.data));
}

static void test_plain(void **state)
{
    (void)state;
    struct built b;
    assert_built(&b, "{\"from_address\": \"shop@example.org\", \"to_address\": "
                     "\"a@example.org\", \"subject\": \"Hello\", \"text\": "
                     "\"one\\ntwo\\r\\n.\\n..three\\n\"}");
    assert_string_equal(buf_str(&b.m.data), "Date: Tue, 01 Jan 2030 12:00:00 +0000\r\n"
                                            "From: shop@example.org\r\n"
                                            "To: a@example.org\r\n"
                                            "Message-ID: <0198-4711@example.org>\r\n"
                                            "Subject: Hello\r\n"
                                            "MIME-Version: 1.0\r\n"
                                            "Content-Type: text/plain; charset=utf-8\r\n"
                                            "Content-Transfer-Encoding: 7bit\r\n"
                                            "\r\n"
                                            "one\r\ntwo\r\n.\r\n..three\r\n");
    assert_string_equal(b.m.sender, "<shop@example.org>");
    assert_int_equal(b.m.recipient_count, 1);
    assert_string_equal(b.m.recipients[0], "<a@example.org>");
    assert_null(b.m.recipients[1]);
    clear(&b);
}

static void test_alternatives(void **state)
{
    (void)state;
    struct built b;
    assert_built(&b, "{\"from_address\": \"s@example.org\", \"to_address\": \"a@b.c\", "
                     "\"text\": \"gr\\u00fc\\u00dfe \", \"html\": \"<p>hi</p>\"}");
    assert_has(&b, "Content-Type: multipart/alternative; boundary=\"=_");
    assert_has(&b, "Content-Type: text/plain; charset=utf-8\r\n"
                   "Content-Transfer-Encoding: quoted-printable\r\n\r\n"
                   "gr=C3=BC=C3=9Fe=20\r\n");
    assert_has(&b, "Content-Type: text/html; charset=utf-8\r\n"
                   "Content-Transfer-Encoding: 7bit\r\n\r\n<p>hi</p>\r\n");
    // The boundary ends it, and is in neither part.
    const char *data = buf_str(&b.m.data);
    const char *mark = strstr(data, "boundary=\"") + strlen("boundary=\"");
    char line[64];
    snprintf(line, sizeof line, "\r\n--%.42s--\r\n", mark);
    assert_string_equal(data + b.m.data.len - strlen(line), line);
    clear(&b);

    assert_built(&b, "{\"from_address\": \"s@example.org\", \"to_address\": \"a@b.c\", "
                     "\"html\": \"<p>hi</p>\"}");
    assert_has(&b, "Content-Type: text/html; charset=utf-8\r\n");
    assert_has(&b, "Subject: \r\n");
    clear(&b);
}

static void test_recipients(void **state)
{
    (void)state;
    struct built b;
    assert_built(
        &b, "{\"from_address\": \"Shop \\\"The\\\" <s@example.org>\", \"to_address\": "
            "[\"a@b.c\", \"\\\"Last, First\\\" <d@e.f>, Plain Name <g@h.i>\"], "
            "\"cc_address\": \"J\\u00f6rg <j@k.l>\", \"bcc_address\": \"m@n.o\", "
            "\"reply_to\": \"r@s.t\", \"subject\": \"x\", \"message_id\": 77}");
    assert_int_equal(b.m.recipient_count, 5);
    static const char *const expected[] = {"<a@b.c>", "<d@e.f>", "<g@h.i>", "<j@k.l>",
                                           "<m@n.o>"};
    for (size_t i = 0; i < 5; i++)
        assert_string_equal(b.m.recipients[i], expected[i]);
    assert_has(&b, "From: \"Shop \\\"The\\\"\" <s@example.org>\r\n");
    assert_has(&b, "To: a@b.c,\r\n \"Last, First\" <d@e.f>,\r\n Plain Name <g@h.i>\r\n");
    assert_has(&b, "Cc: =?utf-8?B?SsO2cmc=?= <j@k.l>\r\n");
    assert_has(&b, "Reply-To: r@s.t\r\n");
    assert_has(&b, "Message-ID: <77@example.org>\r\n");
    assert_null(strstr(buf_str(&b.m.data), "m@n.o")); // that is what bcc is for
    clear(&b);

    assert_built(&b, "{\"from_address\": \"s@t.u\", \"bcc_address\": [\"a@b.c\"], "
                     "\"message_id\": \"<given@there>\"}");
    assert_has(&b, "To: undisclosed-recipients:;\r\n");
    assert_has(&b, "Message-ID: <given@there>\r\n");
    assert_string_equal(b.m.message_id, "<given@there>");
    clear(&b);
}

// Nothing that is in a payload ends a header or becomes a command.
static void test_injection(void **state)
{
    (void)state;
    static const char *const values[] = {
        "x\\r\\nBcc: evil@example.org",
        "x\\nBcc: evil@example.org",
        "x\\rBcc: evil@example.org",
        "x\\u0000y",
        "x\\u000b",
        "x\\u007f",
        "a@b.c>\\r\\nRCPT TO:<evil@example.org",
    };
    static const char *const fields[] = {"from_address", "to_address", "cc_address",
                                         "bcc_address",  "reply_to",   "subject",
                                         "message_id"};
    for (size_t f = 0; f < ARRAY_SIZE(fields); f++) {
        for (size_t v = 0; v < ARRAY_SIZE(values); v++) {
            char payload[512];
            struct built b;
            // The last of two counts.
            snprintf(payload, sizeof payload,
                     "{\"from_address\": \"s@example.org\", \"to_address\": \"a@b.c\", "
                     "\"subject\": \"s\", \"text\": \"t\", \"%s\": \"%s\"}",
                     fields[f], values[v]);
            build(&b, payload);
            if (b.ok)
                fail_msg("taken: %s\n%s", payload, buf_str(&b.m.data));
            clear(&b);
            // In a name, and as one of several.
            snprintf(payload, sizeof payload,
                     "{\"from_address\": \"s@example.org\", \"to_address\": "
                     "[\"a@b.c\", \"%s <a@b.c>\"]}",
                     values[v]);
            build(&b, payload);
            assert_false(b.ok);
            clear(&b);
        }
    }
}

static void test_bad(void **state)
{
    (void)state;
    static const char *const addresses[] = {
        "",
        "a",
        "@b.c",
        "a@",
        "a@b@c",
        "a b@c.d",
        "a@b c.d",
        "<a@b.c",
        "a@b.c>",
        "<a@b.c> x",
        "a@b.c,",
        ",",
        "a@b..c",
        ".a@b.c",
        "a.@b.c",
        "a@-b.c",
        "a@[1.2.3.4]",
        "\\\"a b\\\"@c.d",
        "a@b.c;d@e.f",
        "a@b.c d@e.f",
        "a@b\\u00fc.c",
        "<<a@b.c>>",
        "a@b.c\\\\",
        "a@b.c SIZE=1",
        "a@b.c> SIZE=1",
        "(x)a@b.c",
    };
    for (size_t i = 0; i < ARRAY_SIZE(addresses); i++) {
        char payload[256];
        struct built b;
        snprintf(payload, sizeof payload,
                 "{\"from_address\": \"s@t.u\", \"to_address\": \"%s\"}", addresses[i]);
        build(&b, payload);
        if (b.ok)
            fail_msg("taken: %s", payload);
        clear(&b);
    }
    static const struct {
        const char *payload;
        const char *error;
    } others[] = {
        {"{}", "from_address is missing"},
        {"{\"from_address\": \"a@b.c\"}", "to_address is missing"},
        {"{\"from_address\": \"a@b.c, d@e.f\", \"to_address\": \"x@y.z\"}",
         "from_address has several addresses"},
        {"{\"from_address\": \"a@b.c\", \"to_address\": 7}",
         "to_address is neither a text nor an array of texts"},
        {"{\"from_address\": \"a@b.c\", \"to_address\": [[]]}",
         "to_address is neither a text nor an array of texts"},
        {"{\"from_address\": \"a@b.c\", \"to_address\": []}", "to_address is missing"},
        {"{\"from_address\": \"a@b.c\", \"to_address\": \"a@b.c\", \"subject\": 1}",
         "subject is not a text"},
        {"{\"from_address\": \"a@b.c\", \"to_address\": \"a@b.c\", \"text\": {}}",
         "text is not a text"},
        {"{\"from_address\": \"a@b.c\", \"to_address\": \"a@b.c\", \"message_id\": []}",
         "message_id is not a text"},
        {"{\"from_address\": \"a@b.c\", \"to_address\": \"a@b.c\", \"message_id\": \"a "
         "b\"}",
         "message_id \"a b@b.c\" cannot be that of a message"},
        {"{\"from_address\": \"a@b.c\", \"to_address\": \"a@b.c\", \"message_id\": "
         "\"<a><b>\"}",
         "message_id \"a><b@b.c\" cannot be that of a message"},
    };
    for (size_t i = 0; i < ARRAY_SIZE(others); i++) {
        struct built b;
        build(&b, others[i].payload);
        assert_false(b.ok);
        assert_string_equal(b.e.msg, others[i].error);
        clear(&b);
    }
}

static void test_too_many(void **state)
{
    (void)state;
    struct buf payload = BUF_INIT;
    buf_adds(&payload, "{\"from_address\": \"a@b.c\", \"to_address\": [");
    for (int i = 0; i <= MAIL_RECIPIENTS_MAX; i++)
        buf_addf(&payload, "%s\"u%d@b.c\"", i > 0 ? "," : "", i);
    buf_adds(&payload, "]}");
    struct built b;
    build(&b, buf_str(&payload));
    assert_false(b.ok);
    clear(&b);
    buf_clear(&payload);
}

// Every line is one that mail systems take, whatever the text.
static void test_lines(void **state)
{
    (void)state;
    struct buf out = BUF_INIT;
    char text[3001];
    for (size_t i = 0; i < sizeof text - 1; i++)
        text[i] = "ab =.\xc3\xbc"[i % 7];
    text[sizeof text - 1] = '\0';
    mail_encode_body(&out, text, sizeof text - 1);
    mail_encode_text(&out, text + 3, 9);
    size_t column = 0;
    for (size_t i = 0; i < out.len; i++) {
        assert_true((unsigned char)out.data[i] < 0x80);
        column = out.data[i] == '\n' ? 0 : column + 1;
        assert_true(column <= 78);
    }
    buf_clear(&out);

    // A long ASCII subject is folded by encoding it; "=?" is not taken for a word.
    static const char *const subjects[] = {"=?utf-8?B?x?=", "a\tb"};
    static const char *const encoded[] = {"=?utf-8?B?PT91dGYtOD9CP3g/PQ==?=", "a\tb"};
    for (size_t i = 0; i < ARRAY_SIZE(subjects); i++) {
        mail_encode_text(&out, subjects[i], 9);
        assert_string_equal(buf_str(&out), encoded[i]);
        buf_reset(&out);
    }
    mail_encode_body(&out, "", 0);
    assert_string_equal(buf_str(&out), "Content-Transfer-Encoding: 7bit\r\n\r\n");
    buf_reset(&out);
    mail_encode_body(&out, "a\rb\n\nc", 6);
    assert_string_equal(buf_str(&out),
                        "Content-Transfer-Encoding: 7bit\r\n\r\na\r\nb\r\n\r\nc\r\n");
    buf_clear(&out);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_plain),      cmocka_unit_test(test_alternatives),
        cmocka_unit_test(test_recipients), cmocka_unit_test(test_injection),
        cmocka_unit_test(test_bad),        cmocka_unit_test(test_too_many),
        cmocka_unit_test(test_lines),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
