// SPDX-License-Identifier: Apache-2.0
//
// A web server for the tests of those who call one, on the same event loop as
// they are: libevent's own for all that is HTTP, and one that sends whatever it
// is told for all that is not. Include after cmocka.h.

#ifndef PGKIN_TEST_HTTP_SERVER_H
#define PGKIN_TEST_HTTP_SERVER_H

#include <arpa/inet.h>
#include <event2/buffer.h>
#include <event2/bufferevent.h>
#include <event2/event.h>
#include <event2/http.h>
#include <event2/keyvalq_struct.h>
#include <event2/listener.h>
#include <netinet/in.h>
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "core/buf.h"
#include "core/loop.h"

#define DEADLINE_MS 30000

struct server {
    struct event_base *base;
    struct evhttp *http;
    struct evconnlistener *listener;
    int port;
    // What it answers; or, when set, who does it instead.
    int status;
    const char *headers[6]; // name, value, ..., NULL
    const char *body;
    void (*handle)(struct server *s, struct evhttp_request *req);
    // What it was asked last.
    int requests;
    struct buf method; // and path
    struct buf asked_headers;
    struct buf asked_body;
    int peer_port;
    // Requests that wait, and things that go on.
    struct evhttp_request **held;
    size_t held_count;
    bool closed; // a client has gone before the end
    struct event *timer;
    struct evhttp_request *streaming;
    struct evhttp_request *abandoned; // its client has gone; still to be freed
};

static inline void server_reply(struct server *s, struct evhttp_request *req)
{
    struct evbuffer *out = evbuffer_new();
    if (s->body != NULL)
        evbuffer_add(out, s->body, strlen(s->body));
    for (size_t i = 0; s->headers[i] != NULL; i += 2)
        evhttp_add_header(evhttp_request_get_output_headers(req), s->headers[i],
                          s->headers[i + 1]);
    evhttp_send_reply(req, s->status, "whatever", out);
    evbuffer_free(out);
}

static inline void server_note(struct server *s, struct evhttp_request *req)
{
    static const struct {
        enum evhttp_cmd_type type;
        const char *name;
    } methods[] = {{EVHTTP_REQ_GET, "GET"},       {EVHTTP_REQ_POST, "POST"},
                   {EVHTTP_REQ_HEAD, "HEAD"},     {EVHTTP_REQ_PUT, "PUT"},
                   {EVHTTP_REQ_DELETE, "DELETE"}, {EVHTTP_REQ_PATCH, "PATCH"}};
    s->requests++;
    buf_reset(&s->method);
    buf_reset(&s->asked_headers);
    buf_reset(&s->asked_body);
    for (size_t i = 0; i < sizeof methods / sizeof methods[0]; i++) {
        if (evhttp_request_get_command(req) == methods[i].type)
            buf_addf(&s->method, "%s %s", methods[i].name, evhttp_request_get_uri(req));
    }
    const struct evkeyvalq *headers = evhttp_request_get_input_headers(req);
    for (const struct evkeyval *h = headers->tqh_first; h != NULL; h = h->next.tqe_next)
        buf_addf(&s->asked_headers, "%s: %s\n", h->key, h->value);
    struct evbuffer *in = evhttp_request_get_input_buffer(req);
    size_t len = evbuffer_get_length(in);
    buf_add(&s->asked_body, len > 0 ? (char *)evbuffer_pullup(in, -1) : "", len);
    char *address;
    ev_uint16_t port;
    evhttp_connection_get_peer(evhttp_request_get_connection(req), &address, &port);
    s->peer_port = port;
}

static inline void server_on_request(struct evhttp_request *req, void *arg)
{
    struct server *s = arg;
    server_note(s, req);
    if (s->handle != NULL)
        s->handle(s, req);
    else
        server_reply(s, req);
}

static inline struct evconnlistener *
server_listen(struct event_base *base, evconnlistener_cb cb, void *arg, int *port)
{
    struct sockaddr_in in = {.sin_family = AF_INET,
                             .sin_addr = {.s_addr = htonl(INADDR_LOOPBACK)}};
    struct evconnlistener *l = evconnlistener_new_bind(
        base, cb, arg, LEV_OPT_CLOSE_ON_FREE | LEV_OPT_CLOSE_ON_EXEC | LEV_OPT_REUSEABLE,
        8192, (struct sockaddr *)&in, sizeof in);
    assert_non_null(l);
    socklen_t len = sizeof in;
    assert_int_equal(getsockname(evconnlistener_get_fd(l), (struct sockaddr *)&in, &len),
                     0);
    *port = ntohs(in.sin_port);
    return l;
}

static inline struct server *server_new(struct event_base *base)
{
    struct server *s = xcalloc(1, sizeof *s);
    s->base = base;
    s->status = 200;
    s->http = evhttp_new(base);
    evhttp_set_max_body_size(s->http, 64 << 20);
    evhttp_set_allowed_methods(s->http, 0xffff);
    evhttp_set_gencb(s->http, server_on_request, s);
    s->listener = server_listen(base, NULL, NULL, &s->port);
    assert_non_null(evhttp_bind_listener(s->http, s->listener));
    return s;
}

static inline void server_free(struct server *s)
{
    loop_event_clear(&s->timer);
    if (s->abandoned != NULL)
        evhttp_send_reply_end(s->abandoned);
    evhttp_free(s->http);
    buf_clear(&s->method);
    buf_clear(&s->asked_headers);
    buf_clear(&s->asked_body);
    free(s->held);
    free(s);
}

// A handler that lets all requests wait until server_release().
static inline void server_hold(struct server *s, struct evhttp_request *req)
{
    s->held = xrealloc(s->held, (s->held_count + 1) * sizeof(struct evhttp_request *));
    s->held[s->held_count++] = req;
}

static inline void server_release(struct server *s)
{
    for (size_t i = 0; i < s->held_count; i++)
        server_reply(s, s->held[i]);
    s->held_count = 0;
}

// A handler that answers with the body's text, one byte after the other and over
// and over again.
static inline void server_on_stream_closed(struct evhttp_connection *c, void *arg)
{
    (void)c;
    struct server *s = arg;
    s->closed = true;
    s->abandoned = s->streaming;
    s->streaming = NULL;
    loop_event_clear(&s->timer);
}

static inline void server_send_piece(evutil_socket_t fd, short what, void *arg)
{
    (void)fd;
    (void)what;
    struct server *s = arg;
    struct evbuffer *piece = evbuffer_new();
    evbuffer_add(piece, s->body, strlen(s->body));
    loop_timer_start(s->timer, 5);
    evhttp_send_reply_chunk(s->streaming, piece);
    evbuffer_free(piece);
}

static inline void server_stream(struct server *s, struct evhttp_request *req)
{
    s->streaming = req;
    evhttp_connection_set_closecb(evhttp_request_get_connection(req),
                                  server_on_stream_closed, s);
    evhttp_send_reply_start(req, s->status, "whatever");
    s->timer = loop_event_new(s->base, -1, 0, server_send_piece, s);
    loop_timer_start(s->timer, 0);
}

// ------------------------------------------------------------------- raw bytes

struct raw_server {
    struct event_base *base;
    struct evconnlistener *listener;
    int port;
    int open;         // connections
    struct buf reply; // sent when the head of a request has come; then closed
};

static inline void raw_close(struct raw_server *s, struct bufferevent *bev)
{
    bufferevent_free(bev);
    s->open--;
}

static inline void raw_on_event(struct bufferevent *bev, short what, void *arg)
{
    if (what & (BEV_EVENT_EOF | BEV_EVENT_ERROR))
        raw_close(arg, bev);
}

static inline void raw_on_written(struct bufferevent *bev, void *arg)
{
    raw_close(arg, bev);
}

static inline void raw_on_read(struct bufferevent *bev, void *arg)
{
    struct raw_server *s = arg;
    struct evbuffer *in = bufferevent_get_input(bev);
    struct evbuffer_ptr end = evbuffer_search(in, "\r\n\r\n", 4, NULL);
    if (end.pos < 0)
        return;
    evbuffer_drain(in, evbuffer_get_length(in));
    if (s->reply.len == 0) {
        raw_close(s, bev);
        return;
    }
    bufferevent_setcb(bev, NULL, raw_on_written, raw_on_event, s);
    bufferevent_write(bev, s->reply.data, s->reply.len);
}

static inline void raw_on_accept(struct evconnlistener *l, evutil_socket_t fd,
                                 struct sockaddr *sa, int len, void *arg)
{
    (void)l;
    (void)sa;
    (void)len;
    struct raw_server *s = arg;
    s->open++;
    struct bufferevent *bev = bufferevent_socket_new(s->base, fd, BEV_OPT_CLOSE_ON_FREE);
    bufferevent_setcb(bev, raw_on_read, NULL, raw_on_event, s);
    bufferevent_enable(bev, EV_READ | EV_WRITE);
}

static inline struct raw_server *raw_server_new(struct event_base *base)
{
    struct raw_server *s = xcalloc(1, sizeof *s);
    s->base = base;
    s->listener = server_listen(base, raw_on_accept, s, &s->port);
    return s;
}

// ----------------------------------------------------------------------- loop

static inline void tick(evutil_socket_t fd, short what, void *arg)
{
    (void)fd;
    (void)what;
    (void)arg;
}

// Runs the loop until the condition holds.
#define run_until(base, condition)                                                       \
    do {                                                                                 \
        struct event *ticker = loop_event_new(base, -1, EV_PERSIST, tick, NULL);         \
        loop_event_add(ticker, &(struct timeval){.tv_usec = 20000});                     \
        int64_t deadline_ms = loop_now_ms() + DEADLINE_MS;                               \
        bool holds;                                                                      \
        while (!(holds = (condition)) && loop_now_ms() < deadline_ms)                    \
            event_base_loop(base, EVLOOP_ONCE);                                          \
        loop_event_clear(&ticker);                                                       \
        if (!holds)                                                                      \
            fail_msg("in vain: %s", #condition);                                         \
    } while (0)

static inline void raw_server_free(struct raw_server *s)
{
    run_until(s->base, s->open == 0);
    evconnlistener_free(s->listener);
    buf_clear(&s->reply);
    free(s);
}

#endif
