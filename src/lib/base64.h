// SPDX-License-Identifier: Apache-2.0
//
// Base64 (RFC 4648, the alphabet with + and /).

#ifndef PGKIN_LIB_BASE64_H
#define PGKIN_LIB_BASE64_H

#include <stdbool.h>
#include <stddef.h>

#include "core/buf.h"

// Appends the text, padded.
void base64_encode(struct buf *out, const void *data, size_t size);

// Appends the bytes. False, with `out` as it was, when the text is not base64;
// the padding may be missing.
bool base64_decode(struct buf *out, const char *text, size_t len);

#endif
