// SPDX-License-Identifier: Apache-2.0

#include "core/suggest.h"

#include <stdint.h>
#include <string.h>
#include <strings.h>

// No name that a person mistypes is longer; what is longer is never near.
#define WORD_MAX 64

// Shorter beginnings match too much: "s" is not a misspelt "start".
#define PREFIX_MIN 3

static char fold(char c)
{
    return c >= 'A' && c <= 'Z' ? (char)(c - 'A' + 'a') : c;
}

static size_t min_size(size_t a, size_t b)
{
    return a < b ? a : b;
}

// Damerau-Levenshtein distance in its restricted form (no edit inside a swapped
// pair). Only the last three rows of the matrix are needed.
static size_t edit_distance(const char *a, size_t a_len, const char *b, size_t b_len)
{
    size_t rows[3][WORD_MAX + 1];
    for (size_t j = 0; j <= b_len; j++)
        rows[0][j] = j;
    for (size_t i = 1; i <= a_len; i++) {
        size_t *row = rows[i % 3];
        const size_t *above = rows[(i + 2) % 3];
        const size_t *above2 = rows[(i + 1) % 3];
        row[0] = i;
        for (size_t j = 1; j <= b_len; j++) {
            char ca = fold(a[i - 1]), cb = fold(b[j - 1]);
            size_t d = above[j - 1] + (ca != cb);
            d = min_size(d, above[j] + 1);
            d = min_size(d, row[j - 1] + 1);
            if (i > 1 && j > 1 && ca == fold(b[j - 2]) && fold(a[i - 2]) == cb)
                d = min_size(d, above2[j - 2] + 1);
            row[j] = d;
        }
    }
    return rows[a_len % 3][b_len];
}

// SIZE_MAX: too far to be meant.
static size_t distance(const char *word, size_t len, const char *name)
{
    size_t name_len = strlen(name);
    if (name_len > WORD_MAX)
        return SIZE_MAX;
    size_t d = edit_distance(word, len, name, name_len);
    if (d > 1 && len >= PREFIX_MIN && strncasecmp(word, name, len) == 0)
        d = 1;
    size_t longer = len > name_len ? len : name_len;
    return d <= (longer + 2) / 3 && d < longer ? d : SIZE_MAX;
}

const char *suggest_nearest(const char *word, const char *const *names, size_t n)
{
    size_t len = strlen(word);
    if (len == 0 || len > WORD_MAX)
        return NULL;
    const char *best = NULL;
    size_t best_distance = SIZE_MAX;
    for (size_t i = 0; i < n; i++) {
        size_t d = distance(word, len, names[i]);
        if (d < best_distance) {
            best = names[i];
            best_distance = d;
        }
    }
    return best;
}
