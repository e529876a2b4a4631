// SPDX-License-Identifier: Apache-2.0
//
// How the queues and workers of a database are doing: what `pgkin status` prints
// and `pgkin top` draws again and again.

#ifndef PGKIN_CLI_OVERVIEW_H
#define PGKIN_CLI_OVERVIEW_H

#include <libpq-fe.h>
#include <stdbool.h>
#include <stddef.h>

#include "core/buf.h"
#include "core/err.h"

// Appends it as text, lines cut to `width` columns; 0: as they are.
bool overview_add_text(PGconn *conn, size_t width, struct buf *out, struct err *e);

// Appends one JSON object and a line break.
bool overview_add_json(PGconn *conn, struct buf *out, struct err *e);

#endif
