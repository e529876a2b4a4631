// SPDX-License-Identifier: Apache-2.0
//
// Health checks over HTTP: /healthz says that the loop turns, /readyz that the
// worker is registered and serves its queues.

#include <event2/buffer.h>
#include <event2/http.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "daemon/impl.h"

struct serve {
    struct daemon *d;
    struct evhttp *http;
};

static void reply(struct evhttp_request *req, int code, const char *text)
{
    struct evbuffer *body = evbuffer_new();
    evhttp_add_header(evhttp_request_get_output_headers(req), "Content-Type",
                      "text/plain");
    evhttp_add_header(evhttp_request_get_output_headers(req), "Cache-Control",
                      "no-store");
    evbuffer_add_printf(body, "%s\n", text);
    evhttp_send_reply(req, code, NULL, body);
    evbuffer_free(body);
}

static void on_healthz(struct evhttp_request *req, void *arg)
{
    (void)arg;
    reply(req, HTTP_OK, "ok");
}

static void on_readyz(struct evhttp_request *req, void *arg)
{
    struct serve *s = arg;
    struct daemon_status status;
    daemon_get_status(s->d, &status);
    if (status.state == DAEMON_WORKING && status.connected && status.worker_id != 0)
        reply(req, HTTP_OK, "ready");
    else
        reply(req, HTTP_SERVUNAVAIL,
              status.state != DAEMON_WORKING
                  ? machine_state_name(daemon_machine(), (int)status.state)
                  : "no connection to the database");
}

static void on_other(struct evhttp_request *req, void *arg)
{
    (void)arg;
    reply(req, HTTP_NOTFOUND, "not found");
}

// ADDR:PORT, [ADDR]:PORT or :PORT.
static bool split_address(const char *address, char *host, size_t cap, int *port,
                          struct err *e)
{
    const char *colon = strrchr(address, ':');
    char *end = NULL;
    long n = colon != NULL ? strtol(colon + 1, &end, 10) : -1;
    size_t len = colon != NULL ? (size_t)(colon - address) : 0;
    if (colon == NULL || colon[1] == '\0' || *end != '\0' || n < 0 || n > 65535 ||
        len >= cap)
        return err_usage(e, "an address to listen on is ADDR:PORT, not \"%s\"", address);
    if (len >= 2 && address[0] == '[' && address[len - 1] == ']') {
        address++;
        len -= 2;
    }
    memcpy(host, len > 0 ? address : "127.0.0.1", len > 0 ? len : sizeof "127.0.0.1");
    host[len > 0 ? len : sizeof "127.0.0.1" - 1] = '\0';
    *port = (int)n;
    return true;
}

struct serve *serve_new(struct daemon *d, const char *address, struct err *e)
{
    char host[256];
    int port = 0;
    if (!split_address(address, host, sizeof host, &port, e))
        return NULL;
    struct serve *s = xcalloc(1, sizeof *s);
    s->d = d;
    s->http = evhttp_new(d->base);
    if (s->http == NULL)
        BUG("cannot make an HTTP server");
    evhttp_set_allowed_methods(s->http, EVHTTP_REQ_GET | EVHTTP_REQ_HEAD);
    evhttp_set_timeout(s->http, 10);
    evhttp_set_max_headers_size(s->http, 16384);
    evhttp_set_max_body_size(s->http, 0);
    evhttp_set_cb(s->http, "/healthz", on_healthz, s);
    evhttp_set_cb(s->http, "/readyz", on_readyz, s);
    evhttp_set_gencb(s->http, on_other, s);
    if (evhttp_bind_socket_with_handle(s->http, host, (ev_uint16_t)port) == NULL) {
        err_set(e, "cannot listen on %s", address);
        serve_free(s);
        return NULL;
    }
    log_info(d->log, "health checks", LOG_S("address", address));
    return s;
}

void serve_free(struct serve *s)
{
    if (s == NULL)
        return;
    evhttp_free(s->http);
    free(s);
}
