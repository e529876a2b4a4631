// SPDX-License-Identifier: Apache-2.0
//
// A line is built on the stack, in a space of fixed size: logging needs no
// memory that could be missing just when there is something to say. What does
// not fit is cut and the line says so; it is a well-formed line in any case.

#include "core/log.h"

#include <errno.h>
#include <poll.h>
#include <stdio.h>
#include <string.h>
#include <time.h>
#include <unistd.h>

#include "core/json.h"

#define LINE_MAX_BYTES  ((size_t)32768)
#define VALUE_MAX_BYTES ((size_t)8192) // one text, escaped
#define TAIL_BYTES      ((size_t)64)   // kept free for the end of a cut line
#define VALUE_MIN_BYTES ((size_t)64)   // with less room a field is left out

struct line {
    enum log_format format;
    bool cut;
    size_t len;
    char data[LINE_MAX_BYTES];
};

static const char *const level_names[] = {
    [LOG_DEBUG] = "debug",
    [LOG_INFO] = "info",
    [LOG_WARN] = "warn",
    [LOG_ERROR] = "error",
};

static const char *const format_names[] = {
    [LOG_LOGFMT] = "logfmt",
    [LOG_JSON] = "json",
};

static void add(struct line *l, const char *s, size_t len)
{
    if (len > sizeof l->data - l->len)
        BUG("log line of %zu bytes", l->len + len);
    memcpy(l->data + l->len, s, len);
    l->len += len;
}

static void adds(struct line *l, const char *s)
{
    add(l, s, strlen(s));
}

// Room for text before the part that is kept for the end.
static size_t room(const struct line *l)
{
    return l->len + TAIL_BYTES < sizeof l->data ? sizeof l->data - TAIL_BYTES - l->len
                                                : 0;
}

// As it stands inside quotes, up to `max` bytes, with an ellipsis when cut.
static void add_escaped(struct line *l, const char *s, size_t max)
{
    size_t start = l->len;
    size_t left = strlen(s);
    while (left > 0) {
        char escaped[JSON_CHAR_MAX];
        size_t n;
        size_t taken = json_escape_char(s, left, escaped, &n);
        if (l->len - start + n > max) {
            adds(l, "\xe2\x80\xa6");
            l->cut = true;
            break;
        }
        add(l, escaped, n);
        s += taken;
        left -= taken;
    }
}

// Whether logfmt can show the text as it is.
static bool is_plain(const char *s, size_t max)
{
    size_t left = strlen(s);
    if (left == 0 || left > max)
        return false;
    while (left > 0) {
        char escaped[JSON_CHAR_MAX];
        size_t n;
        size_t taken = json_escape_char(s, left, escaped, &n);
        if (*s == ' ' || *s == '=' || n != taken || memcmp(s, escaped, n) != 0)
            return false;
        s += taken;
        left -= taken;
    }
    return true;
}

static void add_text(struct line *l, const char *s)
{
    size_t max = room(l) < VALUE_MAX_BYTES ? room(l) : VALUE_MAX_BYTES;
    if (l->format == LOG_LOGFMT && is_plain(s, max)) {
        adds(l, s);
        return;
    }
    adds(l, "\"");
    add_escaped(l, s, max);
    adds(l, "\"");
}

static void add_key(struct line *l, const char *key)
{
    if (l->format == LOG_LOGFMT) {
        if (l->len > 0)
            adds(l, " ");
        adds(l, key);
        adds(l, "=");
        return;
    }
    adds(l, l->len > 0 ? ",\"" : "{\"");
    add_escaped(l, key, room(l));
    adds(l, "\":");
}

static void add_string(struct line *l, const char *key, const char *value)
{
    add_key(l, key);
    add_text(l, value);
}

static void add_field(struct line *l, const struct log_field *f)
{
    if (f->key == NULL || (f->type == LOG_FIELD_STR && f->v.s == NULL))
        return;
    // An escaped key is six times as long at worst.
    if (room(l) / JSON_CHAR_MAX < strlen(f->key) + VALUE_MIN_BYTES) {
        l->cut = true;
        return;
    }
    char number[JSON_DOUBLE_MAX];
    add_key(l, f->key);
    switch (f->type) {
    case LOG_FIELD_STR: add_text(l, f->v.s); break;
    case LOG_FIELD_INT:
        snprintf(number, sizeof number, "%lld", (long long)f->v.i);
        adds(l, number);
        break;
    case LOG_FIELD_DOUBLE: add(l, number, json_format_double(f->v.d, number)); break;
    case LOG_FIELD_BOOL: adds(l, f->v.b ? "true" : "false"); break;
    default: BUG("log field of type %d", (int)f->type);
    }
}

static void format_time(char *out, size_t size)
{
    struct timespec now;
    struct tm tm;
    clock_gettime(CLOCK_REALTIME, &now);
    gmtime_r(&now.tv_sec, &tm);
    size_t n = strftime(out, size, "%Y-%m-%dT%H:%M:%S", &tm);
    snprintf(out + n, size - n, ".%03dZ", (int)(now.tv_nsec / 1000000));
}

// One write(2) for the whole line, so that lines of several processes do not
// mix. Standard error may be shared with somebody who made it non-blocking.
// There is nobody to tell when it cannot be written at all.
static void write_stderr(const char *data, size_t len)
{
    while (len > 0) {
        ssize_t n = write(STDERR_FILENO, data, len);
        if (n >= 0) {
            data += n;
            len -= (size_t)n;
        } else if (errno == EAGAIN) {
            struct pollfd fd = {.fd = STDERR_FILENO, .events = POLLOUT};
            poll(&fd, 1, -1);
        } else if (errno != EINTR) {
            return;
        }
    }
}

static void finish(const struct log *log, enum log_level level, struct line *l)
{
    if (l->cut)
        adds(l, l->format == LOG_JSON ? ",\"truncated\":true" : " truncated=true");
    if (l->format == LOG_JSON)
        adds(l, "}");
    if (log->sink != NULL) {
        add(l, "", 1);
        log->sink(log->sink_arg, level, l->data, l->len - 1);
    } else {
        adds(l, "\n");
        write_stderr(l->data, l->len);
    }
}

void log_write(const struct log *l, enum log_level level, const char *msg,
               const struct log_field *fields, size_t n)
{
    if (l == NULL || level < l->level)
        return;
    int saved_errno = errno;
    struct line line;
    line.format = l->format;
    line.cut = false;
    line.len = 0;
    char time[40];
    format_time(time, sizeof time);
    add_string(&line, "ts", time);
    add_string(&line, "level", level_names[level]);
    add_string(&line, "msg", msg);
    for (size_t i = 1; i < n; i++)
        add_field(&line, &fields[i]);
    finish(l, level, &line);
    errno = saved_errno;
}

void log_err(const struct log *l, enum log_level level, const char *msg,
             const struct err *e)
{
    LOG_WRITE(l, level, msg, LOG_S("error", e->msg),
              LOG_S("hint", e->hint[0] != '\0' ? e->hint : NULL));
}

static bool find_name(const char *const *names, size_t n, const char *s, size_t *out)
{
    for (size_t i = 0; i < n; i++) {
        if (strcmp(names[i], s) == 0) {
            *out = i;
            return true;
        }
    }
    return false;
}

bool log_level_parse(const char *s, enum log_level *out)
{
    size_t i;
    if (!find_name(level_names, sizeof level_names / sizeof level_names[0], s, &i))
        return false;
    *out = (enum log_level)i;
    return true;
}

bool log_format_parse(const char *s, enum log_format *out)
{
    size_t i;
    if (!find_name(format_names, sizeof format_names / sizeof format_names[0], s, &i))
        return false;
    *out = (enum log_format)i;
    return true;
}
