// SPDX-License-Identifier: Apache-2.0

#include "bench/report.h"

#include <inttypes.h>
#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "core/err.h"
#include "core/json.h"

void report_clear(struct report *r)
{
    for (size_t i = 0; i < r->count; i++)
        free(r->entries[i].s);
    free(r->entries);
    *r = REPORT_INIT;
}

const struct report_entry *report_find(const struct report *r, const char *key)
{
    for (size_t i = 0; i < r->count; i++)
        if (strcmp(r->entries[i].key, key) == 0)
            return &r->entries[i];
    return NULL;
}

static struct report_entry *add(struct report *r, const char *key)
{
    if (report_find(r, key) != NULL)
        BUG("%s is reported twice", key);
    if (r->count == r->cap) {
        r->cap = r->cap == 0 ? 32 : 2 * r->cap;
        r->entries = xrealloc(r->entries, r->cap * sizeof r->entries[0]);
    }
    r->entries[r->count] = (struct report_entry){.key = key};
    return &r->entries[r->count++];
}

void report_add_int(struct report *r, const char *key, int64_t v)
{
    struct report_entry *n = add(r, key);
    n->type = REPORT_INT;
    n->i = v;
}

void report_add_number(struct report *r, const char *key, double v)
{
    struct report_entry *n = add(r, key);
    n->type = REPORT_NUMBER;
    n->d = v;
}

void report_add_text(struct report *r, const char *key, const char *v)
{
    struct report_entry *n = add(r, key);
    n->type = REPORT_TEXT;
    n->s = xstrdup(v);
}

void report_add_ratio(struct report *r, const char *key, double a, double b)
{
    report_add_number(r, key, isfinite(a) && isfinite(b) && b > 0 ? a / b : NAN);
}

// Four significant digits are more than the noise allows, and a rate is a
// whole number.
static double rounded(double d)
{
    if (!isfinite(d) || d == 0)
        return d;
    double unit = pow(10, floor(log10(fabs(d))) - 3);
    return unit >= 1 ? round(d) : round(d / unit) * unit;
}

void report_print_json(const struct report *r, struct buf *out)
{
    struct json j;
    json_init(&j, out);
    json_begin_object(&j);
    for (size_t i = 0; i < r->count; i++) {
        const struct report_entry *n = &r->entries[i];
        json_add_key(&j, n->key);
        switch (n->type) {
        case REPORT_INT: json_add_int(&j, n->i); break;
        case REPORT_NUMBER: {
            // By way of text: 0.3 and not 0.30000000000000004.
            char text[32];
            snprintf(text, sizeof text, "%.12g", rounded(n->d));
            json_add_double(&j, isfinite(n->d) ? strtod(text, NULL) : NAN);
            break;
        }
        case REPORT_TEXT: json_add_string(&j, n->s); break;
        }
    }
    json_end_object(&j);
    json_finish(&j);
}

// 1234567 as 1,234,567.
static void add_grouped(struct buf *out, int64_t v)
{
    char digits[32];
    int n = snprintf(digits, sizeof digits, "%" PRId64, v < 0 ? -v : v);
    if (v < 0)
        buf_addc(out, '-');
    for (int i = 0; i < n; i++) {
        if (i > 0 && (n - i) % 3 == 0)
            buf_addc(out, ',');
        buf_addc(out, digits[i]);
    }
}

void report_print_table(const struct report *r, struct buf *out)
{
    size_t width = 0;
    for (size_t i = 0; i < r->count; i++)
        width = strlen(r->entries[i].key) > width ? strlen(r->entries[i].key) : width;
    for (size_t i = 0; i < r->count; i++) {
        const struct report_entry *n = &r->entries[i];
        buf_addf(out, "%-*s  ", (int)width, n->key);
        if (n->type == REPORT_TEXT)
            buf_adds(out, n->s);
        else if (n->type == REPORT_INT)
            add_grouped(out, n->i);
        else if (!isfinite(n->d))
            buf_adds(out, "not known");
        else if (fabs(n->d) >= 1000)
            add_grouped(out, llround(n->d));
        else
            buf_addf(out, "%.4g", n->d);
        buf_addc(out, '\n');
    }
}
