// SPDX-License-Identifier: Apache-2.0
//
// What a scenario measured: named values in order, for people as a table and
// for programs as one JSON object.

#ifndef PGKIN_BENCH_REPORT_H
#define PGKIN_BENCH_REPORT_H

#include <stddef.h>
#include <stdint.h>

#include "core/buf.h"

struct report_entry {
    const char *key;
    enum {
        REPORT_INT,
        REPORT_NUMBER, // NaN: not known; null in JSON
        REPORT_TEXT,
    } type;
    int64_t i;
    double d;
    char *s; // owned
};

struct report {
    struct report_entry *entries;
    size_t count;
    size_t cap;
};

#define REPORT_INIT ((struct report){0})

void report_clear(struct report *r);

// Keys are borrowed: they are constants. A key that is there already is a bug.
void report_add_int(struct report *r, const char *key, int64_t v);
void report_add_number(struct report *r, const char *key, double v);
void report_add_text(struct report *r, const char *key, const char *v);

// a / b; not known when either is not, or b is 0.
void report_add_ratio(struct report *r, const char *key, double a, double b);

// NULL when there is none.
const struct report_entry *report_find(const struct report *r, const char *key);

void report_print_json(const struct report *r, struct buf *out);
void report_print_table(const struct report *r, struct buf *out);

#endif
