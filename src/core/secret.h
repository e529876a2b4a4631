// SPDX-License-Identifier: Apache-2.0
//
// Secrets that the database only names: `secret:NAME` stands for the content of
// the file NAME in the credentials directory, which is that of the setting
// credentials.directory, else the one systemd gives a service. Read at each use,
// so that a changed secret needs no restart. A value never gets into a log or an
// error.

#ifndef PGKIN_CORE_SECRET_H
#define PGKIN_CORE_SECRET_H

#include <stdbool.h>

#include "core/buf.h"
#include "core/conf.h"
#include "core/err.h"

#define SECRET_SIZE_MAX 65536

bool secret_is_reference(const char *text); // begins with "secret:"

// Appends the secret that `reference` names, without the line break at its end.
// Fails when it is no reference, when there is no such file, or when that is not
// a regular file of at most SECRET_SIZE_MAX bytes, none of them zero.
bool secret_read(const struct conf *c, const char *reference, struct buf *out,
                 struct err *e);

// Wipes and frees a buffer that holds a secret.
void secret_clear(struct buf *b);

#endif
