// SPDX-License-Identifier: Apache-2.0

#include "core/asset.h"

#include <stdlib.h>
#include <string.h>

static int compare_name(const void *key, const void *element)
{
    return strcmp(key, ((const struct asset *)element)->name);
}

const struct asset *asset_find(const char *name)
{
    return bsearch(name, pgkin_assets, pgkin_asset_count, sizeof pgkin_assets[0],
                   compare_name);
}
