// SPDX-License-Identifier: Apache-2.0

#include "daemon/mail_encode.h"

#include <ctype.h>
#include <stdbool.h>
#include <string.h>

#include "lib/base64.h"

#define LINE_MAX_BYTES 76  // of what is encoded
#define PLAIN_LINE_MAX 900 // of what is not; the protocol takes 998
#define WORD_BYTES_MAX 42  // of text in one encoded word: 56 of base64, 68 in all

static bool is_ascii(const char *s)
{
    for (; *s != '\0'; s++) {
        if ((unsigned char)*s >= 0x80)
            return false;
    }
    return true;
}

// ------------------------------------------------------------------- headers

// A character is never cut: each word is to be readable by itself.
static size_t word_length(const char *s)
{
    size_t len = strlen(s);
    if (len <= WORD_BYTES_MAX)
        return len;
    len = WORD_BYTES_MAX;
    while (len > 1 && ((unsigned char)s[len] & 0xc0) == 0x80)
        len--;
    return len;
}

static void add_words(struct buf *out, const char *text)
{
    for (size_t n; *text != '\0'; text += n) {
        n = word_length(text);
        buf_adds(out, "=?utf-8?B?");
        base64_encode(out, text, n);
        buf_adds(out, text[n] != '\0' ? "?=\r\n " : "?=");
    }
}

void mail_encode_text(struct buf *out, const char *text, size_t column)
{
    // "=?" could be taken for an encoded word.
    if (is_ascii(text) && strstr(text, "=?") == NULL &&
        column + strlen(text) <= LINE_MAX_BYTES)
        buf_adds(out, text);
    else
        add_words(out, text);
}

void mail_encode_phrase(struct buf *out, const char *text)
{
    if (!is_ascii(text) || strstr(text, "=?") != NULL || strlen(text) > 60) {
        add_words(out, text);
        return;
    }
    bool bare = true;
    for (const char *s = text; *s != '\0'; s++)
        bare = bare && (isalnum((unsigned char)*s) || strchr(" -_'", *s) != NULL);
    if (bare) {
        buf_adds(out, text);
        return;
    }
    buf_addc(out, '"');
    for (const char *s = text; *s != '\0'; s++) {
        if (*s == '"' || *s == '\\')
            buf_addc(out, '\\');
        buf_addc(out, *s);
    }
    buf_addc(out, '"');
}

// -------------------------------------------------------------------- bodies

// The next line without its end, and how much was taken with it.
static size_t next_line(const char *s, size_t len, size_t *taken)
{
    size_t n = 0;
    while (n < len && s[n] != '\n' && s[n] != '\r')
        n++;
    *taken = n;
    if (n < len)
        *taken = s[n] == '\r' && n + 1 < len && s[n + 1] == '\n' ? n + 2 : n + 1;
    return n;
}

static bool is_plain(const char *s, size_t len)
{
    size_t line = 0;
    for (size_t i = 0; i < len; i++) {
        unsigned char c = (unsigned char)s[i];
        if (c >= 0x7f || (c < 0x20 && strchr("\t\r\n", c) == NULL) || c == '\0')
            return false;
        line = c == '\r' || c == '\n' ? 0 : line + 1;
        if (line > PLAIN_LINE_MAX)
            return false;
    }
    return true;
}

static void add_quoted_line(struct buf *out, const char *s, size_t len)
{
    size_t column = 0;
    for (size_t i = 0; i < len; i++) {
        unsigned char c = (unsigned char)s[i];
        bool blank = c == ' ' || c == '\t';
        bool bare = (c > 0x20 && c < 0x7f && c != '=') || (blank && i + 1 < len);
        // Room for the sign that the line goes on.
        if (column + (bare ? 1 : 3) > LINE_MAX_BYTES - 1) {
            buf_adds(out, "=\r\n");
            column = 0;
        }
        if (bare) {
            buf_addc(out, (char)c);
            column += 1;
        } else {
            buf_addf(out, "=%02X", c);
            column += 3;
        }
    }
}

void mail_encode_body(struct buf *out, const char *text, size_t len)
{
    bool plain = is_plain(text, len);
    buf_addf(out, "Content-Transfer-Encoding: %s\r\n\r\n",
             plain ? "7bit" : "quoted-printable");
    for (size_t taken; len > 0; text += taken, len -= taken) {
        size_t n = next_line(text, len, &taken);
        if (plain)
            buf_add(out, text, n);
        else
            add_quoted_line(out, text, n);
        buf_adds(out, "\r\n");
    }
}
