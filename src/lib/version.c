// SPDX-License-Identifier: Apache-2.0

#include "pgkin.h"

const char *pgkin_version(void)
{
    return PGKIN_VERSION;
}
