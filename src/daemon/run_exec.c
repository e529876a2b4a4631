// SPDX-License-Identifier: Apache-2.0
//
// Handlers that are programs: the payload is standard input, standard output is
// the result, and the exit status says how the attempt ended.
//
//     0                completed
//     75               not now (EX_TEMPFAIL): again after "retry_after" seconds
//     64, 65, 78, 100  will fail again (EX_USAGE, EX_DATAERR, EX_CONFIG)
//     all else         failed
//
// Nothing of the payload is in the arguments or the environment, and there is no
// shell. docs/handlers.md is the same for those who write such programs.

#include <jansson.h>
#include <signal.h>
#include <stdlib.h>
#include <string.h>
#include <sys/queue.h>

#include "core/buf.h"
#include "core/jsontext.h"
#include "core/loop.h"
#include "core/machine.h"
#include "core/proc.h"
#include "daemon/kind.h"
#include "daemon/traceparent.h"

#define ARRAY_SIZE(a)     (sizeof(a) / sizeof(a)[0])
#define PATH_VALUE        "/usr/local/sbin:/usr/local/bin:/usr/sbin:/usr/bin:/sbin:/bin"
#define STDERR_KEPT       8192
#define TEXT_RESULT_MAX   65536
#define SNOOZE_DEFAULT_MS (30 * 1000)
#define DELAY_MAX_MS      (24 * 60 * 60 * 1000)
#define LOOK_EVERY_MS     50 // on a kernel that cannot tell when a child ends

enum exec_state {
    EXEC_RUNNING,
    EXEC_ASKED,    // SIGTERM was sent
    EXEC_KILLED,   // SIGKILL was sent, because it was asked and did not go
    EXEC_TOO_LOUD, // SIGKILL was sent, because it wrote too much
    EXEC_GONE,
};

static const char *const exec_states[] = {"running", "asked", "killed", "too_loud",
                                          "gone"};

static const struct machine_transition exec_transitions[] = {
    {EXEC_RUNNING, EXEC_ASKED, "told to stop"},
    {EXEC_RUNNING, EXEC_TOO_LOUD, "wrote too much"},
    {EXEC_RUNNING, EXEC_GONE, "ended"},
    {EXEC_ASKED, EXEC_KILLED, "did not stop in time"},
    {EXEC_ASKED, EXEC_GONE, "stopped"},
    {EXEC_KILLED, EXEC_GONE, "killed"},
    {EXEC_TOO_LOUD, EXEC_GONE, "killed"},
};

static const struct machine exec_machine = {
    .name = "exec",
    .states = exec_states,
    .state_count = ARRAY_SIZE(exec_states),
    .transitions = exec_transitions,
    .transition_count = ARRAY_SIZE(exec_transitions),
};

struct exec_attempt;

struct exec_kind {
    struct runtime *rt;
    int64_t kill_after_ms;
    TAILQ_HEAD(, exec_attempt) attempts; // under way
};

struct exec_attempt {
    TAILQ_ENTRY(exec_attempt) link;
    struct exec_kind *kind;
    struct attempt *attempt;
    enum exec_state state;
    struct proc proc;
    struct event *watches[PROC_FDS_MAX];
    struct event *kill_timer;
    struct event *look_timer;
};

static void *exec_kind_open(struct runtime *rt, struct err *e)
{
    (void)e;
    struct exec_kind *k = xcalloc(1, sizeof *k);
    k->rt = rt;
    k->kill_after_ms = conf_get_int(rt->conf, "exec.kill_after");
    TAILQ_INIT(&k->attempts);
    return k;
}

static void set_state(struct exec_attempt *x, enum exec_state state)
{
    const char *why = machine_step(&exec_machine, (int)x->state, (int)state);
    log_debug(x->kind->rt->log, "program", LOG_I("task", x->attempt->task.task_id),
              LOG_I("pid", x->proc.pid), LOG_S("state", exec_states[state]),
              LOG_S("why", why));
    x->state = state;
}

// ----------------------------------------------------------------------- end

static enum attempt_outcome judge(struct proc_status s)
{
    static const struct {
        int status;
        enum attempt_outcome outcome;
    } statuses[] = {
        {0, ATTEMPT_COMPLETED}, {75, ATTEMPT_SNOOZED}, {64, ATTEMPT_FATAL},
        {65, ATTEMPT_FATAL},    {78, ATTEMPT_FATAL},   {100, ATTEMPT_FATAL},
    };
    for (size_t i = 0; s.kind == PROC_EXITED && i < ARRAY_SIZE(statuses); i++) {
        if (s.value == statuses[i].status)
            return statuses[i].outcome;
    }
    return ATTEMPT_FAILED;
}

// {"retry_after": seconds} on standard output.
static int64_t read_delay_ms(const struct buf *out)
{
    json_t *object = json_loadb(buf_str(out), out->len, 0, NULL);
    const json_t *member = json_object_get(object, "retry_after");
    double seconds = json_is_number(member) ? json_number_value(member) : 0;
    json_decref(object);
    if (!(seconds > 0))
        return SNOOZE_DEFAULT_MS;
    double ms = seconds * 1000;
    return ms < 1 ? 1 : ms > DELAY_MAX_MS ? DELAY_MAX_MS : (int64_t)ms;
}

// How it ended, and what it had to say about it.
static void add_error(struct buf *out, const struct exec_attempt *x)
{
    char status[PROC_STATUS_TEXT_MAX];
    if (x->state == EXEC_ASKED || x->state == EXEC_KILLED)
        buf_adds(out, "aborted: ");
    buf_adds(out, proc_status_text(x->proc.status, status));
    const char *text = buf_str(&x->proc.err.data);
    size_t len = x->proc.err.data.len;
    while (len > 0 && strchr(" \t\r\n", text[len - 1]) != NULL)
        len--;
    // The tail may begin in the middle of a character.
    while (x->proc.err.total > x->proc.err.data.len && len > 0 &&
           ((unsigned char)text[0] & 0xc0) == 0x80) {
        text++;
        len--;
    }
    if (len > 0) {
        buf_adds(out, ": ");
        jsontext_add_clean(out, text, len);
    }
}

static void exec_attempt_free(struct exec_attempt *x)
{
    for (size_t i = 0; i < PROC_FDS_MAX; i++)
        loop_event_clear(&x->watches[i]);
    loop_event_clear(&x->kill_timer);
    loop_event_clear(&x->look_timer);
    proc_clear(&x->proc);
    free(x);
}

static void end_with(struct exec_attempt *x, const struct attempt_result *r)
{
    struct attempt *a = x->attempt;
    a->state = NULL;
    TAILQ_REMOVE(&x->kind->attempts, x, link);
    exec_attempt_free(x);
    attempt_end(a, r);
}

static void end_gone(struct exec_attempt *x)
{
    const struct proc *p = &x->proc;
    struct attempt_result r = {.outcome = judge(p->status)};
    int64_t limit = x->attempt->command->max_response_bytes;
    struct buf text = BUF_INIT;
    if (p->out.total > (uint64_t)limit) {
        r.outcome = ATTEMPT_FATAL;
        buf_addf(&text, "wrote more than %lld bytes to standard output",
                 (long long)limit);
    } else if (r.outcome == ATTEMPT_COMPLETED) {
        jsontext_add_result(&text, "output", buf_str(&p->out.data), p->out.data.len,
                            TEXT_RESULT_MAX);
    } else {
        add_error(&text, x);
        if (x->state != EXEC_RUNNING)
            r.outcome = ATTEMPT_FAILED;
        if (r.outcome == ATTEMPT_SNOOZED)
            r.delay_ms = read_delay_ms(&p->out.data);
    }
    if (r.outcome == ATTEMPT_COMPLETED)
        r.result = text.len > 0 ? buf_str(&text) : NULL;
    else
        r.error = buf_str(&text);
    set_state(x, EXEC_GONE);
    end_with(x, &r);
    buf_clear(&text);
}

// ---------------------------------------------------------------------- life

static void look(struct exec_attempt *x)
{
    if (proc_poll(&x->proc)) {
        end_gone(x);
        return;
    }
    int64_t limit = x->attempt->command->max_response_bytes;
    if (x->state == EXEC_RUNNING && x->proc.out.total > (uint64_t)limit) {
        set_state(x, EXEC_TOO_LOUD);
        proc_signal_group(&x->proc, SIGKILL, NULL);
    }
}

static void on_ready(evutil_socket_t fd, short what, void *arg)
{
    (void)fd;
    (void)what;
    look(arg);
}

static void on_look_timer(evutil_socket_t fd, short what, void *arg)
{
    (void)fd;
    (void)what;
    struct exec_attempt *x = arg;
    loop_timer_start(x->look_timer, LOOK_EVERY_MS);
    look(x);
}

static void on_kill_timer(evutil_socket_t fd, short what, void *arg)
{
    (void)fd;
    (void)what;
    struct exec_attempt *x = arg;
    set_state(x, EXEC_KILLED);
    proc_signal_group(&x->proc, SIGKILL, NULL);
}

static void before_close(void *arg, int fd)
{
    struct exec_attempt *x = arg;
    for (size_t i = 0; i < PROC_FDS_MAX; i++) {
        if (x->watches[i] != NULL && event_get_fd(x->watches[i]) == fd)
            loop_event_clear(&x->watches[i]);
    }
}

static void watch(struct exec_attempt *x)
{
    struct event_base *base = x->kind->rt->base;
    struct pollfd fds[PROC_FDS_MAX];
    size_t n = proc_fds(&x->proc, fds);
    for (size_t i = 0; i < n; i++) {
        short events = (short)(fds[i].events == POLLIN ? EV_READ : EV_WRITE) | EV_PERSIST;
        x->watches[i] = loop_event_new(base, fds[i].fd, events, on_ready, x);
        loop_event_add(x->watches[i], NULL);
    }
    x->kill_timer = loop_event_new(base, -1, 0, on_kill_timer, x);
    if (x->proc.exit_fd < 0) {
        x->look_timer = loop_event_new(base, -1, 0, on_look_timer, x);
        loop_timer_start(x->look_timer, LOOK_EVERY_MS);
    }
}

// ------------------------------------------------------------- start and stop

static const char *const *make_argv(struct arena *a, const struct command *c)
{
    size_t n = 0;
    while (c->arguments != NULL && c->arguments[n] != NULL)
        n++;
    const char **argv = arena_calloc(a, n + 2, sizeof *argv);
    argv[0] = c->program;
    for (size_t i = 0; i < n; i++)
        argv[i + 1] = c->arguments[i];
    return argv;
}

static const char *const *make_env(struct arena *arena, const struct attempt *a)
{
    const char **env = arena_calloc(arena, 9, sizeof *env);
    size_t n = 0;
    env[n++] = "PATH=" PATH_VALUE;
    env[n++] = "LANG=C.UTF-8";
    env[n++] = arena_printf(arena, "PGKIN_TASK_ID=%lld", (long long)a->task.task_id);
    env[n++] = arena_printf(arena, "PGKIN_ATTEMPT=%d", a->task.attempt);
    env[n++] = arena_printf(arena, "PGKIN_LEASE_ID=%lld", (long long)a->task.lease_id);
    env[n++] = arena_printf(arena, "PGKIN_COMMAND=%s", a->command->name);
    env[n++] = arena_printf(arena, "PGKIN_IDEMPOTENCY_KEY=%s", a->idempotency_key);
    char traceparent[TRACEPARENT_SIZE];
    if (traceparent_find(a->task.headers, traceparent))
        env[n++] = arena_printf(arena, "TRACEPARENT=%s", traceparent);
    return env;
}

static bool spawn(struct exec_attempt *x, struct err *e)
{
    const struct attempt *a = x->attempt;
    const struct command *c = a->command;
    size_t cap = c->max_response_bytes > 0 ? (size_t)c->max_response_bytes : 1;
    struct arena texts = ARENA_INIT;
    const struct proc_spec spec = {
        .argv = make_argv(&texts, c),
        .env = make_env(&texts, a),
        .cwd = "/",
        .input = a->task.payload,
        .input_len = a->task.payload_len,
        .out = {.mode = PROC_CAPTURE, .cap = cap},
        .err = {.mode = PROC_CAPTURE, .cap = STDERR_KEPT},
        .group = PROC_NEW_GROUP,
        // A worker that was killed cannot stop it, and another worker will
        // start the task again.
        .death_signal = SIGKILL,
        .kill_leftovers = true,
        .before_close = before_close,
        .before_close_arg = x,
    };
    bool ok = proc_spawn(&x->proc, &spec, e);
    arena_clear(&texts);
    return ok;
}

static void exec_kind_start(void *self, struct attempt *a)
{
    struct exec_attempt *x = xcalloc(1, sizeof *x);
    x->kind = self;
    x->attempt = a;
    TAILQ_INSERT_TAIL(&x->kind->attempts, x, link);
    a->state = x;
    struct err e = ERR_INIT;
    struct attempt_result r = {.outcome = ATTEMPT_FAILED, .error = e.msg};
    const char *program = a->command->program;
    if (program == NULL || program[0] != '/') {
        r.outcome = ATTEMPT_FATAL;
        err_set(&e, "the program must be an absolute path");
        end_with(x, &r);
    } else if (!spawn(x, &e)) {
        // Not for good: a deployment may be under way.
        end_with(x, &r);
    } else {
        watch(x);
    }
}

static void exec_kind_stop(void *self, struct attempt *a)
{
    struct exec_kind *k = self;
    struct exec_attempt *x = a->state;
    if (x->state != EXEC_RUNNING)
        return;
    set_state(x, EXEC_ASKED);
    proc_signal_group(&x->proc, SIGTERM, NULL);
    loop_timer_start(x->kill_timer, k->kill_after_ms);
}

// Programs that are still there are killed.
static void exec_kind_close(void *self)
{
    struct exec_kind *k = self;
    const struct attempt_result r = {.outcome = ATTEMPT_FAILED,
                                     .error = "the worker ends"};
    while (!TAILQ_EMPTY(&k->attempts))
        end_with(TAILQ_FIRST(&k->attempts), &r);
    free(k);
}

const struct kind kind_exec = {
    .name = "exec",
    .open = exec_kind_open,
    .close = exec_kind_close,
    .start = exec_kind_start,
    .stop = exec_kind_stop,
};
