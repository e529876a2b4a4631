// SPDX-License-Identifier: Apache-2.0
//
// `pgkin bench`: the command line of src/bench/.

#include <stdio.h>
#include <unistd.h>

#include "bench/bench.h"
#include "cli/cli.h"
#include "cli/db.h"
#include "cli/options.h"
#include "core/suggest.h"

extern const struct cli_command cmd_bench;

struct values {
    struct bench_options bench;
    const char *holder;
    const char *sync;
    bool json;
};

#define AT(field) offsetof(struct values, field)

static const struct cli_option options[] = {
    {"create", 0, CLI_FLAG, AT(bench.create), NULL,
     "run in a throw-away database, made for it and dropped"},
    {"force", 0, CLI_FLAG, AT(bench.force), NULL, "run also where others have tasks"},
    {"tasks", 0, CLI_INT, AT(bench.tasks), "N", "how many tasks"},
    {"single", 0, CLI_FLAG, AT(bench.single), NULL,
     "enqueue one by one, each in its own transaction, not in bulk"},
    {"batch", 0, CLI_INT, AT(bench.batch), "N", "tasks per claim (500; 100 for a cost)"},
    {"connections", 0, CLI_INT, AT(bench.connections), "N", "sessions that work (2)"},
    {"producers", 0, CLI_INT, AT(bench.producers), "N",
     "sessions that enqueue while others claim (4)"},
    {"seconds", 0, CLI_INT, AT(bench.seconds), "N",
     "how long; of enqueue --single, each round"},
    {"rate", 0, CLI_INT, AT(bench.rate), "N", "tasks enqueued per second (500; 2000)"},
    {"rounds", 0, CLI_INT, AT(bench.rounds), "N", "repeat, and take the medians"},
    {"payload-bytes", 0, CLI_INT, AT(bench.payload_bytes), "N", "size of a payload"},
    {"holder", 0, CLI_STRING, AT(holder), "KIND",
     "hold a transaction open: none, read, write or dump"},
    {"baseline", 0, CLI_FLAG, AT(bench.baseline), NULL,
     "compare with a plain table; of concurrency-... with no limit"},
    {"plans", 0, CLI_STRING, AT(bench.plans), "DIR",
     "where concurrency-plans writes them (bench/plans)"},
    {"sync-commit", 0, CLI_STRING, AT(sync), "on|off", "synchronous_commit (on)"},
    {"progress", 0, CLI_FLAG, AT(bench.progress), NULL,
     "show progress also when standard error is no terminal"},
    {"json", 0, CLI_FLAG, AT(json), NULL, "report as one JSON object"},
    {0},
};

static bool unknown_scenario(const char *name, struct err *e)
{
    const char *names[16];
    size_t n = 0;
    for (const struct bench_scenario *s = bench_scenarios; s->name != NULL; s++)
        names[n++] = s->name;
    const char *near = suggest_nearest(name, names, n);
    err_usage(e, "unknown scenario \"%s\"", name);
    if (near != NULL)
        return err_hint(e, "did you mean \"%s\"?", near);
    return err_hint(e, "pgkin bench --help lists the scenarios");
}

static bool read_values(struct values *v, const struct bench_scenario *s, struct err *e)
{
    v->bench.holder = s->defaults.holder;
    if (v->holder != NULL && !bench_holder_parse(v->holder, &v->bench.holder))
        return err_usage(e, "--holder is none, read, write or dump, not \"%s\"",
                         v->holder);
    if (v->sync != NULL && !bench_sync_parse(v->sync, &v->bench.sync))
        return err_usage(e, "--sync-commit is on or off, not \"%s\"", v->sync);
    return true;
}

static void print_report(const struct report *r, bool json)
{
    struct buf text = BUF_INIT;
    if (json) {
        report_print_json(r, &text);
        buf_addc(&text, '\n');
    } else {
        report_print_table(r, &text);
    }
    fputs(buf_str(&text), stdout);
    buf_clear(&text);
}

static bool run_scenario(const struct bench_scenario *s, struct values *v,
                         const struct cli_common *common, struct err *e)
{
    struct buf conninfo = BUF_INIT;
    struct report report = REPORT_INIT;
    // A first connection only for the better message when there is none.
    PGconn *probe = db_connect_in(common->database, common->data_dir, e);
    bool ok = probe != NULL;
    PQfinish(probe);
    v->bench.open = db_open;
    v->bench.progress = v->bench.progress || isatty(STDERR_FILENO) == 1;
    // Sessions that come and go are no news here.
    v->bench.log = common->log.level == LOG_DEBUG ? &common->log : NULL;
    ok = ok && db_conninfo_in(common->database, common->data_dir, &conninfo, e) &&
         bench_run(s, &v->bench, buf_str(&conninfo), &report, e);
    if (ok)
        print_report(&report, v->json);
    report_clear(&report);
    buf_clear(&conninfo);
    return ok;
}

static bool run_bench(int argc, char **argv, struct err *e)
{
    struct values v = {.bench = {.tasks = -1,
                                 .batch = -1,
                                 .connections = -1,
                                 .producers = -1,
                                 .seconds = -1,
                                 .rate = -1,
                                 .rounds = -1,
                                 .payload_bytes = -1}};
    struct cli_common common;
    int first;
    if (!cli_parse(&cmd_bench, argc, argv, &v, &common, &first, e))
        return false;
    bool ok;
    const struct bench_scenario *s =
        first < argc ? bench_find_scenario(argv[first]) : NULL;
    if (first == argc) {
        err_usage(e, "no scenario given");
        ok = err_hint(e, "pgkin bench --help lists the scenarios");
    } else if (s == NULL) {
        ok = unknown_scenario(argv[first], e);
    } else {
        ok = read_values(&v, s, e) && run_scenario(s, &v, &common, e);
    }
    cli_common_clear(&common);
    return ok;
}

const struct cli_command cmd_bench = {
    .name = "bench",
    .args = "SCENARIO [--create] [--json]",
    .summary = "measure this queue on this server",
    .help =
        "Scenarios:\n"
        "  drain          claim and finish tasks that are all there\n"
        "  enqueue        enqueue in bulk and by COPY, or with --single one by one\n"
        "  latency        how long tasks wait that are enqueued at a given rate\n"
        "  held-snapshot  the same while a transaction is held open\n"
        "  backlog        the cost of a claim with few and with many tasks waiting\n"
        "  history        the cost of a claim with none and with many tasks ended\n"
        "  concurrency-baseline  drain with no limit of how many run at once\n"
        "  concurrency-enabled   the same with a limit of 10 on all tasks\n"
        "  concurrency-mixed     with a limit on 1 of 100 commands: the others' tasks\n"
        "  concurrency-high      with a limit of 500 on all tasks\n"
        "  concurrency-plans     write the plans of a claim from many tasks to files\n"
        "\n"
        "With --create it runs in a database of its own and leaves nothing behind. In\n"
        "an existing one its tasks stay on record until retention removes them, so it\n"
        "refuses to run where others have tasks, unless there is --force.\n"
        "\n"
        "Examples:\n"
        "  pgkin bench drain --create --baseline\n"
        "  pgkin bench drain --create --single --tasks 500000 --holder dump\n"
        "  pgkin bench held-snapshot --create --seconds 300 --holder write --json\n"
        "  pgkin bench concurrency-enabled --create --baseline --rounds 5\n",
    .options = options,
    .max_operands = 1,
    .run = run_bench,
};
