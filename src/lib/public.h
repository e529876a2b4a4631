// SPDX-License-Identifier: Apache-2.0
//
// Between the public header and the rest.

#ifndef PGKIN_LIB_PUBLIC_H
#define PGKIN_LIB_PUBLIC_H

#include "core/err.h"
#include "pgkin.h"

// Returns false. `out` may be NULL.
bool public_error(struct pgkin_error *out, const struct err *e);

#endif
