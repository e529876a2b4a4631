// SPDX-License-Identifier: Apache-2.0
//
// Times and durations as people type and read them.

#ifndef PGKIN_CLI_WHEN_H
#define PGKIN_CLI_WHEN_H

#include <stdbool.h>
#include <stdint.h>

#include "core/buf.h"
#include "core/err.h"

// A point in time: so many milliseconds from now, or a text for the server.
struct when {
    bool relative;
    int64_t ms;       // when relative
    const char *text; // when not; borrowed
};

// 250ms, 10s, 1.5h, 2d; a bare number is seconds when `bare` allows it.
bool when_parse_duration(const char *text, bool bare, int64_t *ms);

// `text` is ISO 8601 (2026-11-15T18:00:00+01:00, 2026-11-15) or +DURATION. Of the
// former only the form is checked; which days exist is known to the server.
bool when_parse(const char *text, struct when *w, struct err *e);

// Appends how long that is, in two digits or so: 350ms, 12s, 5m, 3h, 2d.
void when_add_span(double seconds, struct buf *out);

#endif
