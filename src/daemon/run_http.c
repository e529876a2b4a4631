// SPDX-License-Identifier: Apache-2.0
//
// Handlers that are web services: the payload is posted to the command's URL, and
// the status of the answer says how the attempt ended.
//
//     2xx                   completed; the body is the result
//     409, 425, 429, 503    not now: again after Retry-After
//     408, other 5xx        failed, as are broken and missing connections
//     all else              failed, and will fail again: not tried again
//
// docs/handlers.md is the same for those who write such services.

#include <jansson.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <strings.h>
#include <time.h>

#include "core/address.h"
#include "core/buf.h"
#include "core/http.h"
#include "core/jsontext.h"
#include "core/secret.h"
#include "daemon/kind.h"
#include "daemon/traceparent.h"
#include "lib/base64.h"
#include "lib/sha256.h"

#define ARRAY_SIZE(a)     (sizeof(a) / sizeof(a)[0])
#define SNOOZE_DEFAULT_MS (30 * 1000)
#define DELAY_MAX_MS      (24 * 60 * 60 * 1000)
#define TEXT_RESULT_MAX   65536
#define ERROR_BODY_MAX    2000
#define HEADERS_MAX       100
#define NETWORKS_MAX      100
#define WHSEC             "whsec_"

struct http_kind {
    struct runtime *rt;
    struct http *http;
};

struct http_attempt {
    struct attempt *attempt;
    struct http_request *request;
};

// What is put together before it is sent; its texts are in the arena.
struct outgoing {
    const struct conf *conf;
    const struct attempt *attempt;
    struct arena texts;
    struct http_header headers[HEADERS_MAX];
    size_t header_count;
    struct address_net networks[NETWORKS_MAX];
    size_t network_count;
    enum attempt_outcome outcome; // of an error
};

static void *http_kind_open(struct runtime *rt, struct err *e)
{
    const struct http_options options = {
        .user_agent = conf_get_string(rt->conf, "http.user_agent"),
        .ca_file = conf_get_string(rt->conf, "http.ca_file"),
        .connect_timeout_ms = conf_get_int(rt->conf, "http.connect_timeout"),
    };
    struct http *http = http_new(rt->base, &options, e);
    if (http == NULL)
        return NULL;
    struct http_kind *k = xcalloc(1, sizeof *k);
    k->rt = rt;
    k->http = http;
    return k;
}

static void http_kind_close(void *self)
{
    struct http_kind *k = self;
    http_free(k->http);
    free(k);
}

// ------------------------------------------------------------------- request

static bool add_header(struct outgoing *o, const char *name, const char *value,
                       bool same_origin, struct err *e)
{
    if (o->header_count == HEADERS_MAX)
        return err_set(e, "more than %d headers", HEADERS_MAX);
    o->headers[o->header_count++] =
        (struct http_header){.name = arena_strdup(&o->texts, name),
                             .value = arena_strdup(&o->texts, value),
                             .same_origin = same_origin};
    return true;
}

static bool has_header(const struct outgoing *o, const char *name)
{
    for (size_t i = 0; i < o->header_count; i++) {
        if (strcasecmp(o->headers[i].name, name) == 0)
            return true;
    }
    return false;
}

// A secret may turn up later: a deployment may be under way.
static bool read_secret(struct outgoing *o, const char *reference, struct buf *out,
                        struct err *e)
{
    if (secret_read(o->conf, reference, out, e))
        return true;
    o->outcome = ATTEMPT_FAILED;
    return false;
}

// Those that say who sends what must not be forged.
static bool is_ours(const char *name)
{
    static const char *const prefixes[] = {"pgkin-", "webhook-"};
    for (size_t i = 0; i < ARRAY_SIZE(prefixes); i++) {
        if (strncasecmp(name, prefixes[i], strlen(prefixes[i])) == 0)
            return true;
    }
    return strcasecmp(name, "idempotency-key") == 0 ||
           strcasecmp(name, "traceparent") == 0;
}

static bool add_command_header(struct outgoing *o, const char *name, const json_t *value,
                               struct err *e)
{
    const char *text = json_string_value(value);
    if (text == NULL)
        return err_set(e, "the value of header %.60s is not a string", name);
    if (is_ours(name))
        return err_set(e, "the header %.60s cannot be set", name);
    if (has_header(o, name))
        return err_set(e, "the header %.60s is there twice", name);
    if (!secret_is_reference(text))
        return add_header(o, name, text, true, e);
    struct buf secret = BUF_INIT;
    bool ok = read_secret(o, text, &secret, e) &&
              add_header(o, name, buf_str(&secret), true, e);
    secret_clear(&secret);
    return ok;
}

static bool add_command_headers(struct outgoing *o, struct err *e)
{
    const char *text = o->attempt->command->http_headers;
    if (text == NULL)
        return true;
    json_t *object = json_loads(text, 0, NULL);
    bool ok = json_is_object(object);
    if (!ok)
        err_set(e, "http_headers is not a JSON object of strings");
    const char *name;
    json_t *value;
    json_object_foreach(object, name, value)
    {
        ok = ok && add_command_header(o, name, value, e);
    }
    json_decref(object);
    return ok;
}

static bool add_own_headers(struct outgoing *o, struct err *e)
{
    const struct attempt *a = o->attempt;
    char task_id[24], lease_id[24], attempt[16], traceparent[TRACEPARENT_SIZE];
    snprintf(task_id, sizeof task_id, "%lld", (long long)a->task.task_id);
    snprintf(lease_id, sizeof lease_id, "%lld", (long long)a->task.lease_id);
    snprintf(attempt, sizeof attempt, "%d", a->task.attempt);
    if (!has_header(o, "content-type") &&
        !add_header(o, "content-type", "application/json", false, e))
        return false;
    if (traceparent_find(a->task.headers, traceparent) &&
        !add_header(o, "traceparent", traceparent, false, e))
        return false;
    return add_header(o, "pgkin-task-id", task_id, false, e) &&
           add_header(o, "pgkin-attempt", attempt, false, e) &&
           add_header(o, "pgkin-lease-id", lease_id, false, e) &&
           add_header(o, "pgkin-command", a->command->name, false, e) &&
           add_header(o, "idempotency-key", a->idempotency_key, false, e);
}

// As standardwebhooks.com says: over id, time and body, with dots between them.
static bool sign(struct outgoing *o, const struct buf *secret, struct err *e)
{
    const struct attempt *a = o->attempt;
    struct buf key = BUF_INIT;
    bool ok = true;
    if (strncmp(buf_str(secret), WHSEC, strlen(WHSEC)) != 0)
        buf_add(&key, secret->data, secret->len);
    else if (!base64_decode(&key, secret->data + strlen(WHSEC),
                            secret->len - strlen(WHSEC)))
        ok = err_set(e, "the signing secret has no base64 after %s", WHSEC);
    if (ok && key.len == 0)
        ok = err_set(e, "the signing secret is empty");
    if (ok) {
        char timestamp[24];
        snprintf(timestamp, sizeof timestamp, "%lld", (long long)time(NULL));
        struct hmac_sha256 h;
        unsigned char sum[SHA256_SIZE];
        hmac_sha256_init(&h, key.data, key.len);
        hmac_sha256_add(&h, a->idempotency_key, strlen(a->idempotency_key));
        hmac_sha256_add(&h, ".", 1);
        hmac_sha256_add(&h, timestamp, strlen(timestamp));
        hmac_sha256_add(&h, ".", 1);
        hmac_sha256_add(&h, a->task.payload, a->task.payload_len);
        hmac_sha256_finish(&h, sum);
        struct buf signature = BUF_INIT;
        buf_adds(&signature, "v1,");
        base64_encode(&signature, sum, sizeof sum);
        ok = add_header(o, "webhook-id", a->idempotency_key, false, e) &&
             add_header(o, "webhook-timestamp", timestamp, false, e) &&
             add_header(o, "webhook-signature", buf_str(&signature), false, e);
        buf_clear(&signature);
    }
    secret_clear(&key);
    return ok;
}

static bool add_signature(struct outgoing *o, struct err *e)
{
    const char *reference = o->attempt->command->signing_secret;
    if (reference == NULL)
        return true;
    struct buf secret = BUF_INIT;
    bool ok = read_secret(o, reference, &secret, e) && sign(o, &secret, e);
    secret_clear(&secret);
    return ok;
}

static bool add_networks(struct outgoing *o, struct err *e)
{
    const char *const *list = o->attempt->command->allow_private;
    for (; list != NULL && *list != NULL; list++) {
        if (o->network_count == NETWORKS_MAX)
            return err_set(e, "allow_private has more than %d networks", NETWORKS_MAX);
        if (!address_parse_net(*list, &o->networks[o->network_count++], e))
            return err_wrap(e, "allow_private");
    }
    return true;
}

// -------------------------------------------------------------------- answer

static const struct {
    int first, last;
    enum attempt_outcome outcome;
} statuses[] = {
    {200, 299, ATTEMPT_COMPLETED}, {409, 409, ATTEMPT_SNOOZED},
    {425, 425, ATTEMPT_SNOOZED},   {429, 429, ATTEMPT_SNOOZED},
    {503, 503, ATTEMPT_SNOOZED},   {408, 408, ATTEMPT_FAILED},
    {300, 499, ATTEMPT_FATAL},     {0, 999, ATTEMPT_FAILED},
};

static enum attempt_outcome judge_status(int status)
{
    for (size_t i = 0; i < ARRAY_SIZE(statuses); i++) {
        if (status >= statuses[i].first && status <= statuses[i].last)
            return statuses[i].outcome;
    }
    return ATTEMPT_FAILED;
}

static enum attempt_outcome judge(const struct http_answer *answer)
{
    switch (answer->end) {
    case HTTP_ANSWERED: return judge_status(answer->status);
    case HTTP_FAILED:
    case HTTP_TIMED_OUT: return ATTEMPT_FAILED;
    case HTTP_REFUSED:
    case HTTP_BAD_REDIRECT: return ATTEMPT_FATAL;
    case HTTP_TOO_LARGE: break;
    }
    // How much the server has to say about its failure does not matter.
    enum attempt_outcome outcome = judge_status(answer->status);
    return outcome == ATTEMPT_COMPLETED ? ATTEMPT_FATAL : outcome;
}

static void add_error(struct buf *out, const struct http_answer *answer,
                      const struct command *c)
{
    if (answer->end == HTTP_TOO_LARGE &&
        judge_status(answer->status) == ATTEMPT_COMPLETED) {
        buf_addf(out, "HTTP %d: the answer has more than %lld bytes", answer->status,
                 (long long)c->max_response_bytes);
    } else if (answer->end != HTTP_ANSWERED && answer->end != HTTP_TOO_LARGE) {
        jsontext_add_clean(out, answer->error, strlen(answer->error));
    } else {
        buf_addf(out, "HTTP %d", answer->status);
        size_t len = jsontext_cut(answer->body, answer->body_len, ERROR_BODY_MAX);
        while (len > 0 && strchr(" \t\r\n", answer->body[len - 1]) != NULL)
            len--;
        if (answer->status >= 300 && answer->status <= 399) {
            buf_adds(out, ": redirects are not followed");
        } else if (len > 0) {
            buf_adds(out, ": ");
            jsontext_add_clean(out, answer->body, len);
        }
    }
}

static void http_attempt_end(struct http_attempt *x, const struct attempt_result *r)
{
    struct attempt *a = x->attempt;
    a->state = NULL;
    free(x);
    attempt_end(a, r);
}

static void on_answer(const struct http_answer *answer, void *arg)
{
    struct http_attempt *x = arg;
    struct attempt_result r = {.outcome = judge(answer)};
    struct buf text = BUF_INIT;
    if (r.outcome == ATTEMPT_COMPLETED) {
        jsontext_add_result(&text, "body", answer->body, answer->body_len,
                            TEXT_RESULT_MAX);
        r.result = text.len > 0 ? buf_str(&text) : NULL;
    } else {
        add_error(&text, answer, x->attempt->command);
        r.error = buf_str(&text);
        r.delay_ms = r.outcome != ATTEMPT_FATAL ? answer->retry_after_ms : 0;
        if (r.delay_ms == 0 && r.outcome == ATTEMPT_SNOOZED)
            r.delay_ms = SNOOZE_DEFAULT_MS;
        if (r.delay_ms > DELAY_MAX_MS)
            r.delay_ms = DELAY_MAX_MS;
    }
    http_attempt_end(x, &r);
    buf_clear(&text);
}

// ------------------------------------------------------------- start and stop

// The command's timeout is kept by the caller; a request without one is not to
// last for ever.
static bool send_request(struct http_kind *k, struct http_attempt *x,
                         const struct outgoing *o, struct err *e)
{
    const struct attempt *a = o->attempt;
    const struct command *c = a->command;
    if (c->url == NULL)
        return err_set(e, "the command has no url");
    const struct http_spec spec = {
        .method = "POST",
        .url = c->url,
        .headers = o->headers,
        .header_count = o->header_count,
        .body = a->task.payload,
        .body_len = a->task.payload_len,
        .allow = o->networks,
        .allow_count = o->network_count,
        .max_redirects = c->max_redirects,
        .max_body_bytes = c->max_response_bytes,
        .timeout_ms = c->timeout_ms > 0 ? 0 : conf_get_int(k->rt->conf, "http.timeout"),
        .done = on_answer,
        .arg = x,
    };
    x->request = http_send(k->http, &spec, e);
    return x->request != NULL;
}

static void http_kind_start(void *self, struct attempt *a)
{
    struct http_kind *k = self;
    struct http_attempt *x = xcalloc(1, sizeof *x);
    x->attempt = a;
    a->state = x;
    struct outgoing o = {.conf = k->rt->conf, .attempt = a, .outcome = ATTEMPT_FATAL};
    struct err e = ERR_INIT;
    bool ok = add_command_headers(&o, &e) && add_own_headers(&o, &e) &&
              add_signature(&o, &e) && add_networks(&o, &e) && send_request(k, x, &o, &e);
    arena_clear(&o.texts);
    if (!ok)
        http_attempt_end(x,
                         &(struct attempt_result){.outcome = o.outcome, .error = e.msg});
}

static void http_kind_stop(void *self, struct attempt *a)
{
    (void)self;
    struct http_attempt *x = a->state;
    http_abort(x->request);
    http_attempt_end(
        x, &(struct attempt_result){.outcome = ATTEMPT_FAILED, .error = "aborted"});
}

const struct kind kind_http = {
    .name = "http",
    .open = http_kind_open,
    .close = http_kind_close,
    .start = http_kind_start,
    .stop = http_kind_stop,
};
