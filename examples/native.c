// SPDX-License-Identifier: Apache-2.0
//
// A program that enqueues tasks and handles them itself, with libpgkin:
//
//     cc native.c -o native $(pkg-config --cflags --libs pgkin libpq)
//     psql -c "select worker.register_command('thumbnail', p_kind => 'native', p_max_attempts => 3)"
//     ./native enqueue 3      # adds three tasks, in one transaction
//     ./native work           # handles tasks until SIGINT or SIGTERM
//
// The connection comes from libpq's environment (PGHOST, PGDATABASE, …).

#include <libpq-fe.h>
#include <pgkin.h>
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

static int fail(const struct pgkin_error *e)
{
    fprintf(stderr, "native: %s\n", e->message);
    if (e->hint[0] != '\0')
        fprintf(stderr, "hint: %s\n", e->hint);
    return 1;
}

// The tasks exist exactly when the transaction commits.
static int enqueue(int n)
{
    struct pgkin_error e;
    PGconn *conn = PQconnectdb("");
    int status = 0;
    PQclear(PQexec(conn, "begin"));
    for (int i = 1; status == 0 && i <= n; i++) {
        char payload[64];
        snprintf(payload, sizeof payload, "{\"image\": %d}", i);
        int64_t id = pgkin_enqueue_on(conn, "thumbnail", payload, NULL, &e);
        if (id == 0)
            status = fail(&e);
        else
            printf("task %lld\n", (long long)id);
    }
    PQclear(PQexec(conn, status == 0 ? "commit" : "rollback"));
    PQfinish(conn);
    return status;
}

// Runs in a thread of the worker's own, several at once.
static enum pgkin_outcome make_thumbnail(pgkin_task *t, void *arg)
{
    const char *image = strstr(pgkin_task_payload(t), "\"image\": ");
    (void)arg;
    if (image == NULL) {
        pgkin_task_set_error(t, "the payload has no image");
        return PGKIN_GIVE_UP;
    }
    char result[128];
    snprintf(result, sizeof result, "{\"file\": \"%d.png\", \"attempt\": %d}",
             atoi(image + strlen("\"image\": ")), pgkin_task_attempt(t));
    pgkin_task_set_result(t, result);
    return PGKIN_COMPLETED;
}

static pgkin_worker *worker;

static void on_signal(int signo)
{
    (void)signo;
    pgkin_worker_stop(worker);
}

static void write_log(void *arg, enum pgkin_log_level level, const char *line)
{
    (void)arg;
    (void)level;
    fprintf(stderr, "%s\n", line);
}

static int work(void)
{
    struct pgkin_error e;
    worker = pgkin_worker_new(
        &(struct pgkin_worker_options){.log = write_log, .log_level = PGKIN_LOG_INFO}, &e);
    if (worker == NULL)
        return fail(&e);
    signal(SIGINT, on_signal);
    signal(SIGTERM, on_signal);
    int status = pgkin_worker_handle(worker, "thumbnail", make_thumbnail, NULL, &e) &&
                         pgkin_worker_run(worker, &e)
                     ? 0
                     : fail(&e);
    pgkin_worker_free(worker);
    return status;
}

int main(int argc, char **argv)
{
    if (argc == 3 && strcmp(argv[1], "enqueue") == 0)
        return enqueue(atoi(argv[2]));
    if (argc == 2 && strcmp(argv[1], "work") == 0)
        return work();
    fputs("usage: native enqueue N | native work\n", stderr);
    return 2;
}
