// SPDX-License-Identifier: Apache-2.0
//
// "did you mean": the nearest of a list of names to what somebody typed, for
// unknown commands, options and settings.

#ifndef PGKIN_CORE_SUGGEST_H
#define PGKIN_CORE_SUGGEST_H

#include <stddef.h>

// The name nearest to `word`: by edit distance (insert, delete, replace, swap
// of neighbours; case ignored), a name that begins with `word` counting as one
// edit away. Of equally near ones the first. NULL when all are too far (more
// than about a third of the letters differ), and for an empty word. Borrows
// everything; the result is an element of `names`.
const char *suggest_nearest(const char *word, const char *const *names, size_t n);

#endif
