// SPDX-License-Identifier: Apache-2.0

#include "lib/base64.h"

#include <stdint.h>
#include <string.h>

static const char digits[] =
    "ABCDEFGHIJKLMNOPQRSTUVWXYZabcdefghijklmnopqrstuvwxyz0123456789+/";

void base64_encode(struct buf *out, const void *data, size_t size)
{
    const unsigned char *p = data;
    for (; size > 0;) {
        size_t take = size < 3 ? size : 3;
        uint32_t bits = (uint32_t)p[0] << 16;
        if (take > 1)
            bits |= (uint32_t)p[1] << 8;
        if (take > 2)
            bits |= p[2];
        for (size_t i = 0; i < 4; i++)
            buf_addc(out, i <= take ? digits[bits >> (18 - 6 * i) & 63] : '=');
        p += take;
        size -= take;
    }
}

bool base64_decode(struct buf *out, const char *text, size_t len)
{
    if (len % 4 == 0) {
        for (int i = 0; i < 2 && len > 0 && text[len - 1] == '='; i++)
            len--;
    }
    if (len % 4 == 1)
        return false;
    size_t before = out->len;
    uint32_t bits = 0;
    int held = 0; // bits that are not written yet
    for (size_t i = 0; i < len; i++) {
        const char *digit = text[i] != '\0' ? strchr(digits, text[i]) : NULL;
        if (digit == NULL)
            goto bad;
        bits = bits << 6 | (uint32_t)(digit - digits);
        held += 6;
        if (held >= 8) {
            held -= 8;
            buf_addc(out, (char)(bits >> held & 255));
        }
    }
    // What is left over must be zero, or two texts would mean the same.
    if ((bits & ((1u << held) - 1)) == 0)
        return true;
bad:
    if (out->len > before) {
        out->len = before;
        out->data[before] = '\0';
    }
    return false;
}
