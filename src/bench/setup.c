// SPDX-License-Identifier: Apache-2.0

#include "bench/setup.h"

#include <stdlib.h>
#include <unistd.h>

#include "bench/meter.h"
#include "core/buf.h"
#include "core/conninfo.h"
#include "lib/migrate.h"

// ------------------------------------------------------- throw-away database

static bool make_database(struct setup *s, struct bench *b, const char *conninfo,
                          struct err *e)
{
    struct conn_params p = CONN_PARAMS_INIT;
    struct buf info = BUF_INIT;
    PGresult *res = NULL;
    bool ok = false;
    char *name = xasprintf("pgkin_bench_%d", (int)getpid());
    s->maker = b->opt.open(conninfo, e);
    if (s->maker == NULL)
        goto out;
    conn_params_add_text(&p, name);
    if (!bench_sql_on(b, s->maker, "bench_create_database", &p, &res, e))
        goto out;
    if (!bench_execute(b, s->maker, PQgetvalue(res, 0, 0), e)) {
        err_wrap(e, "cannot create the database %s", name);
        goto out;
    }
    s->drop = xstrdup(PQgetvalue(res, 0, 1));
    // What that cost must not turn up in a measurement, a second late.
    if (PQserverVersion(s->maker) >= 150000 &&
        !bench_sql_on(b, s->maker, "bench_flush_statistics", NULL, NULL, e))
        goto out;
    const struct conninfo_param param = {.key = "dbname", .value = name, .force = true};
    ok = conninfo_with_params(conninfo, &param, 1, &info, e);
    if (ok)
        b->conninfo = buf_detach(&info);
out:
    PQclear(res);
    buf_clear(&info);
    free(name);
    return ok;
}

// -------------------------------------------------------------------- schema

static bool install_schema(struct bench *b, struct err *e)
{
    const struct migrate_options opt = {0};
    struct migrate_report rep = MIGRATE_REPORT_INIT;
    int version = 0;
    bool ok = migrate_check(b->control, &version, e);
    if (!ok && version == 0) {
        err_clear(e);
        ok = migrate_run(b->control, &opt, &rep, e);
        migrate_report_clear(&rep);
    }
    return ok;
}

static bool ask_bool(struct bench *b, const char *query, bool *out, struct err *e)
{
    PGresult *res;
    if (!bench_sql(b, query, NULL, &res, e))
        return false;
    *out = PQgetvalue(res, 0, 0)[0] == 't';
    PQclear(res);
    return true;
}

// The lock goes with the session.
static bool check_alone(struct bench *b, struct err *e)
{
    bool locked, strangers;
    if (!ask_bool(b, "bench_lock", &locked, e))
        return false;
    if (!locked)
        return err_set(e, "another benchmark runs on this database");
    if (b->opt.force)
        return true;
    if (!ask_bool(b, "bench_strangers", &strangers, e))
        return false;
    if (!strangers)
        return true;
    err_set(e, "this database has tasks of others");
    return err_hint(e, "use --create for a throw-away database, or --force");
}

static bool register_queue(struct setup *s, struct bench *b, struct err *e)
{
    PGresult *res;
    if (!bench_script(b, b->control, "bench_register", e))
        return false;
    s->registered = true;
    if (!bench_script(b, b->control, "bench_clear", e) ||
        !bench_sql(b, "bench_queue_id", NULL, &res, e))
        return false;
    b->queue_id = (int)conn_result_int64(res, 0, 0);
    PQclear(res);
    return true;
}

bool setup_begin(struct setup *s, struct bench *b, const char *conninfo, struct err *e)
{
    *s = (struct setup){0};
    bench_progress(b, "preparing the database", 0);
    if (b->opt.create) {
        if (!make_database(s, b, conninfo, e))
            return false;
    } else {
        b->conninfo = xstrdup(conninfo);
    }
    b->control = b->opt.open(b->conninfo, e);
    if (b->control == NULL)
        return false;
    b->local = meter_is_local(b->control);
    return install_schema(b, e) && check_alone(b, e) && register_queue(s, b, e);
}

// ------------------------------------------------------------------- the end

static bool drop_database(struct setup *s, struct bench *b, struct err *e)
{
    PQfinish(b->control);
    b->control = NULL;
    return bench_execute(b, s->maker, s->drop, e)
               ? true
               : err_wrap(e, "cannot drop the throw-away database");
}

bool setup_end(struct setup *s, struct bench *b, struct err *e)
{
    bool ok = true;
    bench_progress(b, "cleaning up", 0);
    if (s->drop != NULL) {
        ok = drop_database(s, b, e);
    } else if (s->registered) {
        ok = bench_script(b, b->control, "bench_clear", e) &&
             bench_script(b, b->control, "bench_unregister", e);
        if (!ok)
            err_wrap(e, "cannot clean up");
    }
    PQfinish(s->maker);
    free(s->drop);
    *s = (struct setup){0};
    return ok;
}
