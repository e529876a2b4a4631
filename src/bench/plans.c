// SPDX-License-Identifier: Apache-2.0
//
// How a claim is executed with a great many tasks pending: with no limit, with one
// command of ten limited, with all of them. The claim is a function, of which
// EXPLAIN shows nothing; so auto_explain tells the plan of each statement in it,
// as a notice, and these are written to a file per state.

#include <errno.h>
#include <inttypes.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>

#include "bench/load.h"
#include "bench/pool.h"
#include "bench/scenarios.h"

#define PLANS_DIR "bench/plans"
#define COMMANDS  10
#define LIMIT     10
#define WARM_UP   6 // calls after which every statement has its final plan

struct state {
    const char *file;
    int limited;
    struct {
        const char *statements, *seq_scans, *claimed;
    } keys;
};

static const struct state states[] = {
    {"no-limit.txt",
     0,
     {"no_limit_statements", "no_limit_seq_scans", "no_limit_claimed"}},
    {"one-limited.txt",
     1,
     {"one_limited_statements", "one_limited_seq_scans", "one_limited_claimed"}},
    {"all-limited.txt",
     COMMANDS,
     {"all_limited_statements", "all_limited_seq_scans", "all_limited_claimed"}},
};

#define STATE_COUNT (sizeof states / sizeof states[0])

// What the session told.
struct plans {
    struct buf text;
    int64_t statements;
    int64_t seq_scans;
};

static void on_notice(void *arg, const PGresult *res)
{
    struct plans *p = arg;
    const char *message = PQresultErrorField(res, PG_DIAG_MESSAGE_PRIMARY);
    const char *context = PQresultErrorField(res, PG_DIAG_CONTEXT);
    if (message == NULL || strstr(message, "plan:") == NULL)
        return;
    p->statements++;
    for (const char *s = message; (s = strstr(s, "Seq Scan on ")) != NULL; s++)
        p->seq_scans++;
    const char *function = context != NULL ? strstr(context, "PL/pgSQL function ") : NULL;
    if (function != NULL)
        buf_addf(&p->text, "-- %.*s\n", (int)strcspn(function, "\n"), function);
    buf_addf(&p->text, "%s\n\n", message);
}

// ----------------------------------------------------------------- the claim

static bool set_log(struct bench *b, PGconn *pg, const char *from_ms, struct err *e)
{
    struct conn_params p = CONN_PARAMS_INIT;
    conn_params_add_text(&p, from_ms);
    return bench_sql_on(b, pg, "bench_plan_log", &p, NULL, e);
}

// `leases` is an array literal: those to end, and then those it has got.
static bool exchange(struct bench *b, PGconn *pg, int want, int64_t worker_id,
                     struct buf *leases, int64_t *claimed, struct err *e)
{
    struct conn_params p = CONN_PARAMS_INIT;
    PGresult *res;
    conn_params_add_int64(&p, want);
    conn_params_add_int64(&p, worker_id);
    conn_params_add_text(&p, buf_str(leases));
    if (!bench_sql_on(b, pg, "bench_plan_exchange", &p, &res, e))
        return false;
    buf_reset(leases);
    buf_adds(leases, PQgetisnull(res, 0, 0) ? "{}" : PQgetvalue(res, 0, 0));
    *claimed = conn_result_int64(res, 0, 1);
    PQclear(res);
    return true;
}

// The call that is told about ends a batch and claims one, as all but the first do.
static bool explain(struct bench *b, PGconn *pg, struct plans *plans, int64_t *claimed,
                    struct err *e)
{
    struct buf leases = BUF_INIT;
    int64_t worker_id, rest;
    bool ok = pool_register_worker(b, &worker_id, e);
    buf_adds(&leases, "{}");
    for (int i = 0; ok && i < WARM_UP; i++)
        ok = exchange(b, pg, b->opt.batch, worker_id, &leases, &rest, e);
    PQsetNoticeReceiver(pg, on_notice, plans);
    ok = ok && set_log(b, pg, "0", e) &&
         exchange(b, pg, b->opt.batch, worker_id, &leases, claimed, e) &&
         set_log(b, pg, "-1", e) && exchange(b, pg, 0, worker_id, &leases, &rest, e) &&
         pool_release_worker(b, worker_id, e);
    buf_clear(&leases);
    return ok;
}

static bool open_session(struct bench *b, PGconn **pg, struct err *e)
{
    *pg = b->opt.open(b->conninfo, e);
    if (*pg == NULL)
        return false;
    if (bench_script(b, *pg, "bench_plan_session", e))
        return true;
    return err_hint(e, "plans take a superuser, and auto_explain on the server");
}

// --------------------------------------------------------------------- files

static bool make_directory(const char *dir, struct err *e)
{
    if (mkdir(dir, 0777) == 0 || errno == EEXIST)
        return true;
    return err_errno(e, errno, "cannot make the directory %s", dir);
}

static bool write_file(const char *dir, const char *name, const struct buf *text,
                       struct err *e)
{
    char *path = xasprintf("%s/%s", dir, name);
    FILE *f = fopen(path, "w");
    bool ok = f != NULL && fwrite(text->data, 1, text->len, f) == text->len;
    if (f != NULL && fclose(f) != 0)
        ok = false;
    if (!ok)
        err_errno(e, errno, "cannot write %s", path);
    free(path);
    return ok;
}

// -------------------------------------------------------------------- states

static bool prepare(struct bench *b, const struct state *s, struct err *e)
{
    struct conn_params p = CONN_PARAMS_INIT;
    if (!bench_script(b, b->control, "bench_clear", e) ||
        !bench_script(b, b->control, "bench_limit_forget", e))
        return false;
    conn_params_add_int64(&p, COMMANDS);
    conn_params_add_int64(&p, s->limited);
    conn_params_add_int64(&p, LIMIT);
    return bench_sql(b, "bench_limit_commands", &p, NULL, e) &&
           load_tasks(b, LOAD_COMMANDS, b->opt.tasks, e) &&
           bench_script(b, b->control, "bench_vacuum", e);
}

static bool run_state(struct bench *b, const struct state *s, const char *dir,
                      struct report *r, struct err *e)
{
    struct plans plans = {.text = BUF_INIT};
    PGconn *pg = NULL;
    int64_t claimed = 0;
    buf_addf(&plans.text,
             "%d tasks pending, %d of %d commands limited to %d, PostgreSQL %s\n\n",
             b->opt.tasks, s->limited, COMMANDS, LIMIT,
             PQparameterStatus(b->control, "server_version"));
    bool ok = open_session(b, &pg, e) && prepare(b, s, e) &&
              explain(b, pg, &plans, &claimed, e) &&
              write_file(dir, s->file, &plans.text, e);
    if (ok) {
        report_add_int(r, s->keys.claimed, claimed);
        report_add_int(r, s->keys.statements, plans.statements);
        report_add_int(r, s->keys.seq_scans, plans.seq_scans);
    }
    PQfinish(pg);
    buf_clear(&plans.text);
    return ok;
}

bool bench_concurrency_plans(struct bench *b, struct report *r, struct err *e)
{
    const char *dir = b->opt.plans != NULL ? b->opt.plans : PLANS_DIR;
    bool ok = make_directory(dir, e);
    report_add_int(r, "tasks", b->opt.tasks);
    report_add_int(r, "batch", b->opt.batch);
    report_add_text(r, "plans", dir);
    for (size_t i = 0; ok && i < STATE_COUNT; i++)
        ok = run_state(b, &states[i], dir, r, e);
    return ok;
}
