// SPDX-License-Identifier: Apache-2.0
//
// E-mail over SMTP, by libcurl, which also doubles the dots at the beginning of
// lines. Connections are kept and used again.
//
//     [smtp]
//     url = smtp://mail.example:587      or smtps://
//     tls = required
//     user = pgkin
//     password = secret:smtp_password
//
// What the server accepts with 250 is sent. A 5xx would be said again tomorrow,
// so it is final; everything else may work later.

#include <stdlib.h>
#include <string.h>
#include <strings.h>
#include <time.h>

#include "core/buf.h"
#include "core/json.h"
#include "core/jsontext.h"
#include "core/secret.h"
#include "core/transfer.h"
#include "daemon/channel.h"
#include "daemon/mail_message.h"

#define REPLY_MAX_BYTES 65536 // of all replies to one message
#define REPLY_LINE_MAX  500

static const long tls_modes[] = {CURLUSESSL_TRY, CURLUSESSL_ALL, CURLUSESSL_NONE};

struct email {
    const struct conf *conf;
    struct transfers *transfers;
    const char *url;
};

struct email_call {
    struct transfer transfer; // first: done() gets a pointer to it
    struct channel_call *call;
    struct arena texts;
    struct mail_message message;
    struct curl_slist *recipients;
    size_t sent;
    size_t reply_bytes;
    char reply[REPLY_LINE_MAX + 1];   // the last line of them
    char refusal[REPLY_LINE_MAX + 1]; // the last that is one; a good-bye may follow it
    char curl_error[CURL_ERROR_SIZE];
};

static void *email_open(struct runtime *rt, struct err *e)
{
    const char *url = conf_get_string(rt->conf, "smtp.url");
    if (url == NULL) {
        err_set(e, "no mail server is set: smtp.url, or PGKIN_SMTP_URL");
        return NULL;
    }
    if (strncasecmp(url, "smtp://", 7) != 0 && strncasecmp(url, "smtps://", 8) != 0) {
        err_set(e, "smtp.url does not begin with smtp:// or smtps://");
        return NULL;
    }
    struct transfers *transfers = transfers_new(rt->base, e);
    if (transfers == NULL)
        return NULL;
    struct email *m = xcalloc(1, sizeof *m);
    *m = (struct email){.conf = rt->conf, .transfers = transfers, .url = url};
    return m;
}

static void email_close(void *self)
{
    struct email *m = self;
    transfers_free(m->transfers);
    free(m);
}

// ---------------------------------------------------------------------- call

static void call_free(struct email_call *x)
{
    transfer_stop(&x->transfer);
    curl_easy_cleanup(x->transfer.easy);
    curl_slist_free_all(x->recipients);
    mail_message_clear(&x->message);
    arena_clear(&x->texts);
    free(x);
}

static void end_call(struct email_call *x, enum channel_end end, const char *text)
{
    struct channel_call *c = x->call;
    channel_answer(c, end, text);
    call_free(x);
}

static size_t give_data(char *out, size_t size, size_t count, void *arg)
{
    struct email_call *x = arg;
    size_t left = x->message.data.len - x->sent;
    size_t n = size * count < left ? size * count : left;
    memcpy(out, x->message.data.data + x->sent, n);
    x->sent += n;
    return n;
}

// A connection that was used again and turned out to be closed.
static int rewind_data(void *arg, curl_off_t offset, int origin)
{
    struct email_call *x = arg;
    if (origin != SEEK_SET || offset < 0 || (size_t)offset > x->message.data.len)
        return CURL_SEEKFUNC_FAIL;
    x->sent = (size_t)offset;
    return CURL_SEEKFUNC_OK;
}

static size_t take_reply(char *data, size_t size, size_t count, void *arg)
{
    struct email_call *x = arg;
    size_t len = size * count;
    x->reply_bytes += len;
    if (x->reply_bytes > REPLY_MAX_BYTES)
        return 0;
    size_t n = len < REPLY_LINE_MAX ? len : REPLY_LINE_MAX;
    while (n > 0 && strchr("\r\n ", data[n - 1]) != NULL)
        n--;
    char *to = n > 0 && (data[0] == '4' || data[0] == '5') ? x->refusal : x->reply;
    memcpy(to, data, n);
    to[n] = '\0';
    return len;
}

static void end_accepted(struct email_call *x)
{
    struct buf text = BUF_INIT;
    struct json j;
    json_init(&j, &text);
    json_begin_object(&j);
    json_add_key(&j, "message_id");
    json_add_string(&j, x->message.message_id);
    json_add_key(&j, "recipients");
    json_add_int(&j, (int64_t)x->message.recipient_count);
    json_add_key(&j, "reply");
    json_add_string(&j, x->reply);
    json_end_object(&j);
    json_finish(&j);
    end_call(x, CHANNEL_SUCCEEDED, buf_str(&text));
    buf_clear(&text);
}

static void on_done(struct transfer *t, CURLcode code)
{
    struct email_call *x = (struct email_call *)t;
    long status = 0;
    curl_easy_getinfo(t->easy, CURLINFO_RESPONSE_CODE, &status);
    if (code == CURLE_OK) {
        end_accepted(x);
        return;
    }
    // That the password is wrong is no property of the message.
    bool final = status >= 500 && status <= 599 && code != CURLE_LOGIN_DENIED;
    struct buf text = BUF_INIT;
    if (status >= 400 && x->refusal[0] != '\0') {
        buf_adds(&text, "the mail server said: ");
        jsontext_add_clean(&text, x->refusal, strlen(x->refusal));
    } else {
        const char *words =
            x->curl_error[0] != '\0' ? x->curl_error : curl_easy_strerror(code);
        jsontext_add_clean(&text, words, strlen(words));
    }
    end_call(x, final ? CHANNEL_FINAL : CHANNEL_FAILED, buf_str(&text));
    buf_clear(&text);
}

static bool set_login(struct email *m, CURL *easy, struct err *e)
{
    const char *user = conf_get_string(m->conf, "smtp.user");
    const char *reference = conf_get_string(m->conf, "smtp.password");
    if (user == NULL)
        return true;
    curl_easy_setopt(easy, CURLOPT_USERNAME, user);
    if (reference == NULL)
        return true;
    struct buf password = BUF_INIT;
    bool ok = secret_read(m->conf, reference, &password, e);
    if (ok)
        curl_easy_setopt(easy, CURLOPT_PASSWORD, buf_str(&password));
    secret_clear(&password);
    return ok || err_wrap(e, "smtp.password");
}

static void set_options(struct email *m, struct email_call *x)
{
    CURL *easy = x->transfer.easy;
    const char *ca_file = conf_get_string(m->conf, "smtp.ca_file");
    int64_t limit_ms = conf_get_int(m->conf, "smtp.timeout");
    if (x->call->timeout_ms < limit_ms)
        limit_ms = x->call->timeout_ms;
    curl_easy_setopt(easy, CURLOPT_PROTOCOLS_STR, "smtp,smtps");
    curl_easy_setopt(easy, CURLOPT_URL, m->url);
    curl_easy_setopt(easy, CURLOPT_USE_SSL,
                     tls_modes[conf_get_enum(m->conf, "smtp.tls")]);
    if (ca_file != NULL) {
        curl_easy_setopt(easy, CURLOPT_CAINFO, ca_file);
        curl_easy_setopt(easy, CURLOPT_CAPATH, NULL);
    }
    curl_easy_setopt(easy, CURLOPT_TIMEOUT_MS, (long)limit_ms);
    curl_easy_setopt(easy, CURLOPT_CONNECTTIMEOUT_MS,
                     (long)conf_get_int(m->conf, "http.connect_timeout"));
    curl_easy_setopt(easy, CURLOPT_MAIL_FROM, x->message.sender);
    curl_easy_setopt(easy, CURLOPT_MAIL_RCPT, x->recipients);
    curl_easy_setopt(easy, CURLOPT_UPLOAD, 1L);
    curl_easy_setopt(easy, CURLOPT_READFUNCTION, give_data);
    curl_easy_setopt(easy, CURLOPT_READDATA, x);
    curl_easy_setopt(easy, CURLOPT_SEEKFUNCTION, rewind_data);
    curl_easy_setopt(easy, CURLOPT_SEEKDATA, x);
    curl_easy_setopt(easy, CURLOPT_INFILESIZE_LARGE, (curl_off_t)x->message.data.len);
    curl_easy_setopt(easy, CURLOPT_HEADERFUNCTION, take_reply);
    curl_easy_setopt(easy, CURLOPT_HEADERDATA, x);
    curl_easy_setopt(easy, CURLOPT_ERRORBUFFER, x->curl_error);
}

static void email_call(void *self, struct channel_call *c)
{
    struct email *m = self;
    struct err e = ERR_INIT;
    struct email_call *x = xcalloc(1, sizeof *x);
    x->call = c;
    x->transfer.done = on_done;
    c->state = x;
    if (!mail_message_build(&x->message, c->payload, c->idempotency_key, time(NULL),
                            &x->texts, &e)) {
        end_call(x, CHANNEL_FINAL, e.msg);
        return;
    }
    for (size_t i = 0; i < x->message.recipient_count; i++)
        x->recipients = curl_slist_append(x->recipients, x->message.recipients[i]);
    x->transfer.easy = transfer_easy_new();
    set_options(m, x);
    if (!set_login(m, x->transfer.easy, &e) ||
        !transfer_start(m->transfers, &x->transfer, &e))
        end_call(x, CHANNEL_FAILED, e.msg);
}

static void email_abort(void *self, struct channel_call *c)
{
    (void)self;
    call_free(c->state);
}

static const struct provider provider = {
    .open = email_open, .close = email_close, .call = email_call, .abort = email_abort};

static void *email_kind_open(struct runtime *rt, struct err *e)
{
    return channel_open(rt, &provider, e);
}

const struct kind kind_email = {
    .name = "email",
    .open = email_kind_open,
    .close = channel_close,
    .start = channel_start,
    .stop = channel_stop,
};
