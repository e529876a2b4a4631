// SPDX-License-Identifier: Apache-2.0
//
// A growable byte buffer that is always NUL-terminated. Running out of memory
// aborts: nothing in this program can go on sensibly without it.

#ifndef PGKIN_CORE_BUF_H
#define PGKIN_CORE_BUF_H

#include <stdarg.h>
#include <stddef.h>

struct buf {
    char *data; // NULL until the first append; else NUL-terminated
    size_t len;
    size_t cap;
};

#define BUF_INIT ((struct buf){0})

void buf_clear(struct buf *b); // frees; the buffer may be used again
void buf_reset(struct buf *b); // length 0, keeps the memory
void buf_reserve(struct buf *b, size_t extra);
void buf_add(struct buf *b, const void *data, size_t len);
void buf_adds(struct buf *b, const char *s);
void buf_addc(struct buf *b, char c);
void buf_addf(struct buf *b, const char *fmt, ...) __attribute__((format(printf, 2, 3)));
void buf_vaddf(struct buf *b, const char *fmt, va_list ap)
    __attribute__((format(printf, 2, 0)));

// The content; "" when nothing was ever added. Borrowed from the buffer.
const char *buf_str(const struct buf *b);

// The content as a string that the caller frees; the buffer is empty after it.
char *buf_detach(struct buf *b);

// malloc and friends that abort instead of returning NULL.
void *xmalloc(size_t size);
void *xcalloc(size_t n, size_t size);
void *xrealloc(void *p, size_t size);
char *xstrdup(const char *s);
char *xasprintf(const char *fmt, ...) __attribute__((format(printf, 1, 2)));

#endif
