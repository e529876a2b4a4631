// SPDX-License-Identifier: Apache-2.0

#include "core/jsontext.h"

#include <jansson.h>
#include <stdint.h>
#include <stdlib.h>
#include <string.h>

#include "core/json.h"

#define NUMBER_MAX_LEN 1000
#define EXPONENT_MAX   400
#define REPLACEMENT    "\xef\xbf\xbd"

// The text is JSON already. A double that is too small is 0 to jansson, and an
// error to numeric.
static bool is_number_fine(const char *number, size_t len)
{
    if (len > NUMBER_MAX_LEN)
        return false;
    size_t at = 0;
    while (at < len && number[at] != 'e' && number[at] != 'E')
        at++;
    at++;
    if (at < len && (number[at] == '-' || number[at] == '+'))
        at++;
    int exponent = 0;
    for (; at < len && exponent <= EXPONENT_MAX; at++)
        exponent = exponent * 10 + (number[at] - '0');
    return exponent <= EXPONENT_MAX;
}

static size_t skip_string(const char *text, size_t len, size_t at)
{
    for (at++; at < len && text[at] != '"'; at++) {
        if (text[at] == '\\')
            at++;
    }
    return at + 1;
}

static bool are_numbers_fine(const char *text, size_t len)
{
    for (size_t at = 0; at < len;) {
        if (text[at] == '"') {
            at = skip_string(text, len, at);
            continue;
        }
        size_t start = at;
        if (text[at] == '-' || (text[at] >= '0' && text[at] <= '9')) {
            while (at < len && text[at] != '\0' &&
                   strchr("+-.eE0123456789", text[at]) != NULL)
                at++;
            if (!is_number_fine(text + start, at - start))
                return false;
        } else {
            at++;
        }
    }
    return true;
}

bool jsontext_is_jsonb(const char *text, size_t len)
{
    json_t *value =
        json_loadb(text, len, JSON_DECODE_ANY | JSON_DECODE_INT_AS_REAL, NULL);
    if (value == NULL)
        return false;
    json_decref(value);
    return are_numbers_fine(text, len);
}

size_t jsontext_cut(const char *text, size_t len, size_t max)
{
    if (len <= max)
        return len;
    // Back over the rest of a character, as far as one can reach.
    for (size_t i = 0; i < 4 && max > i; i++) {
        if (((unsigned char)text[max - i] & 0xc0) != 0x80)
            return max - i;
    }
    return max;
}

void jsontext_add_clean(struct buf *out, const char *text, size_t len)
{
    while (len > 0) {
        char escaped[JSON_CHAR_MAX];
        size_t escaped_len;
        size_t n = json_escape_char(text, len, escaped, &escaped_len);
        if (text[0] == '\0' || (escaped_len == strlen(REPLACEMENT) &&
                                memcmp(escaped, REPLACEMENT, strlen(REPLACEMENT)) == 0))
            buf_adds(out, REPLACEMENT);
        else
            buf_add(out, text, n);
        text += n;
        len -= n;
    }
}

static bool is_blank(const char *text, size_t len)
{
    for (size_t i = 0; i < len; i++) {
        if (text[i] == '\0' || strchr(" \t\r\n", text[i]) == NULL)
            return false;
    }
    return true;
}

void jsontext_add_result(struct buf *out, const char *key, const char *text, size_t len,
                         size_t max)
{
    if (is_blank(text, len))
        return;
    if (jsontext_is_jsonb(text, len)) {
        buf_add(out, text, len);
        return;
    }
    size_t kept = jsontext_cut(text, len, max);
    struct buf clean = BUF_INIT;
    jsontext_add_clean(&clean, text, kept);
    struct json j;
    json_init(&j, out);
    json_begin_object(&j);
    json_add_key(&j, key);
    json_add_bytes(&j, buf_str(&clean), clean.len);
    if (kept < len) {
        json_add_key(&j, "truncated");
        json_add_bool(&j, true);
    }
    json_end_object(&j);
    json_finish(&j);
    buf_clear(&clean);
}
