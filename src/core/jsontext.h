// SPDX-License-Identifier: Apache-2.0
//
// Texts that come from other programs, made such that PostgreSQL takes them: a
// result that is no jsonb, or an error that is no UTF-8, would otherwise make the
// statement fail that records the end of a task, and those of its neighbours.

#ifndef PGKIN_CORE_JSONTEXT_H
#define PGKIN_CORE_JSONTEXT_H

#include <stdbool.h>
#include <stddef.h>

#include "core/buf.h"

// True when PostgreSQL reads the text as jsonb. Stricter than JSON: no \u0000, no
// half of a surrogate pair, no number that numeric cannot hold. A little stricter
// than jsonb, too: nested 2048 deep at most, numbers within those of a double.
bool jsontext_is_jsonb(const char *text, size_t len);

// The text as a result: itself when it is jsonb, nothing when it is blank, else
// {"KEY": "text"} with at most `max` bytes of it, and "truncated": true when there
// were more. Appends.
void jsontext_add_result(struct buf *out, const char *key, const char *text, size_t len,
                         size_t max);

// Appends the text as valid UTF-8 without NUL: what is neither becomes U+FFFD.
void jsontext_add_clean(struct buf *out, const char *text, size_t len);

// How much of the text fits into `max` bytes without cutting a character.
size_t jsontext_cut(const char *text, size_t len, size_t max);

#endif
