// SPDX-License-Identifier: Apache-2.0

#include "core/conn_param.h"

#include <inttypes.h>
#include <limits.h>
#include <stdlib.h>
#include <string.h>

#include "core/err.h"

void conn_params_clear(struct conn_params *p)
{
    for (int i = 0; i < p->count; i++)
        free(p->values[i]);
    free(p->values);
    free(p->lengths);
    free(p->formats);
    *p = CONN_PARAMS_INIT;
}

// Takes `value`.
static void add_owned(struct conn_params *p, char *value, size_t len, int format)
{
    if (len > INT_MAX)
        BUG("a parameter of %zu bytes", len);
    if (p->count == p->cap) {
        p->cap = p->cap != 0 ? p->cap * 2 : 8;
        size_t n = (size_t)p->cap;
        p->values = xrealloc(p->values, n * sizeof p->values[0]);
        p->lengths = xrealloc(p->lengths, n * sizeof p->lengths[0]);
        p->formats = xrealloc(p->formats, n * sizeof p->formats[0]);
    }
    p->values[p->count] = value;
    p->lengths[p->count] = (int)len;
    p->formats[p->count] = format;
    p->count++;
}

void conn_params_add_null(struct conn_params *p)
{
    add_owned(p, NULL, 0, 0);
}

void conn_params_add_text(struct conn_params *p, const char *s)
{
    if (s == NULL)
        conn_params_add_null(p);
    else
        add_owned(p, xstrdup(s), strlen(s), 0);
}

void conn_params_add_int64(struct conn_params *p, int64_t v)
{
    char *s = xasprintf("%" PRId64, v);
    add_owned(p, s, strlen(s), 0);
}

void conn_params_add_bool(struct conn_params *p, bool v)
{
    conn_params_add_text(p, v ? "t" : "f");
}

void conn_params_add_int64s(struct conn_params *p, const int64_t *v, size_t n)
{
    struct buf b = BUF_INIT;
    conn_array_int64(&b, v, n);
    size_t len = b.len;
    add_owned(p, buf_detach(&b), len, 0);
}

void conn_params_add_texts(struct conn_params *p, const char *const *v, size_t n)
{
    struct buf b = BUF_INIT;
    conn_array_text(&b, v, n);
    size_t len = b.len;
    add_owned(p, buf_detach(&b), len, 0);
}

void conn_params_add_bytea(struct conn_params *p, const void *data, size_t len)
{
    char *copy = xmalloc(len);
    if (len != 0)
        memcpy(copy, data, len);
    add_owned(p, copy, len, 1);
}

void conn_array_int64(struct buf *out, const int64_t *v, size_t n)
{
    buf_addc(out, '{');
    for (size_t i = 0; i < n; i++)
        buf_addf(out, "%s%" PRId64, i > 0 ? "," : "", v[i]);
    buf_addc(out, '}');
}

// Always quoted: so an empty string, a comma, braces, spaces and the word NULL
// need no thought, and only the quote and the backslash are special.
static void add_element(struct buf *out, const char *s)
{
    buf_addc(out, '"');
    while (*s != '\0') {
        size_t plain = strcspn(s, "\"\\");
        buf_add(out, s, plain);
        s += plain;
        if (*s != '\0') {
            buf_addc(out, '\\');
            buf_addc(out, *s++);
        }
    }
    buf_addc(out, '"');
}

void conn_array_text(struct buf *out, const char *const *v, size_t n)
{
    buf_addc(out, '{');
    for (size_t i = 0; i < n; i++) {
        if (i > 0)
            buf_addc(out, ',');
        if (v[i] == NULL)
            buf_adds(out, "NULL");
        else
            add_element(out, v[i]);
    }
    buf_addc(out, '}');
}
