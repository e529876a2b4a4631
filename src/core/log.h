// SPDX-License-Identifier: Apache-2.0
//
// Structured logging: one event, one line, as logfmt or as JSON. There is no
// global logger: a `struct log` is handed down, and NULL means silence, so
// the library prints nothing unless its user asks. Payload text is never
// logged above debug.
//
//     log_info(log, "reconnected", LOG_S("conn", "control"), LOG_I("after_ms", 1200));
//     ts=2026-01-02T03:04:05.678Z level=info msg=reconnected conn=control after_ms=1200

#ifndef PGKIN_CORE_LOG_H
#define PGKIN_CORE_LOG_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#include "core/err.h"

enum log_level {
    LOG_DEBUG,
    LOG_INFO,
    LOG_WARN,
    LOG_ERROR,
};

enum log_format {
    LOG_LOGFMT,
    LOG_JSON,
};

struct log {
    enum log_level level; // less than this is dropped
    enum log_format format;
    // Gets each finished line without its line break. NULL: standard error.
    void (*sink)(void *arg, enum log_level level, const char *line, size_t len);
    void *sink_arg;
};

struct log_field {
    const char *key;
    enum {
        LOG_FIELD_STR,
        LOG_FIELD_INT,
        LOG_FIELD_DOUBLE,
        LOG_FIELD_BOOL,
    } type;
    union {
        const char *s; // NULL: the field is left out
        int64_t i;
        double d;
        bool b;
    } v;
};

#define LOG_S(k, val)                                                                    \
    ((struct log_field){.key = (k), .type = LOG_FIELD_STR, .v.s = (val)})
#define LOG_I(k, val)                                                                    \
    ((struct log_field){.key = (k), .type = LOG_FIELD_INT, .v.i = (val)})
#define LOG_D(k, val)                                                                    \
    ((struct log_field){.key = (k), .type = LOG_FIELD_DOUBLE, .v.d = (val)})
#define LOG_B(k, val)                                                                    \
    ((struct log_field){.key = (k), .type = LOG_FIELD_BOOL, .v.b = (val)})

// The first element only keeps the array from being empty.
#define LOG_WRITE(l, lvl, msg, ...)                                                      \
    log_write((l), (lvl), (msg), (const struct log_field[]){{0}, ##__VA_ARGS__},         \
              sizeof((const struct log_field[]){{0}, ##__VA_ARGS__}) /                   \
                  sizeof(struct log_field))

#define log_debug(l, msg, ...) LOG_WRITE(l, LOG_DEBUG, msg, ##__VA_ARGS__)
#define log_info(l, msg, ...)  LOG_WRITE(l, LOG_INFO, msg, ##__VA_ARGS__)
#define log_warn(l, msg, ...)  LOG_WRITE(l, LOG_WARN, msg, ##__VA_ARGS__)
#define log_error(l, msg, ...) LOG_WRITE(l, LOG_ERROR, msg, ##__VA_ARGS__)

// Use the macros. `fields[0]` is skipped.
void log_write(const struct log *l, enum log_level level, const char *msg,
               const struct log_field *fields, size_t n);

// An error as one event: its message and, when there is one, its hint.
void log_err(const struct log *l, enum log_level level, const char *msg,
             const struct err *e);

bool log_level_parse(const char *s, enum log_level *out);   // debug info warn error
bool log_format_parse(const char *s, enum log_format *out); // logfmt json

#endif
