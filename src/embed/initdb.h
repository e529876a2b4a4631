// SPDX-License-Identifier: Apache-2.0
//
// Makes the data directory: initdb under a temporary name, our settings, and
// then one rename, so that a data directory is either complete or not there.

#ifndef PGKIN_EMBED_INITDB_H
#define PGKIN_EMBED_INITDB_H

#include <stdbool.h>

#include "core/err.h"
#include "embed/child.h"

// Makes x->data, which must not exist. A leftover of an earlier try is removed
// first. On failure nothing is left.
bool initdb_run(const struct child_context *x, struct err *e);

// Who may connect as whom: the owner, the user of this process and root, as
// the superuser. Written at every start, for the directory may have got
// another owner meanwhile. With the rights of the owner.
bool initdb_write_ident(const char *data, const char *owner, const char *self,
                        struct err *e);

#endif
