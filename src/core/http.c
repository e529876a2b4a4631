// SPDX-License-Identifier: Apache-2.0
//
// One request is one easy handle, used again for each hop: redirects are
// followed here and not by libcurl, which would send a command's secret headers
// to wherever it is sent.

#include "core/http.h"

#include <ctype.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <strings.h>
#include <sys/socket.h>
#include <unistd.h>

#include "core/buf.h"
#include "core/loop.h"
#include "core/transfer.h"
#include "pgkin.h"

#define HEADERS_MAX_BYTES 262144 // of an answer
#define HEADER_MAX_BYTES  65536  // of ours, each

struct http {
    struct transfers *transfers;
    char *user_agent;
    char *ca_file;
    int64_t connect_timeout_ms;
};

struct http_request {
    struct transfer transfer; // first: done() gets a pointer to it
    struct http *http;
    struct curl_slist *headers;         // all, for the first origin
    struct curl_slist *foreign_headers; // those that may go anywhere
    char *origin;
    struct address_net *allow;
    size_t allow_count;
    int redirects;
    int max_redirects;
    int64_t max_body_bytes;
    int64_t deadline_ms; // 0: none
    void (*done)(const struct http_answer *answer, void *arg);
    void *arg;
    // Of the hop under way.
    struct buf body;
    size_t header_bytes;
    bool too_large;
    bool tried;    // an address was not refused
    char why[200]; // one was
    char curl_error[CURL_ERROR_SIZE];
};

// ------------------------------------------------------------------- origins

// "https://example.org:443"; NULL when the URL cannot be read.
static char *url_origin(const char *url)
{
    char *scheme = NULL, *host = NULL, *port = NULL, *origin = NULL;
    CURLU *u = curl_url();
    if (curl_url_set(u, CURLUPART_URL, url, 0) == CURLUE_OK &&
        curl_url_get(u, CURLUPART_SCHEME, &scheme, 0) == CURLUE_OK &&
        curl_url_get(u, CURLUPART_HOST, &host, 0) == CURLUE_OK &&
        curl_url_get(u, CURLUPART_PORT, &port, CURLU_DEFAULT_PORT) == CURLUE_OK) {
        origin = xasprintf("%s://%s:%s", scheme, host, port);
        for (char *p = origin; *p != '\0'; p++)
            *p = (char)tolower((unsigned char)*p);
    }
    curl_free(scheme);
    curl_free(host);
    curl_free(port);
    curl_url_cleanup(u);
    return origin;
}

// ------------------------------------------------------- callbacks of libcurl

static bool is_refused(struct http_request *r, const struct sockaddr *sa)
{
    const char *why = address_refusal(sa, r->allow, r->allow_count);
    if (why == NULL)
        return false;
    char text[ADDRESS_TEXT_MAX];
    snprintf(r->why, sizeof r->why, "refused to connect to %s: %s",
             address_text(sa, text), why);
    return true;
}

// The address is the one that will be connected to; nothing is resolved later.
static curl_socket_t open_socket(void *arg, curlsocktype purpose,
                                 struct curl_sockaddr *address)
{
    struct http_request *r = arg;
    if (purpose != CURLSOCKTYPE_IPCXN || is_refused(r, &address->addr))
        return CURL_SOCKET_BAD;
    r->tried = true;
    return socket(address->family, address->socktype | SOCK_CLOEXEC, address->protocol);
}

// Also for a connection that is used again: it may have been opened for somebody
// who is allowed more.
static int check_connection(void *arg, char *peer, char *local, int peer_port,
                            int local_port)
{
    (void)local;
    (void)peer_port;
    (void)local_port;
    struct http_request *r = arg;
    struct sockaddr_storage sa;
    char text[ADDRESS_TEXT_MAX];
    snprintf(text, sizeof text, "%.*s", (int)strcspn(peer, "%"), peer);
    if (address_parse(text, &sa) && !is_refused(r, (const struct sockaddr *)&sa))
        return CURL_PREREQFUNC_OK;
    r->tried = false;
    return CURL_PREREQFUNC_ABORT;
}

static size_t take_body(char *data, size_t size, size_t count, void *arg)
{
    struct http_request *r = arg;
    size_t len = size * count;
    size_t room = (size_t)r->max_body_bytes - r->body.len;
    buf_add(&r->body, data, len < room ? len : room);
    if (len <= room)
        return len;
    r->too_large = true;
    return CURL_WRITEFUNC_ERROR;
}

static size_t take_header(char *data, size_t size, size_t count, void *arg)
{
    (void)data;
    struct http_request *r = arg;
    r->header_bytes += size * count;
    if (r->header_bytes <= HEADERS_MAX_BYTES)
        return size * count;
    r->too_large = true;
    return CURL_WRITEFUNC_ERROR;
}

// ----------------------------------------------------------------------- end

static void request_free(struct http_request *r)
{
    transfer_stop(&r->transfer);
    curl_easy_cleanup(r->transfer.easy);
    curl_slist_free_all(r->headers);
    curl_slist_free_all(r->foreign_headers);
    buf_clear(&r->body);
    free(r->origin);
    free(r->allow);
    free(r);
}

static void end_request(struct http_request *r, enum http_end end, const char *error)
{
    CURL *easy = r->transfer.easy;
    long status = 0;
    curl_off_t retry_after_s = 0;
    const char *content_type = NULL;
    curl_easy_getinfo(easy, CURLINFO_RESPONSE_CODE, &status);
    curl_easy_getinfo(easy, CURLINFO_RETRY_AFTER, &retry_after_s);
    curl_easy_getinfo(easy, CURLINFO_CONTENT_TYPE, &content_type);
    if (retry_after_s < 0 || retry_after_s > INT32_MAX)
        retry_after_s = retry_after_s < 0 ? 0 : INT32_MAX;
    const struct http_answer answer = {
        .end = end,
        .error = error,
        .status = (int)status,
        .content_type = content_type != NULL ? content_type : "",
        .body = buf_str(&r->body),
        .body_len = r->body.len,
        .retry_after_ms = (int64_t)retry_after_s * 1000,
    };
    r->done(&answer, r->arg);
    request_free(r);
}

// libcurl's words, as ours begin.
static void end_with_curl_error(struct http_request *r, CURLcode code)
{
    char text[CURL_ERROR_SIZE];
    snprintf(text, sizeof text, "%s",
             r->curl_error[0] != '\0' ? r->curl_error : curl_easy_strerror(code));
    if (isupper((unsigned char)text[0]) && !isupper((unsigned char)text[1]))
        text[0] = (char)tolower((unsigned char)text[0]);
    size_t len = strlen(text);
    while (len > 0 && (isspace((unsigned char)text[len - 1]) || text[len - 1] == '.'))
        text[--len] = '\0';
    end_request(r, code == CURLE_OPERATION_TIMEDOUT ? HTTP_TIMED_OUT : HTTP_FAILED, text);
}

// ---------------------------------------------------------------------- hops

static bool start_hop(struct http_request *r, struct err *e)
{
    int64_t left_ms = 0;
    if (r->deadline_ms != 0) {
        left_ms = r->deadline_ms - loop_now_ms();
        if (left_ms < 1)
            left_ms = 1;
    }
    curl_easy_setopt(r->transfer.easy, CURLOPT_TIMEOUT_MS, (long)left_ms);
    buf_reset(&r->body);
    r->header_bytes = 0;
    r->tried = false;
    r->why[0] = '\0';
    r->curl_error[0] = '\0';
    return transfer_start(r->http->transfers, &r->transfer, e);
}

static bool is_redirect(long status)
{
    return status == 301 || status == 302 || status == 303 || status == 307 ||
           status == 308;
}

static bool check_redirect(const struct http_request *r, const char *url,
                           const char *origin, struct err *e)
{
    if (r->redirects >= r->max_redirects)
        return err_set(e, "more than %d redirects", r->max_redirects);
    if (!http_check_url(url, e))
        return err_wrap(e, "bad redirect");
    if (origin == NULL)
        return err_set(e, "bad redirect: the url is not valid");
    if (strncmp(r->origin, "https:", 6) == 0 && strncmp(origin, "https:", 6) != 0)
        return err_set(e, "bad redirect: from https to http");
    return true;
}

// True when it goes on. 303 says that the answer is to be fetched from there;
// with all others the request itself is meant to go there.
static bool follow_redirect(struct http_request *r, long status, struct err *e)
{
    CURL *easy = r->transfer.easy;
    const char *location = NULL;
    curl_easy_getinfo(easy, CURLINFO_REDIRECT_URL, &location);
    if (location == NULL)
        return err_set(e, "a redirect to nowhere");
    char *url = xstrdup(location);
    char *origin = url_origin(url);
    bool ok = check_redirect(r, url, origin, e);
    if (ok) {
        r->redirects++;
        curl_easy_setopt(easy, CURLOPT_URL, url);
        bool same = strcmp(origin, r->origin) == 0;
        curl_easy_setopt(easy, CURLOPT_HTTPHEADER,
                         same ? r->headers : r->foreign_headers);
        if (status == 303) {
            curl_easy_setopt(easy, CURLOPT_CUSTOMREQUEST, NULL);
            curl_easy_setopt(easy, CURLOPT_HTTPGET, 1L);
        }
        ok = start_hop(r, e);
    }
    free(origin);
    free(url);
    return ok;
}

static void on_transfer_done(struct transfer *x, CURLcode code)
{
    struct http_request *r = (struct http_request *)x;
    struct err e = ERR_INIT;
    long status = 0;
    curl_easy_getinfo(x->easy, CURLINFO_RESPONSE_CODE, &status);
    if (r->too_large)
        end_request(r, HTTP_TOO_LARGE, "the answer is too large");
    else if (r->why[0] != '\0' && !r->tried)
        end_request(r, HTTP_REFUSED, r->why);
    else if (code != CURLE_OK)
        end_with_curl_error(r, code);
    else if (r->max_redirects == 0 || !is_redirect(status))
        end_request(r, HTTP_ANSWERED, NULL);
    else if (!follow_redirect(r, status, &e))
        end_request(r, HTTP_BAD_REDIRECT, e.msg);
}

// ---------------------------------------------------------------- new requests

static void append(struct curl_slist **list, const char *line)
{
    struct curl_slist *grown = curl_slist_append(*list, line);
    if (grown == NULL)
        BUG("curl_slist_append failed");
    *list = grown;
}

// libcurl takes "name:" for a header not to be sent, and "name;" for one without
// a value.
static bool add_headers(struct http_request *r, const struct http_spec *spec,
                        struct err *e)
{
    bool typed = false;
    for (size_t i = 0; i < spec->header_count; i++) {
        const struct http_header *h = &spec->headers[i];
        if (!http_check_header(h->name, h->value, e))
            return false;
        if (strlen(h->name) + strlen(h->value) > HEADER_MAX_BYTES)
            return err_set(e, "the header %.60s is too long", h->name);
        bool blank = h->value[strspn(h->value, " \t")] == '\0';
        char *line =
            blank ? xasprintf("%s;", h->name) : xasprintf("%s: %s", h->name, h->value);
        append(&r->headers, line);
        if (!h->same_origin)
            append(&r->foreign_headers, line);
        free(line);
        typed = typed || strcasecmp(h->name, "content-type") == 0;
    }
    // Not what libcurl would add to a body.
    const char *const unwanted[] = {"Expect:", typed ? NULL : "Content-Type:"};
    for (size_t i = 0; i < 2; i++) {
        if (unwanted[i] != NULL) {
            append(&r->headers, unwanted[i]);
            append(&r->foreign_headers, unwanted[i]);
        }
    }
    return true;
}

static bool set_method(struct http_request *r, const struct http_spec *spec,
                       struct err *e)
{
    CURL *easy = r->transfer.easy;
    const char *method = spec->method;
    if (method != NULL &&
        (method[0] == '\0' ||
         strspn(method, "ABCDEFGHIJKLMNOPQRSTUVWXYZ-") != strlen(method)))
        return err_set(e, "\"%.60s\" is not a method of HTTP", method);
    bool post = method != NULL ? strcmp(method, "POST") == 0 : spec->body != NULL;
    if (post || spec->body != NULL) {
        curl_easy_setopt(easy, CURLOPT_POST, 1L);
        curl_easy_setopt(easy, CURLOPT_POSTFIELDSIZE_LARGE, (curl_off_t)spec->body_len);
        curl_easy_setopt(easy, CURLOPT_POSTFIELDS, spec->body != NULL ? spec->body : "");
    }
    if (method != NULL && !post && strcmp(method, "GET") != 0)
        curl_easy_setopt(easy, CURLOPT_CUSTOMREQUEST, method);
    return true;
}

static void set_options(struct http_request *r)
{
    CURL *easy = r->transfer.easy;
    const struct http *h = r->http;
    curl_easy_setopt(easy, CURLOPT_PROTOCOLS_STR, "http,https");
    curl_easy_setopt(easy, CURLOPT_HTTP_VERSION, (long)CURL_HTTP_VERSION_1_1);
    curl_easy_setopt(easy, CURLOPT_HTTPHEADER, r->headers);
    curl_easy_setopt(easy, CURLOPT_USERAGENT, h->user_agent);
    if (h->ca_file != NULL) {
        curl_easy_setopt(easy, CURLOPT_CAINFO, h->ca_file);
        curl_easy_setopt(easy, CURLOPT_CAPATH, NULL);
    }
    curl_easy_setopt(easy, CURLOPT_TCP_KEEPALIVE, 1L);
    curl_easy_setopt(easy, CURLOPT_CONNECTTIMEOUT_MS, (long)h->connect_timeout_ms);
    curl_easy_setopt(easy, CURLOPT_ERRORBUFFER, r->curl_error);
    curl_easy_setopt(easy, CURLOPT_OPENSOCKETFUNCTION, open_socket);
    curl_easy_setopt(easy, CURLOPT_OPENSOCKETDATA, r);
    curl_easy_setopt(easy, CURLOPT_PREREQFUNCTION, check_connection);
    curl_easy_setopt(easy, CURLOPT_PREREQDATA, r);
    curl_easy_setopt(easy, CURLOPT_WRITEFUNCTION, take_body);
    curl_easy_setopt(easy, CURLOPT_WRITEDATA, r);
    curl_easy_setopt(easy, CURLOPT_HEADERFUNCTION, take_header);
    curl_easy_setopt(easy, CURLOPT_HEADERDATA, r);
}

struct http_request *http_send(struct http *h, const struct http_spec *spec,
                               struct err *e)
{
    if (spec->max_body_bytes < 0 || spec->done == NULL)
        BUG("a request without a limit or an end");
    if (!http_check_url(spec->url, e))
        return NULL;
    struct http_request *r = xcalloc(1, sizeof *r);
    r->transfer.easy = transfer_easy_new();
    r->transfer.done = on_transfer_done;
    r->http = h;
    r->origin = url_origin(spec->url);
    r->max_redirects = spec->max_redirects;
    r->max_body_bytes = spec->max_body_bytes;
    r->deadline_ms = spec->timeout_ms > 0 ? loop_now_ms() + spec->timeout_ms : 0;
    r->done = spec->done;
    r->arg = spec->arg;
    r->allow_count = spec->allow_count;
    r->allow = xcalloc(spec->allow_count + 1, sizeof *r->allow);
    for (size_t i = 0; i < spec->allow_count; i++)
        r->allow[i] = spec->allow[i];
    if (r->origin == NULL) {
        err_set(e, "the url is not valid");
        goto bad;
    }
    if (!add_headers(r, spec, e) || !set_method(r, spec, e))
        goto bad;
    set_options(r);
    curl_easy_setopt(r->transfer.easy, CURLOPT_URL, spec->url);
    if (!start_hop(r, e))
        goto bad;
    return r;
bad:
    request_free(r);
    return NULL;
}

void http_abort(struct http_request *r)
{
    request_free(r);
}

// ---------------------------------------------------------------------- whole

struct http *http_new(struct event_base *base, const struct http_options *o,
                      struct err *e)
{
    if (o->user_agent != NULL && !http_check_header("user-agent", o->user_agent, e))
        return NULL;
    if (o->ca_file != NULL && access(o->ca_file, R_OK) != 0) {
        err_set(e, "cannot read the certificates in %s", o->ca_file);
        return NULL;
    }
    struct transfers *transfers = transfers_new(base, e);
    if (transfers == NULL)
        return NULL;
    struct http *h = xcalloc(1, sizeof *h);
    h->transfers = transfers;
    h->user_agent =
        xstrdup(o->user_agent != NULL ? o->user_agent : "pgkin/" PGKIN_VERSION);
    h->ca_file = o->ca_file != NULL ? xstrdup(o->ca_file) : NULL;
    h->connect_timeout_ms = o->connect_timeout_ms;
    return h;
}

void http_free(struct http *h)
{
    if (h == NULL)
        return;
    transfers_free(h->transfers);
    free(h->user_agent);
    free(h->ca_file);
    free(h);
}
