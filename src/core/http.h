// SPDX-License-Identifier: Apache-2.0
//
// HTTP requests on the event loop: a request goes in, one callback comes out.
//
//     struct http_spec spec = {.url = ..., .done = on_answer, .arg = me};
//     struct http_request *r = http_send(http, &spec, e);
//
// What is made sure of here, whoever asks:
//   - only http and https, no user and password in the URL, no proxy, no cookies
//   - headers that are headers: no line break gets through
//   - the socket connects to no address that address.h refuses, in no hop, also
//     not by using an old connection that was opened for somebody else
//   - a redirect never leads from https to http, and headers that were meant for
//     one server do not go to another
//   - answers are limited in size and time

#ifndef PGKIN_CORE_HTTP_H
#define PGKIN_CORE_HTTP_H

#include <event2/event.h>
#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#include "core/address.h"
#include "core/err.h"

struct http;         // connections and requests of one event loop
struct http_request; // one that is under way

struct http_options {
    const char *user_agent; // NULL: "pgkin/VERSION"
    const char *ca_file;    // NULL: the system's
    int64_t connect_timeout_ms;
};

struct http_header {
    const char *name;
    const char *value;
    bool same_origin; // does not follow a redirect to another scheme, host or port
};

enum http_end {
    HTTP_ANSWERED,     // any status
    HTTP_FAILED,       // no connection, a broken one, a bad certificate, ...
    HTTP_TIMED_OUT,    //
    HTTP_REFUSED,      // the address is not one to connect to
    HTTP_TOO_LARGE,    // the answer; its beginning is in `body`
    HTTP_BAD_REDIRECT, // too many, or to where it must not go
};

// Borrowed until done() returns.
struct http_answer {
    enum http_end end;
    const char *error;        // a few words, when it is not HTTP_ANSWERED
    int status;               // 0: there was none
    const char *content_type; // "": none
    const char *body;         // ends with a NUL; may have others before
    size_t body_len;
    int64_t retry_after_ms; // 0: not said
};

struct http_spec {
    const char *method; // NULL: POST with a body, else GET
    const char *url;
    const struct http_header *headers;
    size_t header_count;
    const void *body; // NULL: none. Borrowed until the end; all else is copied.
    size_t body_len;
    // Networks that may be called although address.h refuses them.
    const struct address_net *allow;
    size_t allow_count;
    int max_redirects;
    int64_t max_body_bytes; // of the answer
    int64_t timeout_ms;     // over all hops; 0: none
    // Called by the loop, never from within http_send(), exactly once unless the
    // request is aborted. The request is gone when it returns.
    void (*done)(const struct http_answer *answer, void *arg);
    void *arg;
};

struct http *http_new(struct event_base *base, const struct http_options *o,
                      struct err *e);
void http_free(struct http *h); // no request may be under way; NULL is fine

// NULL with `e` filled when the spec is not one that can be sent.
struct http_request *http_send(struct http *h, const struct http_spec *spec,
                               struct err *e);
void http_abort(struct http_request *r); // at once; done() is not called

// What http_send() checks, for those who want to know earlier.
bool http_check_url(const char *url, struct err *e);
bool http_check_header(const char *name, const char *value, struct err *e);

#endif
