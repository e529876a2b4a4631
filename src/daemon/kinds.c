// SPDX-License-Identifier: Apache-2.0
//
// The kinds of handlers that this worker has. A new kind is a row here.

#include <stdlib.h>
#include <string.h>

#include "daemon/impl.h"
#include "daemon/run_native.h"

static const struct kind *const kinds[] = {
    &kind_native, &kind_http, &kind_exec, &kind_email, &kind_sms, &kind_file_delete,
};

void kinds_init(struct daemon *d)
{
    d->kind_count = sizeof kinds / sizeof kinds[0];
    d->kinds = xcalloc(d->kind_count, sizeof d->kinds[0]);
    for (size_t i = 0; i < d->kind_count; i++)
        d->kinds[i].kind = kinds[i];
    d->rt.natives = d->opt.natives;
    d->rt.native_count = d->opt.native_count;
}

void kinds_close(struct daemon *d)
{
    for (size_t i = 0; i < d->kind_count; i++) {
        if (d->kinds[i].self != NULL)
            d->kinds[i].kind->close(d->kinds[i].self);
        d->kinds[i].self = NULL;
    }
}

struct kind_slot *kind_find(struct daemon *d, const char *name)
{
    for (size_t i = 0; i < d->kind_count; i++)
        if (strcmp(d->kinds[i].kind->name, name) == 0)
            return &d->kinds[i];
    return NULL;
}

bool kind_can_run(struct daemon *d, const struct command *c)
{
    return kind_find(d, c->kind) != NULL &&
           (strcmp(c->kind, kind_native.name) != 0 || native_find(&d->rt, c) != NULL);
}
