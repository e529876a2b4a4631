// SPDX-License-Identifier: Apache-2.0

#include "bench/holder.h"

static const char *const scripts[] = {
    [HOLDER_NONE] = NULL,
    [HOLDER_READ] = "bench_hold_read",
    [HOLDER_WRITE] = "bench_hold_write",
    [HOLDER_DUMP] = "bench_hold_dump",
};

bool holder_begin(struct bench *b, PGconn **out, struct err *e)
{
    const char *script = scripts[b->opt.holder];
    *out = NULL;
    if (script == NULL)
        return true;
    PGconn *pg = b->opt.open(b->conninfo, e);
    if (pg == NULL)
        return false;
    if (!bench_script(b, pg, script, e)) {
        PQfinish(pg);
        return false;
    }
    *out = pg;
    return true;
}

bool holder_end(struct bench *b, PGconn *holder, bool ok, struct err *e)
{
    if (ok && holder != NULL && !bench_script(b, holder, "bench_hold_end", e))
        ok = err_wrap(e, "the holder was lost");
    PQfinish(holder);
    return ok;
}
