// SPDX-License-Identifier: Apache-2.0
//
// Text messages. Providers differ in their URL, in how they are told who is
// calling, and in the names of a few fields; so all of that is configuration:
//
//     [sms]
//     provider = http
//     url = https://sms.example/messages
//     headers = {"authorization": "secret:sms_token"}
//     template = {"to": "{to_number}", "text": "{body}", "from": "pgkin"}
//
// {field} in a text of the template is that field of the payload. Provider `log`,
// for development, writes a line into the log and is content.

#include <jansson.h>
#include <stdlib.h>
#include <string.h>

#include "core/buf.h"
#include "core/log.h"
#include "daemon/channel.h"
#include "daemon/service.h"

enum {
    PROVIDER_LOG,
    PROVIDER_HTTP
};

struct sms {
    struct runtime *rt;
    size_t provider;
    struct service service;
    json_t *template;
};

struct sms_call {
    struct channel_call *call;
    struct http_request *request;
    char *body;
};

static void *sms_open(struct runtime *rt, struct err *e)
{
    struct sms *s = xcalloc(1, sizeof *s);
    s->rt = rt;
    s->provider = conf_get_enum(rt->conf, "sms.provider");
    if (s->provider == PROVIDER_LOG)
        return s;
    if (!service_open(&s->service, rt, "sms", e))
        goto bad;
    s->template = json_loads(conf_get_string(rt->conf, "sms.template"), 0, NULL);
    if (!json_is_object(s->template))
        err_set(e, "sms.template is not a JSON object");
    else if (s->service.url == NULL)
        err_set(e, "sms.url is not set");
    else
        return s;
    service_close(&s->service);
    json_decref(s->template);
bad:
    free(s);
    return NULL;
}

static void sms_close(void *self)
{
    struct sms *s = self;
    if (s->provider == PROVIDER_HTTP)
        service_close(&s->service);
    json_decref(s->template);
    free(s);
}

// ------------------------------------------------------------------ template

// The field that begins here, as "{name}"; NULL when none does.
static const json_t *find_field(const char *s, const json_t *payload, size_t *len,
                                struct err *e)
{
    size_t n = strspn(s + 1, "abcdefghijklmnopqrstuvwxyz0123456789_");
    if (n == 0 || n > 60 || s[n + 1] != '}')
        return NULL;
    char name[64];
    snprintf(name, sizeof name, "%.*s", (int)n, s + 1);
    const json_t *value = json_object_get(payload, name);
    if (value == NULL || json_is_null(value))
        err_set(e, "the payload has no %s", name);
    *len = n + 2;
    return value;
}

static bool add_value(struct buf *out, const json_t *value)
{
    if (json_is_string(value)) {
        buf_add(out, json_string_value(value), json_string_length(value));
        return true;
    }
    char *text = json_dumps(value, JSON_ENCODE_ANY);
    buf_adds(out, text);
    free(text);
    return true;
}

// A text with its fields put in: what comes out is a text again, whatever is in
// the payload. NULL with `e` filled when a field is missing.
static json_t *fill_text(const char *text, const json_t *payload, struct err *e)
{
    struct buf out = BUF_INIT;
    json_t *filled = NULL;
    for (size_t n; *text != '\0'; text += n) {
        n = 1;
        const json_t *value = NULL;
        if (*text == '{')
            value = find_field(text, payload, &n, e);
        if (e->code != ERR_NONE)
            goto out;
        if (value != NULL)
            add_value(&out, value);
        else
            buf_addc(&out, *text);
    }
    filled = json_stringn(buf_str(&out), out.len);
    if (filled == NULL)
        err_set(e, "the message cannot be put into the template");
out:
    buf_clear(&out);
    return filled;
}

static json_t *fill(const json_t *template, const json_t *payload, struct err *e)
{
    json_t *filled;
    if (json_is_string(template))
        return fill_text(json_string_value(template), payload, e);
    if (json_is_object(template)) {
        const char *key;
        json_t *value;
        filled = json_object();
        // jansson asks for one that may be changed, and does not change it.
        json_object_foreach((json_t *)template, key, value)
        {
            if (e->code == ERR_NONE)
                json_object_set_new(filled, key, fill(value, payload, e));
        }
    } else if (json_is_array(template)) {
        filled = json_array();
        for (size_t i = 0; i < json_array_size(template) && e->code == ERR_NONE; i++)
            json_array_append_new(filled, fill(json_array_get(template, i), payload, e));
    } else {
        return json_deep_copy(template);
    }
    return filled;
}

// ---------------------------------------------------------------------- call

static void end_call(struct sms_call *x, enum channel_end end, const char *text)
{
    struct channel_call *c = x->call;
    char *body = x->body;
    free(x);
    channel_answer(c, end, text);
    free(body);
}

static void on_answer(const struct http_answer *answer, void *arg)
{
    struct buf text = BUF_INIT;
    enum channel_end end = service_judge(answer, &text);
    end_call(arg, end, buf_str(&text));
    buf_clear(&text);
}

static bool check_payload(const json_t *payload, struct err *e)
{
    static const char *const needed[] = {"to_number", "body"};
    for (size_t i = 0; i < 2; i++) {
        const json_t *value = json_object_get(payload, needed[i]);
        if (value == NULL || json_is_null(value))
            return err_set(e, "the payload has no %s", needed[i]);
        if (!json_is_string(value) || json_string_length(value) == 0)
            return err_set(e, "%s is not a text", needed[i]);
    }
    const char *number = json_string_value(json_object_get(payload, "to_number"));
    if (strspn(number, "+0123456789 -()./") != strlen(number))
        return err_set(e, "\"%.40s\" is not a telephone number", number);
    return true;
}

static void call_log(struct sms *s, struct channel_call *c)
{
    log_info(
        s->rt->log, "text message", LOG_I("task", c->task_id),
        LOG_S("to", json_string_value(json_object_get(c->payload, "to_number"))),
        LOG_I("bytes", (int64_t)json_string_length(json_object_get(c->payload, "body"))));
    log_debug(s->rt->log, "text message", LOG_I("task", c->task_id),
              LOG_S("body", json_string_value(json_object_get(c->payload, "body"))));
    channel_answer(c, CHANNEL_SUCCEEDED, "{\"provider\": \"log\"}");
}

static void sms_call(void *self, struct channel_call *c)
{
    struct sms *s = self;
    struct err e = ERR_INIT;
    if (!check_payload(c->payload, &e)) {
        channel_refuse(c, CHANNEL_FINAL, &e);
        return;
    }
    if (s->provider == PROVIDER_LOG) {
        call_log(s, c);
        return;
    }
    json_t *filled = fill(s->template, c->payload, &e);
    struct sms_call *x = xcalloc(1, sizeof *x);
    x->call = c;
    c->state = x;
    if (e.code != ERR_NONE) {
        end_call(x, CHANNEL_FINAL, e.msg);
    } else {
        x->body = json_dumps(filled, JSON_COMPACT);
        x->request =
            service_send(&s->service, "POST", NULL, c, x->body, on_answer, x, &e);
        if (x->request == NULL)
            end_call(x, CHANNEL_FAILED, e.msg);
    }
    json_decref(filled);
}

static void sms_abort(void *self, struct channel_call *c)
{
    (void)self;
    struct sms_call *x = c->state;
    http_abort(x->request);
    free(x->body);
    free(x);
}

static const struct provider provider = {
    .open = sms_open, .close = sms_close, .call = sms_call, .abort = sms_abort};

static void *sms_kind_open(struct runtime *rt, struct err *e)
{
    return channel_open(rt, &provider, e);
}

const struct kind kind_sms = {
    .name = "sms",
    .open = sms_kind_open,
    .close = channel_close,
    .start = channel_start,
    .stop = channel_stop,
};
