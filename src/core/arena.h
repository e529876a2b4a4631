// SPDX-License-Identifier: Apache-2.0
//
// Memory that is freed all at once: a chain of blocks from which allocations
// are cut one after the other. One arena per task attempt is the intended use:
// nothing in it needs an owner or a free, and the next attempt reuses the
// block. With AddressSanitizer, memory not handed out (any more) is poisoned.
// Like malloc of buf.h, running out of memory aborts.

#ifndef PGKIN_CORE_ARENA_H
#define PGKIN_CORE_ARENA_H

#include <stdarg.h>
#include <stddef.h>

struct arena_block;

struct arena {
    struct arena_block *blocks; // the first is the one being filled
};

#define ARENA_INIT ((struct arena){0})

// All results are aligned to 16 bytes, never NULL (also for size 0), and live
// until the arena is reset or cleared.
void *arena_alloc(struct arena *a, size_t size);            // not initialised
void *arena_calloc(struct arena *a, size_t n, size_t size); // zeroed
void *arena_memdup(struct arena *a, const void *data, size_t len);
char *arena_strdup(struct arena *a, const char *s);
char *arena_strndup(struct arena *a, const char *s, size_t max); // at most max bytes
char *arena_printf(struct arena *a, const char *fmt, ...)
    __attribute__((format(printf, 2, 3)));
char *arena_vprintf(struct arena *a, const char *fmt, va_list ap)
    __attribute__((format(printf, 2, 0)));

void arena_reset(struct arena *a); // forgets all allocations, keeps one block
void arena_clear(struct arena *a); // frees everything; the arena may be used again

#endif
