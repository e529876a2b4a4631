// SPDX-License-Identifier: Apache-2.0

#include <errno.h>
#include <poll.h>
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>
#include <unistd.h>

#include "cli/cli.h"
#include "cli/client.h"
#include "cli/text.h"
#include "cli/when.h"

// Between two looks at a task that is followed.
#define FIRST_PAUSE_MS   10
#define LONGEST_PAUSE_MS 500

// More than any payload may be; the server has the last word.
#define STDIN_MAX (64u << 20)

struct values {
    const char *priority;
    const char *at;
    const char *dedup_key;
    const char *merge;
    const char *group_key;
    const char *order_key;
    bool wait;
    bool json;
};

static const struct cli_option options[] = {
    {"priority", 'p', CLI_STRING, offsetof(struct values, priority), "N",
     "smaller runs first; may be negative"},
    {"at", 0, CLI_STRING, offsetof(struct values, at), "TIME",
     "not before: ISO 8601, or +10s, +5m, +2h"},
    {"dedup-key", 0, CLI_STRING, offsetof(struct values, dedup_key), "KEY",
     "at most one pending task per command and key"},
    {"merge", 0, CLI_STRING, offsetof(struct values, merge), "HOW",
     "into that one: keep, replace, union, debounce, FUNCTION"},
    {"group-key", 0, CLI_STRING, offsetof(struct values, group_key), "KEY",
     "what limits per group count by"},
    {"order-key", 0, CLI_STRING, offsetof(struct values, order_key), "KEY",
     "tasks of one key run one after the other"},
    {"wait", 'w', CLI_FLAG, offsetof(struct values, wait), NULL,
     "follow the task to its end"},
    {"json", 0, CLI_FLAG, offsetof(struct values, json), NULL, "print JSON"},
    {0},
};

static bool read_stdin(struct buf *out, struct err *e)
{
    char chunk[65536];
    for (ssize_t n; (n = read(STDIN_FILENO, chunk, sizeof chunk)) != 0;) {
        if (n < 0 && errno == EINTR)
            continue;
        if (n < 0)
            return err_errno(e, errno, "cannot read standard input");
        buf_add(out, chunk, (size_t)n);
        if (out->len > STDIN_MAX)
            return err_set(e, "standard input is too long for a payload");
    }
    if (strlen(buf_str(out)) != out->len)
        return err_usage(e, "standard input is not JSON: it has a zero byte");
    return true;
}

static bool check_values(const struct values *v, struct when *at, struct err *e)
{
    char *end;
    if (v->priority != NULL) {
        errno = 0;
        strtoll(v->priority, &end, 10);
        if (*end != '\0' || errno != 0)
            return err_usage(e, "option \"--priority\": \"%s\" is not a whole number",
                             v->priority);
    }
    if (v->merge != NULL && v->dedup_key == NULL)
        return err_usage(e, "--merge needs --dedup-key");
    if (v->at != NULL && !when_parse(v->at, at, e))
        return err_wrap(e, "option \"--at\"");
    return true;
}

// Appends the id.
static bool enqueue(PGconn *conn, const struct values *v, const struct when *at,
                    const char *command, const char *payload, struct buf *id,
                    struct err *e)
{
    char delay[32];
    snprintf(delay, sizeof delay, "%lld", (long long)at->ms);
    const char *params[] = {
        command,
        payload,
        v->priority,
        v->at != NULL && !at->relative ? at->text : NULL,
        v->at != NULL && at->relative ? delay : NULL,
        v->dedup_key,
        v->merge,
        v->group_key,
        v->order_key,
    };
    PGresult *res =
        client_query(conn, "cli_enqueue", sizeof params / sizeof params[0], params, e);
    if (res == NULL)
        return false;
    buf_adds(id, PQgetvalue(res, 0, 0));
    PQclear(res);
    return true;
}

// ---------------------------------------------------------------- following

// The one thing that a signal handler may touch.
static volatile sig_atomic_t interrupted;

static void on_interrupt(int sig)
{
    (void)sig;
    interrupted = 1;
}

// The second signal ends the process, should the server not answer.
static void catch_interrupts(void)
{
    struct sigaction sa = {.sa_handler = on_interrupt, .sa_flags = (int)SA_RESETHAND};
    sigaction(SIGINT, &sa, NULL);
    sigaction(SIGTERM, &sa, NULL);
}

static bool may_follow(PGconn *conn, struct err *e)
{
    PGresult *res = client_query(conn, "cli_may_follow", 0, NULL, e);
    if (res == NULL)
        return false;
    bool ok = client_true(res, 0, 0);
    PQclear(res);
    if (ok)
        return true;
    err_set(e,
            "user \"%s\" may not look at tasks, so --wait cannot be done; "
            "nothing was enqueued",
            PQuser(conn));
    return err_hint(e, "the role worker_monitor gives the right");
}

static bool report_end(const char *id, const PGresult *res, bool json, struct err *e)
{
    const char *state = PQgetvalue(res, 0, 1);
    const char *result = client_value(res, 0, 2);
    const char *reason = client_value(res, 0, 3);
    struct buf clean = BUF_INIT;
    if (json)
        puts(PQgetvalue(res, 0, 4));
    else
        puts(state);
    if (!json && result != NULL) {
        text_add_clean(&clean, result);
        puts(buf_str(&clean));
    }
    bool ok = strcmp(state, "completed") == 0;
    if (!ok) {
        buf_reset(&clean);
        text_add_clean(&clean, reason != NULL ? reason : "no reason was given");
        err_set(e, "task %s %s: %s", id,
                strcmp(state, "canceled") == 0 ? "was canceled" : "failed",
                buf_str(&clean));
    }
    buf_clear(&clean);
    return ok;
}

// Polls: a notification could be lost, or a pooler be in between.
static bool follow(PGconn *conn, const char *id, bool json, struct err *e)
{
    int pause_ms = FIRST_PAUSE_MS;
    while (!interrupted) {
        PGresult *res = client_query(conn, "cli_follow", 1, &id, e);
        if (res == NULL) {
            err_wrap(e, "cannot follow task %s", id);
            return err_hint(e, "the task goes on; see it with: pgkin show %s", id);
        }
        if (PQntuples(res) == 0) {
            PQclear(res);
            return client_no_task(id, e);
        }
        if (client_true(res, 0, 0)) {
            bool ok = report_end(id, res, json, e);
            PQclear(res);
            return ok;
        }
        PQclear(res);
        poll(NULL, 0, pause_ms);
        pause_ms += pause_ms / 2;
        if (pause_ms > LONGEST_PAUSE_MS)
            pause_ms = LONGEST_PAUSE_MS;
    }
    err_set(e, "interrupted; task %s goes on", id);
    return err_hint(e, "see it with: pgkin show %s", id);
}

// ---------------------------------------------------------------- the command

static bool enqueue_and_report(const struct values *v, const struct when *at,
                               const struct cli_common *common, const char *command,
                               const char *payload, struct err *e)
{
    struct buf id = BUF_INIT;
    PGconn *conn = client_open(common, e);
    if (conn == NULL)
        return false;
    bool ok = !v->wait || may_follow(conn, e);
    ok = ok && enqueue(conn, v, at, command, payload, &id, e);
    if (ok && v->wait)
        catch_interrupts();
    if (ok && !v->json)
        printf("%s\n", buf_str(&id));
    else if (ok && !v->wait)
        printf("{\"id\":%s}\n", buf_str(&id));
    fflush(stdout);
    ok = ok && (!v->wait || follow(conn, buf_str(&id), v->json, e));
    buf_clear(&id);
    PQfinish(conn);
    return ok;
}

static bool run(int argc, char **argv, struct err *e);

const struct cli_command cmd_enqueue = {
    .name = "enqueue",
    .args = "COMMAND [JSON] [--priority N] [--at TIME] [--dedup-key K] [--wait]",
    .summary = "enqueue a task and print its id",
    .help =
        "JSON is the payload, an object; - reads it from standard input. A TIME without\n"
        "a time zone is in the one of the session (PGTZ).\n"
        "\n"
        "With --wait it prints the final state and the result, too, and succeeds only\n"
        "if the task completed. Ctrl-C ends the waiting; the task goes on.\n"
        "\n"
        "examples:\n"
        "  pgkin enqueue make_invoice '{\"order\": 7}'\n"
        "  pgkin enqueue report --at +2h --dedup-key daily\n"
        "  jq -n '{order: 7}' | pgkin enqueue make_invoice - --wait\n",
    .options = options,
    .max_operands = 2,
    .run = run,
};

static bool run(int argc, char **argv, struct err *e)
{
    struct values v = {0};
    struct cli_common common;
    struct when at = {0};
    struct buf input = BUF_INIT;
    int first;
    if (!cli_parse(&cmd_enqueue, argc, argv, &v, &common, &first, e))
        return false;
    bool ok = true;
    if (first == argc)
        ok = err_usage(e, "which command? its name is missing");
    ok = ok && check_values(&v, &at, e);
    const char *payload = ok && argc - first > 1 ? argv[first + 1] : "{}";
    if (ok && strcmp(payload, "-") == 0) {
        ok = read_stdin(&input, e);
        payload = buf_str(&input);
    }
    ok = ok && enqueue_and_report(&v, &at, &common, argv[first], payload, e);
    if (!ok && e->code == ERR_USAGE && e->hint[0] == '\0')
        err_hint(e, "see pgkin enqueue --help");
    buf_clear(&input);
    cli_common_clear(&common);
    return ok;
}
