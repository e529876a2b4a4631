// SPDX-License-Identifier: Apache-2.0
//
// The parameters of one statement, and PostgreSQL array literals.
//
// Types are left to the server, which takes them from the statement; text is
// the format for all but raw bytes.

#ifndef PGKIN_CORE_CONN_PARAM_H
#define PGKIN_CORE_CONN_PARAM_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#include "core/buf.h"

// The protocol counts them in 16 bits.
#define CONN_PARAMS_MAX 65535

struct conn_params {
    char **values; // owned; NULL is SQL's null
    int *lengths;
    int *formats; // 0 text, 1 binary
    int count;
    int cap;
};

#define CONN_PARAMS_INIT ((struct conn_params){0})

void conn_params_clear(struct conn_params *p);

// Each adds the next parameter and copies what it is given.
void conn_params_add_null(struct conn_params *p);
void conn_params_add_text(struct conn_params *p, const char *s); // NULL: null
void conn_params_add_int64(struct conn_params *p, int64_t v);
void conn_params_add_bool(struct conn_params *p, bool v);
void conn_params_add_int64s(struct conn_params *p, const int64_t *v,
                            size_t n); // bigint[]
void conn_params_add_texts(struct conn_params *p, const char *const *v,
                           size_t n); // text[]

// In binary format: the bytes of a bytea, or the wire form of any other type.
void conn_params_add_bytea(struct conn_params *p, const void *data, size_t len);

// Append the literal of a one-dimensional array. A NULL element is a null.
void conn_array_int64(struct buf *out, const int64_t *v, size_t n);
void conn_array_text(struct buf *out, const char *const *v, size_t n);

#endif
