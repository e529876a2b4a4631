// SPDX-License-Identifier: Apache-2.0

#include "cli/when.h"

#include <math.h>
#include <string.h>

// A hundred years: more is a slip of the finger.
#define LONGEST_MS (INT64_C(100) * 366 * 24 * 3600 * 1000)

static bool is_digit(char c)
{
    return c >= '0' && c <= '9';
}

static int64_t unit_ms(const char *unit, bool bare)
{
    static const struct {
        const char *name;
        int64_t ms;
    } units[] = {
        {"ms", 1}, {"s", 1000}, {"m", 60000}, {"h", 3600000}, {"d", 86400000},
    };
    for (size_t i = 0; i < sizeof units / sizeof units[0]; i++)
        if (strcmp(unit, units[i].name) == 0)
            return units[i].ms;
    return bare && unit[0] == '\0' ? 1000 : 0;
}

bool when_parse_duration(const char *text, bool bare, int64_t *ms)
{
    double number = 0, place = 1;
    const char *p = text;
    if (!is_digit(*p))
        return false;
    for (; is_digit(*p); p++)
        number = number * 10 + (*p - '0');
    if (*p == '.' && is_digit(p[1]))
        for (p++; is_digit(*p); p++)
            number += (*p - '0') * (place /= 10);
    int64_t unit = unit_ms(p, bare);
    if (unit == 0 || number * (double)unit > (double)LONGEST_MS)
        return false;
    *ms = llround(number * (double)unit);
    return true;
}

// `form`: 0 stands for a digit, everything else for itself. Advances *p past it.
static bool take(const char **p, const char *form)
{
    const char *s = *p;
    for (; *form != '\0'; form++, s++)
        if (*form == '0' ? !is_digit(*s) : *form != *s)
            return false;
    *p = s;
    return true;
}

static bool is_iso8601(const char *s)
{
    if (!take(&s, "0000-00-00"))
        return false;
    if (*s == '\0')
        return true;
    if (!take(&s, "T00:00") && !take(&s, "t00:00") && !take(&s, " 00:00"))
        return false;
    if (take(&s, ":00") && *s == '.' && is_digit(s[1]))
        for (s++; is_digit(*s);)
            s++;
    if (*s == 'Z' || *s == 'z')
        return s[1] == '\0';
    if (*s != '+' && *s != '-')
        return *s == '\0';
    s++;
    if (!take(&s, "00:00") && !take(&s, "0000") && !take(&s, "00"))
        return false;
    return *s == '\0';
}

bool when_parse(const char *text, struct when *w, struct err *e)
{
    *w = (struct when){.relative = text[0] == '+', .text = text};
    if (w->relative ? when_parse_duration(text + 1, false, &w->ms) : is_iso8601(text))
        return true;
    err_usage(e, "\"%s\" is not a time", text);
    return err_hint(e, "times look like 2026-11-15T18:00:00Z, +10s, +5m or +2h");
}

void when_add_span(double seconds, struct buf *out)
{
    static const struct {
        const char *name;
        double seconds;
        double below; // used for what is shorter than this
    } units[] = {
        {"s", 1, 120},
        {"m", 60, 7200},
        {"h", 3600, 172800},
        {"d", 86400, INFINITY},
    };
    if (seconds < 0) {
        buf_addc(out, '-');
        seconds = -seconds;
    }
    if (seconds < 1) {
        buf_addf(out, "%.0fms", seconds * 1000);
        return;
    }
    size_t i = 0;
    while (seconds >= units[i].below)
        i++;
    buf_addf(out, seconds < 10 ? "%.1f%s" : "%.0f%s", seconds / units[i].seconds,
             units[i].name);
}
