// SPDX-License-Identifier: Apache-2.0

#include "core/json.h"

#include <float.h>
#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "core/err.h"

// Which second bytes may follow a first byte, and how many bytes there are in
// all: table 3-7 of the Unicode standard. It leaves out overlong forms,
// surrogates and what is beyond U+10FFFF.
static const struct utf8_range {
    unsigned char first_min, first_max;
    unsigned char second_min, second_max;
    size_t len;
} utf8_ranges[] = {
    {0xc2, 0xdf, 0x80, 0xbf, 2}, {0xe0, 0xe0, 0xa0, 0xbf, 3}, {0xe1, 0xec, 0x80, 0xbf, 3},
    {0xed, 0xed, 0x80, 0x9f, 3}, {0xee, 0xef, 0x80, 0xbf, 3}, {0xf0, 0xf0, 0x90, 0xbf, 4},
    {0xf1, 0xf3, 0x80, 0xbf, 4}, {0xf4, 0xf4, 0x80, 0x8f, 4},
};

// How many bytes to take for the character at `s`. When it is not valid: as
// many as could have begun one, so that a cut character is replaced once.
static size_t utf8_measure(const unsigned char *s, size_t len, bool *valid)
{
    *valid = s[0] < 0x80;
    if (*valid)
        return 1;
    const struct utf8_range *r = utf8_ranges;
    const struct utf8_range *end = r + sizeof utf8_ranges / sizeof utf8_ranges[0];
    while (r < end && (s[0] < r->first_min || s[0] > r->first_max))
        r++;
    if (r == end || len < 2 || s[1] < r->second_min || s[1] > r->second_max)
        return 1;
    size_t n = 2;
    while (n < r->len && n < len && (s[n] & 0xc0) == 0x80)
        n++;
    *valid = n == r->len;
    return n;
}

// The letter after the backslash, or 0.
static char short_escape(unsigned c)
{
    switch (c) {
    case '"': return '"';
    case '\\': return '\\';
    case '\b': return 'b';
    case '\f': return 'f';
    case '\n': return 'n';
    case '\r': return 'r';
    case '\t': return 't';
    default: return 0;
    }
}

// DEL and the C1 controls are no JSON matter, but a terminal obeys them too.
static bool is_control(unsigned c)
{
    return c < 0x20 || (c >= 0x7f && c < 0xa0);
}

size_t json_escape_char(const char *s, size_t len, char out[JSON_CHAR_MAX],
                        size_t *out_len)
{
    static const char hex[] = "0123456789abcdef";
    const unsigned char *u = (const unsigned char *)s;
    bool valid;
    size_t taken = utf8_measure(u, len, &valid);
    if (!valid) {
        memcpy(out, "\xef\xbf\xbd", 3);
        *out_len = 3;
        return taken;
    }
    // Beyond U+00FF nothing is escaped, so two bytes are enough to look at.
    unsigned c = taken == 1   ? u[0]
                 : taken == 2 ? (u[0] & 0x1fu) << 6 | (u[1] & 0x3fu)
                              : 0xffff;
    char letter = short_escape(c);
    if (letter != 0) {
        out[0] = '\\';
        out[1] = letter;
        *out_len = 2;
    } else if (is_control(c)) {
        memcpy(out, "\\u00", 4);
        out[4] = hex[c >> 4];
        out[5] = hex[c & 15];
        *out_len = 6;
    } else {
        memcpy(out, s, taken);
        *out_len = taken;
    }
    return taken;
}

// printf puts the locale's decimal point, whatever it is, into the number.
static size_t normalise_point(char *s)
{
    char *out = s;
    for (const char *in = s; *in != '\0';) {
        if (strchr("0123456789+-e", *in) != NULL) {
            *out++ = *in++;
            continue;
        }
        *out++ = '.';
        while (*in != '\0' && strchr("0123456789", *in) == NULL)
            in++;
    }
    *out = '\0';
    return (size_t)(out - s);
}

size_t json_format_double(double d, char out[JSON_DOUBLE_MAX])
{
    if (!isfinite(d)) {
        memcpy(out, "null", 5);
        return 4;
    }
    // 15 digits always survive the way to double and back, so %g with them is
    // the shortest form when it works at all; subnormal numbers hold less.
    int digits = fabs(d) < DBL_MIN ? 1 : DBL_DIG;
    do
        snprintf(out, JSON_DOUBLE_MAX, "%.*g", digits, d);
    while (strtod(out, NULL) != d && ++digits <= DBL_DECIMAL_DIG);
    return normalise_point(out);
}

static bool in_object(const struct json *j)
{
    return j->depth > 0 && (j->objects >> (j->depth - 1) & 1) != 0;
}

// What comes before any value.
static void begin_value(struct json *j)
{
    if (in_object(j)) {
        if (!j->key)
            BUG("json: a value in an object without a key");
        j->key = false;
    } else if (j->comma) {
        if (j->depth == 0)
            BUG("json: a second value at the top");
        buf_addc(j->out, ',');
    }
    j->comma = true;
}

static void begin_container(struct json *j, bool object)
{
    begin_value(j);
    if (j->depth == JSON_DEPTH_MAX)
        BUG("json: more than %d levels", JSON_DEPTH_MAX);
    uint64_t bit = (uint64_t)1 << j->depth++;
    j->objects = object ? j->objects | bit : j->objects & ~bit;
    j->comma = false;
    buf_addc(j->out, object ? '{' : '[');
}

static void end_container(struct json *j, bool object)
{
    if (j->depth == 0 || in_object(j) != object)
        BUG("json: end of an %s that is not open", object ? "object" : "array");
    if (j->key)
        BUG("json: a key without a value");
    j->depth--;
    j->comma = true;
    buf_addc(j->out, object ? '}' : ']');
}

static void add_quoted(struct buf *out, const char *s, size_t len)
{
    buf_reserve(out, len + 2);
    buf_addc(out, '"');
    while (len > 0) {
        char escaped[JSON_CHAR_MAX];
        size_t n;
        size_t taken = json_escape_char(s, len, escaped, &n);
        buf_add(out, escaped, n);
        s += taken;
        len -= taken;
    }
    buf_addc(out, '"');
}

void json_init(struct json *j, struct buf *out)
{
    *j = (struct json){.out = out};
}

void json_finish(struct json *j)
{
    if (j->depth != 0)
        BUG("json: %u levels are still open", j->depth);
    if (!j->comma)
        BUG("json: no value");
    j->comma = false;
}

void json_begin_object(struct json *j)
{
    begin_container(j, true);
}

void json_end_object(struct json *j)
{
    end_container(j, true);
}

void json_begin_array(struct json *j)
{
    begin_container(j, false);
}

void json_end_array(struct json *j)
{
    end_container(j, false);
}

void json_add_key(struct json *j, const char *key)
{
    if (!in_object(j) || j->key)
        BUG("json: key \"%s\" where none can be", key);
    if (j->comma)
        buf_addc(j->out, ',');
    add_quoted(j->out, key, strlen(key));
    buf_addc(j->out, ':');
    j->key = true;
}

void json_add_string(struct json *j, const char *s)
{
    if (s != NULL)
        json_add_bytes(j, s, strlen(s));
    else
        json_add_null(j);
}

void json_add_bytes(struct json *j, const char *s, size_t len)
{
    begin_value(j);
    add_quoted(j->out, s, len);
}

void json_add_int(struct json *j, int64_t n)
{
    begin_value(j);
    buf_addf(j->out, "%lld", (long long)n);
}

void json_add_double(struct json *j, double d)
{
    char text[JSON_DOUBLE_MAX];
    begin_value(j);
    buf_add(j->out, text, json_format_double(d, text));
}

void json_add_bool(struct json *j, bool b)
{
    begin_value(j);
    buf_adds(j->out, b ? "true" : "false");
}

void json_add_null(struct json *j)
{
    begin_value(j);
    buf_adds(j->out, "null");
}

void json_add_raw(struct json *j, const char *text, size_t len)
{
    begin_value(j);
    buf_add(j->out, text, len);
}
