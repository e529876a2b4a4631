// SPDX-License-Identifier: Apache-2.0
//
// Files that travel inside the binary: everything under sql/ (and later web/),
// embedded at build time by scripts/embed-assets with .incbin. Names are
// paths relative to the repository, sorted by strcmp.

#ifndef PGKIN_CORE_ASSET_H
#define PGKIN_CORE_ASSET_H

#include <stddef.h>

struct asset {
    const char *name; // "sql/migrations/0001_queues.sql"
    const char *data; // NUL-terminated after `size` bytes
    size_t size;
};

extern const struct asset pgkin_assets[];
extern const size_t pgkin_asset_count;

// NULL when there is no such file.
const struct asset *asset_find(const char *name);

#endif
