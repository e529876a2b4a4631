// SPDX-License-Identifier: Apache-2.0

#include "daemon/channel.h"

#include <stdlib.h>
#include <string.h>

#include "core/buf.h"
#include "core/json.h"
#include "core/loop.h"

#define ARRAY_SIZE(a)   (sizeof(a) / sizeof(a)[0])
#define SNOOZE_MS       2000 // the database was not there to ask
#define LOSSES_MAX      3    // of the session, while a handler may have run in it
#define HANDOUTS_MAX    5    // that ended so before anything was sent
#define RECORD_TRIES    10   // that the server refused
#define RECORD_PAUSE_MS 1000
#define TIMEOUT_DEFAULT 60000

enum state {
    BEGINNING,
    CALLING,
    RECORDING,
    OVER
};

static const char *const state_names[] = {[BEGINNING] = "beginning",
                                          [CALLING] = "calling",
                                          [RECORDING] = "recording",
                                          [OVER] = "over"};

static const struct machine_transition transitions[] = {
    {BEGINNING, CALLING, "to be sent"},
    {BEGINNING, RECORDING, "sent before, only its handler is due"},
    {BEGINNING, OVER, "nothing to send, or no answer, or given up"},
    {CALLING, RECORDING, "the provider has answered"},
    {CALLING, OVER, "stopped"},
    {RECORDING, OVER, "recorded, or the database is gone, or given up"},
};

static const struct machine machine = {
    .name = "channel",
    .states = state_names,
    .state_count = ARRAY_SIZE(state_names),
    .transitions = transitions,
    .transition_count = ARRAY_SIZE(transitions),
};

const struct machine *channel_machine(void)
{
    return &machine;
}

// Outlives its kind for as long as the connection owes it an answer.
struct channel {
    int refs; // the kind, its runs, and requests about the session
    struct run *runs;
    struct runtime *rt;
    const struct provider *provider;
    void *self; // the provider's
    // The state of the session before any handler ran in it.
    int session_pid;
    char *session_state;
};

struct run {
    struct channel_call call; // first: channel_answer() gets a pointer to it
    struct channel *channel;
    struct run *prev, *next;
    struct attempt *attempt; // NULL: given up, only the answer to a step is awaited
    int64_t task_id;
    enum state state;
    bool stopped;
    bool asked; // a step is with the server
    bool reset; // the session is put right behind the step that is under way
    int64_t called_ms;
    // What is recorded.
    const char *query; // NULL: nothing yet
    enum channel_end end;
    char *text; // NULL: the database knows already
    double duration_ms;
    int tries;
    int losses;
    struct event *pause;
};

static void set_state(struct run *r, enum state to)
{
    const char *why = machine_step(&machine, (int)r->state, (int)to);
    log_debug(r->channel->rt->log, "channel", LOG_I("task", r->task_id),
              LOG_S("from", state_names[r->state]), LOG_S("to", state_names[to]),
              LOG_S("why", why));
    r->state = to;
}

static void channel_unref(struct channel *ch)
{
    if (--ch->refs > 0)
        return;
    free(ch->session_state);
    free(ch);
}

static void run_free(struct run *r)
{
    struct channel *ch = r->channel;
    loop_event_clear(&r->pause);
    json_decref(r->call.payload);
    free(r->text);
    free(r);
    channel_unref(ch);
}

static void end_run(struct run *r, const struct attempt_result *result)
{
    struct attempt *a = r->attempt;
    set_state(r, OVER);
    if (r->prev != NULL)
        r->prev->next = r->next;
    else
        r->channel->runs = r->next;
    if (r->next != NULL)
        r->next->prev = r->prev;
    r->attempt = NULL;
    a->state = NULL;
    attempt_end(a, result);
    if (!r->asked)
        run_free(r);
}

static void end_with(struct run *r, enum attempt_outcome outcome, const char *error)
{
    end_run(r, &(struct attempt_result){.outcome = outcome,
                                        .error = error,
                                        .delay_ms =
                                            outcome == ATTEMPT_SNOOZED ? SNOOZE_MS : 0});
}

// ---------------------------------------------------------------- the session

static void on_session_state(struct conn *c, PGresult *res, const struct err *e,
                             void *arg)
{
    struct channel *ch = arg;
    if (e == NULL) { // else the next request says what is wrong
        free(ch->session_state);
        ch->session_state = xstrdup(PQgetvalue(res, 0, 0));
        ch->session_pid = conn_backend_pid(c);
    }
    channel_unref(ch);
}

// Before a request that runs handlers: they must not see what others left.
static void keep_session(struct channel *ch, struct conn *c)
{
    if (conn_is_up(c) && conn_backend_pid(c) == ch->session_pid)
        return;
    const struct conn_request request = {
        .query = "session_state", .done = on_session_state, .arg = ch};
    if (conn_request(c, &request, NULL))
        ch->refs++;
}

// After it, and before whatever comes next in this session. False: it is not
// known yet how the session was.
static bool reset_session(struct channel *ch, struct conn *c)
{
    if (!conn_is_up(c) || conn_backend_pid(c) != ch->session_pid)
        return false;
    struct conn_params params = CONN_PARAMS_INIT;
    conn_params_add_text(&params, ch->session_state);
    const struct conn_request request = {.query = "session_reset", .params = &params};
    return conn_request(c, &request, NULL);
}

static bool request_step(struct run *r, const char *query, struct conn_params *params,
                         void (*done)(struct conn *c, PGresult *res, const struct err *e,
                                      void *arg),
                         struct err *e)
{
    struct conn *c = r->channel->rt->steps(r->channel->rt);
    keep_session(r->channel, c);
    const struct conn_request request = {
        .query = query, .params = params, .done = done, .arg = r};
    if (!conn_request(c, &request, e))
        return false;
    r->asked = true;
    r->reset = reset_session(r->channel, c);
    return true;
}

// The server has answered. False: nobody waits for it any more.
static bool finish_step(struct run *r, struct conn *c, const struct err *e)
{
    r->asked = false;
    if (r->attempt == NULL) {
        run_free(r);
        return false;
    }
    if (e == NULL && !r->reset)
        reset_session(r->channel, c);
    return true;
}

// ------------------------------------------------------------------ recording

static void record(struct run *r);

static void on_pause(evutil_socket_t fd, short what, void *arg)
{
    (void)fd;
    (void)what;
    record(arg);
}

// The provider was called: what it said must not be lost because a session was.
static void on_recorded(struct conn *c, PGresult *res, const struct err *e, void *arg)
{
    struct run *r = arg;
    const struct log *log = r->channel->rt->log;
    if (!finish_step(r, c, e))
        return;
    if (e == NULL) {
        const char *said = PQgetvalue(res, 0, 0);
        if (strcmp(said, "lost") == 0)
            log_warn(log, "came too late: the lease is not in force any more",
                     LOG_I("task", r->attempt->task.task_id));
        end_with(r, ATTEMPT_RECORDED, NULL);
    } else if (res == NULL) {
        // Goes out with the next session.
        r->losses += conn_outcome_unknown(c);
        record(r);
    } else if (++r->tries < RECORD_TRIES) {
        log_err(log, LOG_WARN, "cannot record what the provider said", e);
        loop_timer_start(r->pause, RECORD_PAUSE_MS);
    } else {
        log_err(log, LOG_ERROR, "what the provider said is not recorded", e);
        end_with(r, ATTEMPT_FAILED, e->msg);
    }
}

static void add_answer(struct run *r, struct conn_params *p)
{
    char duration[32];
    json_format_double(r->duration_ms, duration);
    // What the server refused may be the provider's words.
    bool plain = r->end == CHANNEL_SUCCEEDED && r->tries > 0;
    conn_params_add_text(p, plain ? "{}" : r->text);
    if (r->end != CHANNEL_SUCCEEDED)
        conn_params_add_bool(p, r->end == CHANNEL_FINAL);
    conn_params_add_text(p, duration);
}

static void add_answer_to_keep(struct run *r, struct conn_params *p)
{
    bool succeeded = r->end == CHANNEL_SUCCEEDED;
    if (r->text == NULL)
        conn_params_add_null(p);
    else
        conn_params_add_bool(p, succeeded);
    conn_params_add_text(p, succeeded ? r->text : NULL);
    conn_params_add_text(p, succeeded ? NULL : r->text);
}

static void record(struct run *r)
{
    const struct exchange_task *t = &r->attempt->task;
    struct conn_params p = CONN_PARAMS_INIT;
    struct err e = ERR_INIT;
    // Perhaps it is the handler that ends the session.
    bool postpone = r->losses >= LOSSES_MAX;
    conn_params_add_int64(&p, t->lease_id);
    conn_params_add_int64(&p, t->task_id);
    if (postpone)
        add_answer_to_keep(r, &p);
    else if (r->text != NULL)
        add_answer(r, &p);
    if (!request_step(r, postpone ? "channel_postpone" : r->query, &p, on_recorded, &e))
        end_with(r, ATTEMPT_FAILED, e.msg);
}

void channel_answer(struct channel_call *c, enum channel_end end, const char *text)
{
    struct run *r = (struct run *)c;
    r->end = end;
    r->query = end == CHANNEL_SUCCEEDED ? "channel_succeeded" : "channel_failed";
    r->text = xstrdup(text);
    r->duration_ms = (double)(loop_now_ms() - r->called_ms);
    set_state(r, RECORDING);
    record(r);
}

void channel_refuse(struct channel_call *c, enum channel_end end, const struct err *e)
{
    channel_answer(c, end, e->msg);
}

// ------------------------------------------------------------------ beginning

static void call_provider(struct run *r, json_t *payload)
{
    struct channel *ch = r->channel;
    const struct command *command = r->attempt->command;
    json_incref(payload);
    r->call = (struct channel_call){
        .idempotency_key = r->attempt->idempotency_key,
        .task_id = r->attempt->task.task_id,
        .payload = payload,
        // Less than the command's, so that there is time to record the failure.
        .timeout_ms =
            command->timeout_ms > 0 ? command->timeout_ms * 9 / 10 + 1 : TIMEOUT_DEFAULT,
    };
    r->called_ms = loop_now_ms();
    set_state(r, CALLING);
    struct err e = ERR_INIT;
    if (ch->self == NULL)
        ch->self = ch->provider->open(ch->rt, &e);
    if (ch->self == NULL)
        channel_refuse(&r->call, CHANNEL_FAILED, &e);
    else
        ch->provider->call(ch->self, &r->call);
}

static void on_begun(struct conn *c, PGresult *res, const struct err *e, void *arg)
{
    struct run *r = arg;
    if (!finish_step(r, c, e))
        return;
    if (e != NULL) {
        // Nothing was sent. Without a database it is nobody's failure, unless the
        // handler is what ends its session.
        bool suspect =
            conn_outcome_unknown(c) && r->attempt->task.attempt >= HANDOUTS_MAX;
        end_with(r, res == NULL && !suspect ? ATTEMPT_SNOOZED : ATTEMPT_FAILED, e->msg);
        return;
    }
    json_t *answer = json_loads(PQgetvalue(res, 0, 0), JSON_ALLOW_NUL, NULL);
    const char *todo = json_string_value(json_object_get(answer, "do"));
    json_t *payload = json_object_get(answer, "payload");
    if (todo == NULL) {
        end_with(r, ATTEMPT_FAILED, "channel_begin gave no answer that can be read");
    } else if (strcmp(todo, "finish") == 0) {
        r->query = "channel_finish";
        set_state(r, RECORDING);
        record(r);
    } else if (strcmp(todo, "call") != 0) {
        end_with(r, ATTEMPT_RECORDED, NULL);
    } else if (r->stopped) {
        end_with(r, ATTEMPT_FAILED, "stopped before it was sent");
    } else {
        call_provider(r, payload);
    }
    json_decref(answer);
}

void channel_start(void *self, struct attempt *a)
{
    struct channel *ch = self;
    struct run *r = xcalloc(1, sizeof *r);
    r->channel = ch;
    r->attempt = a;
    r->task_id = a->task.task_id;
    r->next = ch->runs;
    if (r->next != NULL)
        r->next->prev = r;
    ch->runs = r;
    ch->refs++;
    r->pause = loop_event_new(ch->rt->base, -1, 0, on_pause, r);
    a->state = r;
    struct conn_params p = CONN_PARAMS_INIT;
    struct err e = ERR_INIT;
    conn_params_add_int64(&p, a->task.lease_id);
    conn_params_add_int64(&p, a->task.task_id);
    if (!request_step(r, "channel_begin", &p, on_begun, &e))
        end_with(r, ATTEMPT_SNOOZED, e.msg);
}

static void stop_call(struct run *r)
{
    if (r->state == CALLING)
        r->channel->provider->abort(r->channel->self, &r->call);
    end_with(r, ATTEMPT_FAILED, "stopped");
}

// While a step is with the server its answer is waited for: what was committed
// cannot be taken back, and what the provider did must be recorded.
void channel_stop(void *self, struct attempt *a)
{
    (void)self;
    struct run *r = a->state;
    r->stopped = true;
    if (r->state == CALLING)
        stop_call(r);
}

void *channel_open(struct runtime *rt, const struct provider *p, struct err *e)
{
    (void)e;
    struct channel *ch = xcalloc(1, sizeof *ch);
    ch->refs = 1;
    ch->rt = rt;
    ch->provider = p;
    return ch;
}

// What could not be waited for is given up; the steps connection outlives this.
void channel_close(void *self)
{
    struct channel *ch = self;
    for (struct run *r = ch->runs, *next; r != NULL; r = next) {
        next = r->next;
        stop_call(r);
    }
    if (ch->self != NULL)
        ch->provider->close(ch->self);
    ch->self = NULL;
    channel_unref(ch);
}
