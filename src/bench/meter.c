// SPDX-License-Identifier: Apache-2.0

#include "bench/meter.h"

#include <fcntl.h>
#include <inttypes.h>
#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/resource.h>
#include <unistd.h>

#define FLUSH_LIMIT_MS 10000

// ---------------------------------------------------------------------- proc

// The beginning of /proc/PID/NAME as a string; false when it cannot be read.
static bool read_proc(int pid, const char *name, char *out, size_t size)
{
    char path[64];
    snprintf(path, sizeof path, "/proc/%d/%s", pid, name);
    int fd = open(path, O_RDONLY | O_CLOEXEC);
    if (fd < 0)
        return false;
    ssize_t n = read(fd, out, size - 1);
    close(fd);
    out[n > 0 ? n : 0] = '\0';
    return n > 0;
}

// utime and stime are the 14th and 15th field; the 2nd may hold anything, but
// ends with the last closing bracket.
static double read_cpu_ticks(int pid)
{
    char text[1024];
    if (!read_proc(pid, "stat", text, sizeof text))
        return NAN;
    const char *p = strrchr(text, ')');
    for (int field = 2; p != NULL && field < 14; field++)
        p = strchr(p + 1, ' ');
    if (p == NULL)
        return NAN;
    char *end;
    double ticks = strtod(p, &end);
    ticks += strtod(end, NULL);
    return ticks * 1e6 / (double)sysconf(_SC_CLK_TCK);
}

// The scheduler's own count is in nanoseconds, and not every kernel has it;
// the other one is in ticks of 10 ms.
double meter_read_cpu(int pid)
{
    char text[128];
    if (read_proc(pid, "schedstat", text, sizeof text)) {
        double ns = strtod(text, NULL);
        if (ns > 0)
            return ns / 1000;
    }
    return read_cpu_ticks(pid);
}

// A server in another container is local too, but its numbers are not ours.
bool meter_is_local(const PGconn *pg)
{
    char title[64];
    const char *host = PQhost(pg);
    const char *addr = PQhostaddr(pg);
    bool near =
        (host != NULL && (host[0] == '/' || host[0] == '@')) ||
        (addr != NULL && (strncmp(addr, "127.", 4) == 0 || strcmp(addr, "::1") == 0));
    return near && read_proc(PQbackendPID(pg), "cmdline", title, sizeof title) &&
           strstr(title, "postgres") != NULL;
}

// ------------------------------------------------------------------- reading

static double read_server_cpu(const struct meter *m)
{
    double us = m->b->local ? 0 : NAN;
    for (size_t i = 0; i < m->set_count; i++)
        for (size_t k = 0; m->b->local && k < m->sets[i]->count; k++)
            us += meter_read_cpu(m->sets[i]->list[k].pid);
    if (m->control && m->b->local)
        us += meter_read_cpu(PQbackendPID(m->b->control));
    return us;
}

static double read_client_cpu(void)
{
    struct rusage u;
    getrusage(RUSAGE_SELF, &u);
    return (double)(u.ru_utime.tv_sec + u.ru_stime.tv_sec) * 1e6 +
           (double)(u.ru_utime.tv_usec + u.ru_stime.tv_usec);
}

static int64_t count_commits(const struct meter *m)
{
    int64_t n = 0;
    for (size_t i = 0; i < m->set_count; i++)
        for (size_t k = 0; k < m->sets[i]->count; k++)
            n += m->sets[i]->list[k].commits;
    return n;
}

// A session hands in its figures a second late, unless it is told to.
static bool flush_statistics(const struct meter *m, struct err *e)
{
    for (size_t i = 0; i < m->set_count; i++) {
        for (size_t k = 0; k < m->sets[i]->count; k++)
            client_request(&m->sets[i]->list[k], "bench_flush_statistics", NULL, NULL,
                           NULL);
        if (!clients_settle(m->sets[i], FLUSH_LIMIT_MS, e))
            return false;
    }
    return bench_sql(m->b, "bench_flush_statistics", NULL, NULL, e);
}

static bool read_wal(const struct meter *m, struct meter_reading *r, struct err *e)
{
    PGresult *res;
    bool counted = PQserverVersion(m->b->control) >= 150000;
    if (!bench_sql(m->b, "bench_wal", NULL, &res, e))
        return false;
    r->wal_bytes = (double)conn_result_int64(res, 0, 0);
    PQclear(res);
    r->wal_fpi = NAN;
    if (!counted)
        return true;
    if (!flush_statistics(m, e) || !bench_sql(m->b, "bench_wal_fpi", NULL, &res, e))
        return false;
    r->wal_fpi = (double)conn_result_int64(res, 0, 0);
    PQclear(res);
    return true;
}

// --------------------------------------------------------------------- meter

void meter_watch(struct meter *m, struct bench *b, struct clients *set)
{
    if (m->set_count == METER_SETS_MAX)
        BUG("a meter watches %d sets at most", METER_SETS_MAX);
    m->b = b;
    m->sets[m->set_count++] = set;
}

void meter_watch_control(struct meter *m, struct bench *b)
{
    m->b = b;
    m->control = true;
}

void meter_forget(struct meter *m)
{
    m->control = false;
    m->set_count = 0;
}

// What the meter does itself stays outside of what it measures: the slow
// readings come first here, and last at the end.
bool meter_start(struct meter *m, struct err *e)
{
    if (!read_wal(m, &m->start, e))
        return false;
    m->start.commits = count_commits(m);
    m->start.client_us = read_client_cpu();
    m->start.server_us = read_server_cpu(m);
    m->start.us = bench_now_us();
    return true;
}

bool meter_stop(struct meter *m, struct err *e)
{
    struct meter_reading now = {.us = bench_now_us(),
                                .server_us = read_server_cpu(m),
                                .client_us = read_client_cpu(),
                                .commits = count_commits(m)};
    if (!read_wal(m, &now, e))
        return false;
    m->sum.us += now.us - m->start.us;
    m->sum.server_us += now.server_us - m->start.server_us;
    m->sum.client_us += now.client_us - m->start.client_us;
    m->sum.wal_bytes += now.wal_bytes - m->start.wal_bytes;
    m->sum.wal_fpi += now.wal_fpi - m->start.wal_fpi;
    m->sum.commits += now.commits - m->start.commits;
    return true;
}

void meter_report(const struct meter *m, int64_t tasks, double tasks_per_s,
                  struct report *r)
{
    const struct meter_reading *s = &m->sum;
    double n = (double)tasks;
    report_add_int(r, "tasks", tasks);
    report_add_number(r, "seconds", (double)s->us / 1e6);
    report_add_number(r, "tasks_per_s",
                      isnan(tasks_per_s) ? n * 1e6 / (double)s->us : tasks_per_s);
    report_add_ratio(r, "server_us_per_task", s->server_us, n);
    report_add_ratio(r, "client_us_per_task", s->client_us, n);
    report_add_ratio(r, "wal_bytes_per_task", s->wal_bytes, n);
    report_add_number(r, "wal_fpi", s->wal_fpi);
    report_add_ratio(r, "commits_per_task", (double)s->commits, n);
}
