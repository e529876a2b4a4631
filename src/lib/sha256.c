// SPDX-License-Identifier: Apache-2.0

#include "lib/sha256.h"

#include <string.h>

#define BLOCK_SIZE 64

static const uint32_t round_constants[64] = {
    0x428a2f98, 0x71374491, 0xb5c0fbcf, 0xe9b5dba5, 0x3956c25b, 0x59f111f1, 0x923f82a4,
    0xab1c5ed5, 0xd807aa98, 0x12835b01, 0x243185be, 0x550c7dc3, 0x72be5d74, 0x80deb1fe,
    0x9bdc06a7, 0xc19bf174, 0xe49b69c1, 0xefbe4786, 0x0fc19dc6, 0x240ca1cc, 0x2de92c6f,
    0x4a7484aa, 0x5cb0a9dc, 0x76f988da, 0x983e5152, 0xa831c66d, 0xb00327c8, 0xbf597fc7,
    0xc6e00bf3, 0xd5a79147, 0x06ca6351, 0x14292967, 0x27b70a85, 0x2e1b2138, 0x4d2c6dfc,
    0x53380d13, 0x650a7354, 0x766a0abb, 0x81c2c92e, 0x92722c85, 0xa2bfe8a1, 0xa81a664b,
    0xc24b8b70, 0xc76c51a3, 0xd192e819, 0xd6990624, 0xf40e3585, 0x106aa070, 0x19a4c116,
    0x1e376c08, 0x2748774c, 0x34b0bcb5, 0x391c0cb3, 0x4ed8aa4a, 0x5b9cca4f, 0x682e6ff3,
    0x748f82ee, 0x78a5636f, 0x84c87814, 0x8cc70208, 0x90befffa, 0xa4506ceb, 0xbef9a3f7,
    0xc67178f2,
};

static uint32_t rotate_right(uint32_t x, int n)
{
    return (x >> n) | (x << (32 - n));
}

static void hash_block(uint32_t state[8], const unsigned char *block)
{
    uint32_t w[64];
    for (size_t i = 0; i < 16; i++)
        w[i] = (uint32_t)block[4 * i] << 24 | (uint32_t)block[4 * i + 1] << 16 |
               (uint32_t)block[4 * i + 2] << 8 | (uint32_t)block[4 * i + 3];
    for (int i = 16; i < 64; i++) {
        uint32_t s0 =
            rotate_right(w[i - 15], 7) ^ rotate_right(w[i - 15], 18) ^ (w[i - 15] >> 3);
        uint32_t s1 =
            rotate_right(w[i - 2], 17) ^ rotate_right(w[i - 2], 19) ^ (w[i - 2] >> 10);
        w[i] = w[i - 16] + s0 + w[i - 7] + s1;
    }

    uint32_t a = state[0], b = state[1], c = state[2], d = state[3];
    uint32_t e = state[4], f = state[5], g = state[6], h = state[7];
    for (int i = 0; i < 64; i++) {
        uint32_t s1 = rotate_right(e, 6) ^ rotate_right(e, 11) ^ rotate_right(e, 25);
        uint32_t t1 = h + s1 + ((e & f) ^ (~e & g)) + round_constants[i] + w[i];
        uint32_t s0 = rotate_right(a, 2) ^ rotate_right(a, 13) ^ rotate_right(a, 22);
        uint32_t t2 = s0 + ((a & b) ^ (a & c) ^ (b & c));
        h = g;
        g = f;
        f = e;
        e = d + t1;
        d = c;
        c = b;
        b = a;
        a = t1 + t2;
    }
    const uint32_t sums[8] = {a, b, c, d, e, f, g, h};
    for (int i = 0; i < 8; i++)
        state[i] += sums[i];
}

void sha256_init(struct sha256 *h)
{
    *h = (struct sha256){.state = {0x6a09e667, 0xbb67ae85, 0x3c6ef372, 0xa54ff53a,
                                   0x510e527f, 0x9b05688c, 0x1f83d9ab, 0x5be0cd19}};
}

void sha256_add(struct sha256 *h, const void *data, size_t size)
{
    if (size == 0)
        return;
    const unsigned char *p = data;
    size_t held = (size_t)(h->size % BLOCK_SIZE);
    h->size += size;
    if (held > 0) {
        size_t take = size < BLOCK_SIZE - held ? size : BLOCK_SIZE - held;
        memcpy(h->block + held, p, take);
        p += take;
        size -= take;
        if (held + take < BLOCK_SIZE)
            return;
        hash_block(h->state, h->block);
    }
    for (; size >= BLOCK_SIZE; p += BLOCK_SIZE, size -= BLOCK_SIZE)
        hash_block(h->state, p);
    memcpy(h->block, p, size);
}

void sha256_finish(struct sha256 *h, unsigned char out[SHA256_SIZE])
{
    // The rest, a 1 bit, zeros, and the length in bits: one block, or two when
    // the length does not fit behind the rest.
    uint64_t bits = h->size * 8;
    size_t held = (size_t)(h->size % BLOCK_SIZE);
    unsigned char tail[2 * BLOCK_SIZE] = {0};
    size_t tail_size = held < BLOCK_SIZE - 8 ? BLOCK_SIZE : 2 * BLOCK_SIZE;
    memcpy(tail, h->block, held);
    tail[held] = 0x80;
    for (size_t i = 0; i < 8; i++)
        tail[tail_size - 1 - i] = (unsigned char)(bits >> (8 * i));
    for (size_t i = 0; i < tail_size; i += BLOCK_SIZE)
        hash_block(h->state, tail + i);
    for (size_t i = 0; i < SHA256_SIZE; i++)
        out[i] = (unsigned char)(h->state[i / 4] >> (24 - 8 * (i % 4)));
}

void sha256_hex(const void *data, size_t size, char out[SHA256_HEX_SIZE])
{
    struct sha256 h;
    unsigned char sum[SHA256_SIZE];
    sha256_init(&h);
    sha256_add(&h, data, size);
    sha256_finish(&h, sum);

    static const char digits[] = "0123456789abcdef";
    for (size_t i = 0; i < SHA256_SIZE; i++) {
        out[2 * i] = digits[sum[i] >> 4];
        out[2 * i + 1] = digits[sum[i] & 15];
    }
    out[2 * SHA256_SIZE] = '\0';
}

void hmac_sha256_init(struct hmac_sha256 *h, const void *key, size_t key_size)
{
    unsigned char block[BLOCK_SIZE] = {0};
    if (key_size > BLOCK_SIZE) {
        sha256_init(&h->inner);
        sha256_add(&h->inner, key, key_size);
        sha256_finish(&h->inner, block);
    } else if (key_size > 0) {
        memcpy(block, key, key_size);
    }
    for (size_t i = 0; i < BLOCK_SIZE; i++)
        block[i] ^= 0x36;
    sha256_init(&h->inner);
    sha256_add(&h->inner, block, BLOCK_SIZE);
    for (size_t i = 0; i < BLOCK_SIZE; i++)
        block[i] ^= 0x36 ^ 0x5c;
    sha256_init(&h->outer);
    sha256_add(&h->outer, block, BLOCK_SIZE);
    explicit_bzero(block, sizeof block);
}

void hmac_sha256_add(struct hmac_sha256 *h, const void *data, size_t size)
{
    sha256_add(&h->inner, data, size);
}

void hmac_sha256_finish(struct hmac_sha256 *h, unsigned char out[SHA256_SIZE])
{
    unsigned char sum[SHA256_SIZE];
    sha256_finish(&h->inner, sum);
    sha256_add(&h->outer, sum, sizeof sum);
    sha256_finish(&h->outer, out);
    explicit_bzero(h, sizeof *h);
}
