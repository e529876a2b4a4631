// SPDX-License-Identifier: Apache-2.0

#include "core/arena.h"

#include <stdalign.h>
#include <stdbool.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "core/buf.h"
#include "core/err.h"

#if defined(__has_feature)
#if __has_feature(address_sanitizer)
#define ARENA_ASAN 1
#endif
#endif
#if defined(__SANITIZE_ADDRESS__)
#define ARENA_ASAN 1
#endif

#ifdef ARENA_ASAN
#include <sanitizer/asan_interface.h>
#define ARENA_REDZONE 16 // between neighbours, so that running over the end is seen
#else
#define ASAN_POISON_MEMORY_REGION(p, n)   ((void)(p), (void)(n))
#define ASAN_UNPOISON_MEMORY_REGION(p, n) ((void)(p), (void)(n))
#define ARENA_REDZONE                     0
#endif

#define ARENA_ALIGN 16
#define ARENA_BLOCK ((size_t)8192) // room in an ordinary block

struct arena_block {
    struct arena_block *next;
    size_t used;
    size_t size;
    alignas(ARENA_ALIGN) char data[];
};

static struct arena_block *block_new(size_t size)
{
    struct arena_block *b = xmalloc(sizeof *b + size);
    b->next = NULL;
    b->used = 0;
    b->size = size;
    ASAN_POISON_MEMORY_REGION(b->data, size);
    return b;
}

static void block_free(struct arena_block *b)
{
    ASAN_UNPOISON_MEMORY_REGION(b->data, b->size);
    free(b);
}

// A block with room for `need` bytes. What is large gets a block of its own,
// put second, so that the room left in the first is not given up for it.
static struct arena_block *find_block(struct arena *a, size_t need)
{
    struct arena_block *first = a->blocks;
    if (first != NULL && first->size - first->used >= need)
        return first;
    bool own = need > ARENA_BLOCK || (first != NULL && need > ARENA_BLOCK / 4);
    struct arena_block *b = block_new(own ? need : ARENA_BLOCK);
    if (own && first != NULL) {
        b->next = first->next;
        first->next = b;
    } else {
        b->next = first;
        a->blocks = b;
    }
    return b;
}

void *arena_alloc(struct arena *a, size_t size)
{
    if (size > SIZE_MAX / 2)
        BUG("allocation of %zu bytes", size);
    size_t need = (size + ARENA_ALIGN - 1) / ARENA_ALIGN * ARENA_ALIGN + ARENA_REDZONE;
    if (need == 0)
        need = ARENA_ALIGN; // distinct objects have distinct addresses
    struct arena_block *b = find_block(a, need);
    void *p = b->data + b->used;
    b->used += need;
    ASAN_UNPOISON_MEMORY_REGION(p, size);
    return p;
}

void *arena_calloc(struct arena *a, size_t n, size_t size)
{
    if (size != 0 && n > SIZE_MAX / 2 / size)
        BUG("allocation of %zu times %zu bytes", n, size);
    return memset(arena_alloc(a, n * size), 0, n * size);
}

void *arena_memdup(struct arena *a, const void *data, size_t len)
{
    void *p = arena_alloc(a, len);
    if (len != 0)
        memcpy(p, data, len);
    return p;
}

char *arena_strdup(struct arena *a, const char *s)
{
    return arena_memdup(a, s, strlen(s) + 1);
}

char *arena_strndup(struct arena *a, const char *s, size_t max)
{
    size_t len = strnlen(s, max);
    char *p = arena_alloc(a, len + 1);
    memcpy(p, s, len);
    p[len] = '\0';
    return p;
}

char *arena_printf(struct arena *a, const char *fmt, ...)
{
    va_list ap;
    va_start(ap, fmt);
    char *s = arena_vprintf(a, fmt, ap);
    va_end(ap);
    return s;
}

char *arena_vprintf(struct arena *a, const char *fmt, va_list ap)
{
    va_list again;
    va_copy(again, ap);
    int n = vsnprintf(NULL, 0, fmt, again);
    va_end(again);
    if (n < 0)
        BUG("bad format: %s", fmt);
    char *s = arena_alloc(a, (size_t)n + 1);
    vsnprintf(s, (size_t)n + 1, fmt, ap);
    return s;
}

// The block kept is an ordinary one: one large attempt must not make the
// arena large for good.
void arena_reset(struct arena *a)
{
    struct arena_block *keep = NULL;
    for (struct arena_block *b = a->blocks, *next; b != NULL; b = next) {
        next = b->next;
        if (keep == NULL && b->size == ARENA_BLOCK)
            keep = b;
        else
            block_free(b);
    }
    if (keep != NULL) {
        keep->next = NULL;
        keep->used = 0;
        ASAN_POISON_MEMORY_REGION(keep->data, keep->size);
    }
    a->blocks = keep;
}

void arena_clear(struct arena *a)
{
    for (struct arena_block *b = a->blocks, *next; b != NULL; b = next) {
        next = b->next;
        block_free(b);
    }
    a->blocks = NULL;
}
