// SPDX-License-Identifier: Apache-2.0
//
// SHA-256 (FIPS 180-4), for the checksums of schema files, and HMAC with it (RFC
// 2104), for signed requests: the only hash this program needs, so that it does
// not have to link a crypto library for it.

#ifndef PGKIN_LIB_SHA256_H
#define PGKIN_LIB_SHA256_H

#include <stddef.h>
#include <stdint.h>

#define SHA256_SIZE     32
#define SHA256_HEX_SIZE 65 // 64 digits and a NUL

// Lower-case hexadecimal digits, NUL-terminated.
void sha256_hex(const void *data, size_t size, char out[SHA256_HEX_SIZE]);

// The same, piece by piece.
struct sha256 {
    uint32_t state[8];
    uint64_t size;
    unsigned char block[64];
};

void sha256_init(struct sha256 *h);
void sha256_add(struct sha256 *h, const void *data, size_t size);
void sha256_finish(struct sha256 *h, unsigned char out[SHA256_SIZE]);

struct hmac_sha256 {
    struct sha256 inner, outer;
};

void hmac_sha256_init(struct hmac_sha256 *h, const void *key, size_t key_size);
void hmac_sha256_add(struct hmac_sha256 *h, const void *data, size_t size);
void hmac_sha256_finish(struct hmac_sha256 *h, unsigned char out[SHA256_SIZE]);

#endif
