// SPDX-License-Identifier: Apache-2.0

#include "core/err.h"

#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

// A message is one line, whatever the server or the library behind it said,
// and none of its bytes is an order to the terminal.
static void flatten(char *s)
{
    char *out = s;
    bool space = false;
    for (const char *in = s; *in != '\0'; in++) {
        if ((unsigned char)*in < ' ' || *in == 0x7f) {
            space = true;
            continue;
        }
        if (space && out != s)
            *out++ = ' ';
        space = false;
        *out++ = *in;
    }
    *out = '\0';
}

// Takes away the first bytes of a UTF-8 character whose end did not fit.
static void trim_partial_char(char *s)
{
    size_t len = strlen(s);
    size_t tail = 0; // continuation bytes at the end
    while (tail < len && tail < 3 && ((unsigned char)s[len - 1 - tail] & 0xc0) == 0x80)
        tail++;
    if (tail == len)
        return;
    unsigned char lead = (unsigned char)s[len - 1 - tail];
    size_t want = lead >= 0xf0 ? 3 : lead >= 0xe0 ? 2 : lead >= 0xc0 ? 1 : 0;
    if (tail < want)
        s[len - 1 - tail] = '\0';
}

// Appends to the text in `out`. The arguments may point into `out` (a message
// made from the old one): nothing is written before all is formatted.
__attribute__((format(printf, 4, 0))) static void
append(char *out, size_t size, size_t at, const char *fmt, va_list ap)
{
    char text[sizeof(struct err)];
    int n = vsnprintf(text, size - at, fmt, ap);
    if (n < 0)
        BUG("bad format: %s", fmt);
    if ((size_t)n >= size - at)
        trim_partial_char(text);
    memcpy(out + at, text, strlen(text) + 1);
    flatten(out);
}

__attribute__((format(printf, 2, 3))) static void append_message(struct err *e,
                                                                 const char *fmt, ...)
{
    va_list ap;
    va_start(ap, fmt);
    append(e->msg, sizeof e->msg, strlen(e->msg), fmt, ap);
    va_end(ap);
}

__attribute__((format(printf, 3, 0))) static void
set_text(struct err *e, enum err_code code, const char *fmt, va_list ap)
{
    append(e->msg, sizeof e->msg, 0, fmt, ap);
    e->code = code;
    e->hint[0] = '\0';
}

bool err_set(struct err *e, const char *fmt, ...)
{
    if (e == NULL)
        return false;
    va_list ap;
    va_start(ap, fmt);
    set_text(e, ERR_FAILED, fmt, ap);
    va_end(ap);
    return false;
}

bool err_usage(struct err *e, const char *fmt, ...)
{
    if (e == NULL)
        return false;
    va_list ap;
    va_start(ap, fmt);
    set_text(e, ERR_USAGE, fmt, ap);
    va_end(ap);
    return false;
}

bool err_errno(struct err *e, int errnum, const char *fmt, ...)
{
    if (e == NULL)
        return false;
    va_list ap;
    va_start(ap, fmt);
    set_text(e, ERR_FAILED, fmt, ap);
    va_end(ap);
    const char *reason = strerrordesc_np(errnum);
    if (reason != NULL)
        append_message(e, ": %s", reason);
    else
        append_message(e, ": error %d", errnum);
    return false;
}

bool err_wrap(struct err *e, const char *fmt, ...)
{
    if (e == NULL)
        return false;
    char inner[sizeof e->msg];
    memcpy(inner, e->msg, sizeof inner);
    va_list ap;
    va_start(ap, fmt);
    append(e->msg, sizeof e->msg, 0, fmt, ap);
    va_end(ap);
    if (inner[0] != '\0')
        append_message(e, ": %s", inner);
    if (e->code == ERR_NONE)
        e->code = ERR_FAILED;
    return false;
}

bool err_hint(struct err *e, const char *fmt, ...)
{
    if (e == NULL)
        return false;
    va_list ap;
    va_start(ap, fmt);
    append(e->hint, sizeof e->hint, 0, fmt, ap);
    va_end(ap);
    return false;
}

void err_clear(struct err *e)
{
    *e = ERR_INIT;
}

void bug_abort(const char *file, int line, const char *fmt, ...)
{
    va_list ap;
    va_start(ap, fmt);
    fprintf(stderr, "pgkin: bug at %s:%d: ", file, line);
    vfprintf(stderr, fmt, ap);
    fputc('\n', stderr);
    va_end(ap);
    abort();
}
