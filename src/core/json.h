// SPDX-License-Identifier: Apache-2.0
//
// Writes JSON into a buffer, piece by piece and in order. Reading JSON is the
// business of PostgreSQL or of jansson. Whatever bytes come in, valid JSON
// comes out: invalid UTF-8 becomes U+FFFD, control characters are escaped.
// Calls in an order that cannot be JSON are bugs and abort.
//
//     struct json j;
//     json_init(&j, &buf);
//     json_begin_object(&j);
//     json_add_key(&j, "id");
//     json_add_int(&j, 42);
//     json_end_object(&j);
//     json_finish(&j);            buf: {"id":42}

#ifndef PGKIN_CORE_JSON_H
#define PGKIN_CORE_JSON_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#include "core/buf.h"

#define JSON_DEPTH_MAX 64

struct json {
    struct buf *out;
    unsigned depth;
    uint64_t objects; // bit d: the container at depth d+1 is an object
    bool comma;       // a value stands before the next one
    bool key;         // a key waits for its value
};

// Borrows `out` and appends to what is there.
void json_init(struct json *j, struct buf *out);

// Checks that exactly one value was written and nothing is open. The writer
// can be used again after it, for one more value in the same buffer.
void json_finish(struct json *j);

void json_begin_object(struct json *j);
void json_end_object(struct json *j);
void json_begin_array(struct json *j);
void json_end_array(struct json *j);
void json_add_key(struct json *j, const char *key);
void json_add_string(struct json *j, const char *s); // NULL becomes null
void json_add_bytes(struct json *j, const char *s, size_t len);
void json_add_int(struct json *j, int64_t n);
void json_add_double(struct json *j, double d); // shortest that reads back the same
void json_add_bool(struct json *j, bool b);
void json_add_null(struct json *j);
void json_add_raw(struct json *j, const char *text, size_t len); // is JSON already

// The two pieces that the log shares.

// Takes the next character of a text and gives it as it stands inside a JSON
// string; what is no valid UTF-8 gives U+FFFD. Returns how many bytes of `s`
// were taken (at least 1; `len` must not be 0); *out_len bytes of `out` are set.
#define JSON_CHAR_MAX 6
size_t json_escape_char(const char *s, size_t len, char out[JSON_CHAR_MAX],
                        size_t *out_len);

// A double as JSON text, "null" for NaN and the infinities; NUL-terminated.
// Independent of the locale. Returns the length.
#define JSON_DOUBLE_MAX 32
size_t json_format_double(double d, char out[JSON_DOUBLE_MAX]);

#endif
