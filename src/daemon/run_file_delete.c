// SPDX-License-Identifier: Apache-2.0
//
// Deletion of stored files.
//
//     [files]
//     provider = http               a service that signs URLs, then the store
//     url = https://files.example/sign
//     headers = {"authorization": "secret:files_token"}
//
//     [files]
//     provider = local              a directory of this machine
//     directory = /srv/files
//
// http: the payload is posted to the service, which answers {"url": …}; a DELETE
// goes to that. That nothing was there is as good. local: the path is bucket, if
// there is one, and object_key.

#include <jansson.h>
#include <stdlib.h>
#include <string.h>

#include "core/buf.h"
#include "daemon/channel.h"
#include "daemon/file_local.h"
#include "daemon/service.h"

enum {
    PROVIDER_LOCAL,
    PROVIDER_HTTP
};

struct files {
    size_t provider;
    const char *directory;
    struct service service;
};

struct files_call {
    struct files *files;
    struct channel_call *call;
    struct http_request *request;
    char *body;
};

static void *files_open(struct runtime *rt, struct err *e)
{
    struct files *f = xcalloc(1, sizeof *f);
    f->provider = conf_get_enum(rt->conf, "files.provider");
    f->directory = conf_get_string(rt->conf, "files.directory");
    if (f->provider == PROVIDER_LOCAL) {
        if (f->directory != NULL && f->directory[0] == '/')
            return f;
        err_set(e, f->directory == NULL ? "files.directory is not set"
                                        : "files.directory is not an absolute path");
    } else if (service_open(&f->service, rt, "files", e)) {
        if (f->service.url != NULL)
            return f;
        err_set(e, "files.url is not set");
        service_close(&f->service);
    }
    free(f);
    return NULL;
}

static void files_close(void *self)
{
    struct files *f = self;
    if (f->provider == PROVIDER_HTTP)
        service_close(&f->service);
    free(f);
}

// --------------------------------------------------------------------- local

static const char *get_text(const json_t *payload, const char *field, struct err *e)
{
    const json_t *value = json_object_get(payload, field);
    if (value == NULL || json_is_null(value))
        return NULL;
    // A NUL would hide the rest of the path.
    if (!json_is_string(value) ||
        strlen(json_string_value(value)) != json_string_length(value)) {
        err_set(e, "%s is not a text", field);
        return NULL;
    }
    return json_string_value(value);
}

static void call_local(struct files *f, struct channel_call *c)
{
    struct err e = ERR_INIT;
    const char *bucket = get_text(c->payload, "bucket", &e);
    const char *key = get_text(c->payload, "object_key", &e);
    if (key == NULL && e.code == ERR_NONE)
        err_set(&e, "the payload has no object_key");
    if (e.code != ERR_NONE) {
        channel_refuse(c, CHANNEL_FINAL, &e);
        return;
    }
    char *path = bucket != NULL ? xasprintf("%s/%s", bucket, key) : xstrdup(key);
    enum file_end end = file_local_delete(f->directory, path, &e);
    free(path);
    switch (end) {
    case FILE_DELETED: channel_answer(c, CHANNEL_SUCCEEDED, "{\"deleted\": true}"); break;
    case FILE_MISSING:
        channel_answer(c, CHANNEL_SUCCEEDED, "{\"deleted\": true, \"missing\": true}");
        break;
    case FILE_REFUSED: channel_refuse(c, CHANNEL_FINAL, &e); break;
    case FILE_FAILED: channel_refuse(c, CHANNEL_FAILED, &e); break;
    }
}

// ---------------------------------------------------------------------- http

static void end_call(struct files_call *x, enum channel_end end, const char *text)
{
    struct channel_call *c = x->call;
    char *body = x->body;
    free(x);
    channel_answer(c, end, text);
    free(body);
}

static void on_deleted(const struct http_answer *answer, void *arg)
{
    bool missing =
        answer->end == HTTP_ANSWERED && (answer->status == 404 || answer->status == 410);
    struct buf text = BUF_INIT;
    enum channel_end end = service_judge(answer, &text);
    if (missing)
        end_call(arg, CHANNEL_SUCCEEDED, "{\"deleted\": true, \"missing\": true}");
    else if (end == CHANNEL_SUCCEEDED)
        end_call(arg, end, "{\"deleted\": true}");
    else
        end_call(arg, end, buf_str(&text));
    buf_clear(&text);
}

// The signed URL is a secret while it lasts: it gets into no error.
static void delete_object(struct files_call *x, const struct http_answer *answer)
{
    struct err e = ERR_INIT;
    json_t *said = json_loadb(answer->body, answer->body_len, 0, NULL);
    const char *url = json_string_value(json_object_get(said, "url"));
    x->request = NULL;
    if (url == NULL)
        err_set(&e, "the files service gave no url");
    else
        x->request = service_send(&x->files->service, "DELETE", url, x->call, NULL,
                                  on_deleted, x, &e);
    json_decref(said);
    if (x->request == NULL) {
        err_wrap(&e, "cannot delete the file");
        end_call(x, CHANNEL_FAILED, e.msg);
    }
}

static void on_signed(const struct http_answer *answer, void *arg)
{
    struct files_call *x = arg;
    struct buf text = BUF_INIT;
    enum channel_end end = service_judge(answer, &text);
    if (end == CHANNEL_SUCCEEDED) {
        delete_object(x, answer);
    } else {
        char *error = xasprintf("the files service: %s", buf_str(&text));
        end_call(x, end, error);
        free(error);
    }
    buf_clear(&text);
}

static void files_call(void *self, struct channel_call *c)
{
    struct files *f = self;
    if (f->provider == PROVIDER_LOCAL) {
        call_local(f, c);
        return;
    }
    struct err e = ERR_INIT;
    struct files_call *x = xcalloc(1, sizeof *x);
    x->files = f;
    x->call = c;
    x->body = json_dumps(c->payload, JSON_COMPACT);
    c->state = x;
    x->request = service_send(&f->service, "POST", NULL, c, x->body, on_signed, x, &e);
    if (x->request == NULL)
        end_call(x, CHANNEL_FAILED, e.msg);
}

static void files_abort(void *self, struct channel_call *c)
{
    (void)self;
    struct files_call *x = c->state;
    http_abort(x->request);
    free(x->body);
    free(x);
}

static const struct provider provider = {
    .open = files_open, .close = files_close, .call = files_call, .abort = files_abort};

static void *files_kind_open(struct runtime *rt, struct err *e)
{
    return channel_open(rt, &provider, e);
}

const struct kind kind_file_delete = {
    .name = "file_delete",
    .open = files_kind_open,
    .close = channel_close,
    .start = channel_start,
    .stop = channel_stop,
};
