// SPDX-License-Identifier: Apache-2.0

#include "core/buf.h"

#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "core/err.h"

void *xmalloc(size_t size)
{
    void *p = malloc(size != 0 ? size : 1);
    if (p == NULL)
        BUG("out of memory (%zu bytes)", size);
    return p;
}

void *xcalloc(size_t n, size_t size)
{
    void *p = calloc(n != 0 ? n : 1, size != 0 ? size : 1);
    if (p == NULL)
        BUG("out of memory (%zu times %zu bytes)", n, size);
    return p;
}

void *xrealloc(void *p, size_t size)
{
    void *q = realloc(p, size != 0 ? size : 1);
    if (q == NULL)
        BUG("out of memory (%zu bytes)", size);
    return q;
}

char *xstrdup(const char *s)
{
    size_t size = strlen(s) + 1;
    return memcpy(xmalloc(size), s, size);
}

char *xasprintf(const char *fmt, ...)
{
    struct buf b = BUF_INIT;
    va_list ap;
    va_start(ap, fmt);
    buf_vaddf(&b, fmt, ap);
    va_end(ap);
    return buf_detach(&b);
}

void buf_clear(struct buf *b)
{
    free(b->data);
    *b = BUF_INIT;
}

void buf_reset(struct buf *b)
{
    b->len = 0;
    if (b->data != NULL)
        b->data[0] = '\0';
}

void buf_reserve(struct buf *b, size_t extra)
{
    if (extra > SIZE_MAX / 2 - b->len - 1)
        BUG("buffer of %zu bytes cannot grow by %zu", b->len, extra);
    size_t need = b->len + extra + 1;
    if (need <= b->cap)
        return;
    size_t cap = b->cap != 0 ? b->cap : 64;
    while (cap < need)
        cap *= 2;
    b->data = xrealloc(b->data, cap);
    b->cap = cap;
    b->data[b->len] = '\0';
}

void buf_add(struct buf *b, const void *data, size_t len)
{
    buf_reserve(b, len);
    if (len != 0)
        memcpy(b->data + b->len, data, len);
    b->len += len;
    b->data[b->len] = '\0';
}

void buf_adds(struct buf *b, const char *s)
{
    buf_add(b, s, strlen(s));
}

void buf_addc(struct buf *b, char c)
{
    buf_add(b, &c, 1);
}

void buf_addf(struct buf *b, const char *fmt, ...)
{
    va_list ap;
    va_start(ap, fmt);
    buf_vaddf(b, fmt, ap);
    va_end(ap);
}

void buf_vaddf(struct buf *b, const char *fmt, va_list ap)
{
    va_list again;
    va_copy(again, ap);
    int n = vsnprintf(NULL, 0, fmt, again);
    va_end(again);
    if (n < 0)
        BUG("bad format: %s", fmt);
    buf_reserve(b, (size_t)n);
    vsnprintf(b->data + b->len, (size_t)n + 1, fmt, ap);
    b->len += (size_t)n;
}

const char *buf_str(const struct buf *b)
{
    return b->data != NULL ? b->data : "";
}

char *buf_detach(struct buf *b)
{
    buf_reserve(b, 0);
    char *s = b->data;
    *b = BUF_INIT;
    return s;
}
