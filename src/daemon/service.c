// SPDX-License-Identifier: Apache-2.0

#include "daemon/service.h"

#include <string.h>
#include <strings.h>

#include "core/arena.h"
#include "core/json.h"
#include "core/jsontext.h"
#include "core/secret.h"

#define ANSWER_MAX     1048576
#define ERROR_BODY_MAX 1000
#define TEXT_MAX       65536
#define HEADERS_MAX    50

static const char *setting(const struct runtime *rt, const char *section, const char *key)
{
    char name[64];
    snprintf(name, sizeof name, "%s.%s", section, key);
    return conf_get_string(rt->conf, name);
}

static bool read_networks(struct service *s, const char *list, struct err *e)
{
    struct arena texts = ARENA_INIT;
    bool ok = true;
    for (size_t n; ok && list != NULL && *list != '\0'; list += n) {
        n = strcspn(list, ", ");
        if (n > 0 && s->network_count == SERVICE_NETWORKS_MAX)
            ok = err_set(e, "more than %d networks", SERVICE_NETWORKS_MAX);
        else if (n > 0)
            ok = address_parse_net(arena_strndup(&texts, list, n),
                                   &s->networks[s->network_count++], e);
        n += strspn(list + n, ", ");
    }
    arena_clear(&texts);
    return ok;
}

static bool read_headers(struct service *s, const char *text, struct err *e)
{
    if (text == NULL)
        return true;
    s->headers = json_loads(text, 0, NULL);
    const char *name;
    json_t *value;
    bool ok = json_is_object(s->headers) && json_object_size(s->headers) < HEADERS_MAX;
    json_object_foreach(s->headers, name, value)
    {
        ok = ok && json_is_string(value);
    }
    return ok || err_set(e, "is not a JSON object of strings");
}

bool service_open(struct service *s, struct runtime *rt, const char *section,
                  struct err *e)
{
    *s = (struct service){.conf = rt->conf, .url = setting(rt, section, "url")};
    const struct http_options options = {
        .user_agent = conf_get_string(rt->conf, "http.user_agent"),
        .ca_file = conf_get_string(rt->conf, "http.ca_file"),
        .connect_timeout_ms = conf_get_int(rt->conf, "http.connect_timeout"),
    };
    if (!read_headers(s, setting(rt, section, "headers"), e)) {
        err_wrap(e, "%s.headers", section);
    } else if (!read_networks(s, setting(rt, section, "allow_private"), e)) {
        err_wrap(e, "%s.allow_private", section);
    } else if (s->url != NULL && !http_check_url(s->url, e)) {
        err_wrap(e, "%s.url", section);
    } else {
        s->http = http_new(rt->base, &options, e);
        if (s->http != NULL)
            return true;
    }
    service_close(s);
    return false;
}

void service_close(struct service *s)
{
    http_free(s->http);
    json_decref(s->headers);
    *s = (struct service){0};
}

// ------------------------------------------------------------------- request

static bool add_header(struct service *s, struct http_header *headers, size_t *count,
                       const char *name, const char *value, struct arena *texts,
                       struct err *e)
{
    struct buf secret = BUF_INIT;
    bool ok = true;
    if (secret_is_reference(value)) {
        ok = secret_read(s->conf, value, &secret, e);
        value = ok ? arena_strdup(texts, buf_str(&secret)) : "";
        secret_clear(&secret);
    }
    headers[(*count)++] =
        (struct http_header){.name = name, .value = value, .same_origin = true};
    return ok;
}

struct http_request *service_send(struct service *s, const char *method, const char *url,
                                  const struct channel_call *c, const char *body,
                                  void (*done)(const struct http_answer *answer,
                                               void *arg),
                                  void *arg, struct err *e)
{
    struct http_header headers[HEADERS_MAX + 2];
    size_t count = 0;
    struct arena texts = ARENA_INIT;
    bool ok = true;
    bool own = url == NULL;
    if (body != NULL)
        add_header(s, headers, &count, "content-type", "application/json", &texts, e);
    if (own)
        add_header(s, headers, &count, "idempotency-key", c->idempotency_key, &texts, e);
    const char *name;
    json_t *value;
    json_object_foreach(own ? s->headers : NULL, name, value)
    {
        ok = ok &&
             add_header(s, headers, &count, name, json_string_value(value), &texts, e);
    }
    const struct http_spec spec = {
        .method = method,
        .url = own ? s->url : url,
        .headers = headers,
        .header_count = count,
        .body = body,
        .body_len = body != NULL ? strlen(body) : 0,
        .allow = s->networks,
        .allow_count = s->network_count,
        .max_body_bytes = ANSWER_MAX,
        .timeout_ms = c->timeout_ms,
        .done = done,
        .arg = arg,
    };
    struct http_request *r = ok ? http_send(s->http, &spec, e) : NULL;
    arena_clear(&texts);
    return r;
}

// -------------------------------------------------------------------- answer

static enum channel_end judge_status(int status)
{
    if (status >= 200 && status <= 299)
        return CHANNEL_SUCCEEDED;
    if (status == 408 || status == 409 || status == 425 || status == 429 || status >= 500)
        return CHANNEL_FAILED;
    return CHANNEL_FINAL;
}

static void add_success(struct buf *text, const struct http_answer *answer)
{
    struct buf body = BUF_INIT;
    struct json j;
    jsontext_add_result(&body, "text", answer->body, answer->body_len, TEXT_MAX);
    json_init(&j, text);
    json_begin_object(&j);
    json_add_key(&j, "status");
    json_add_int(&j, answer->status);
    if (body.len > 0) {
        json_add_key(&j, "body");
        json_add_raw(&j, body.data, body.len);
    }
    json_end_object(&j);
    json_finish(&j);
    buf_clear(&body);
}

enum channel_end service_judge(const struct http_answer *answer, struct buf *text)
{
    enum channel_end end = CHANNEL_FAILED;
    switch (answer->end) {
    case HTTP_ANSWERED:
        end = judge_status(answer->status);
        if (end == CHANNEL_SUCCEEDED) {
            add_success(text, answer);
            return end;
        }
        buf_addf(text, "HTTP %d", answer->status);
        size_t len = jsontext_cut(answer->body, answer->body_len, ERROR_BODY_MAX);
        if (len > 0) {
            buf_adds(text, ": ");
            jsontext_add_clean(text, answer->body, len);
        }
        return end;
    // It was asked, and has done what it was asked for, as far as can be known.
    case HTTP_TOO_LARGE:
        end = judge_status(answer->status);
        if (end == CHANNEL_SUCCEEDED)
            buf_addf(text, "{\"status\": %d, \"truncated\": true}", answer->status);
        else
            buf_addf(text, "HTTP %d, with an answer that is too large", answer->status);
        return end;
    case HTTP_REFUSED:
    case HTTP_BAD_REDIRECT: end = CHANNEL_FINAL; break;
    case HTTP_FAILED:
    case HTTP_TIMED_OUT: break;
    }
    jsontext_add_clean(text, answer->error, strlen(answer->error));
    return end;
}
