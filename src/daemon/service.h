// SPDX-License-Identifier: Apache-2.0
//
// A provider that is a web service, as the settings of one section describe it:
//
//     [sms]
//     url = https://sms.example/messages
//     headers = {"authorization": "secret:sms_token"}
//     allow_private = 10.0.0.0/8

#ifndef PGKIN_DAEMON_SERVICE_H
#define PGKIN_DAEMON_SERVICE_H

#include <jansson.h>

#include "core/address.h"
#include "core/buf.h"
#include "core/err.h"
#include "core/http.h"
#include "daemon/channel.h"
#include "daemon/kind.h"

#define SERVICE_NETWORKS_MAX 32

struct service {
    const struct conf *conf;
    struct http *http;
    const char *url; // NULL: not set
    json_t *headers; // NULL: none
    struct address_net networks[SERVICE_NETWORKS_MAX];
    size_t network_count;
};

// Reads SECTION.url, SECTION.headers and SECTION.allow_private.
bool service_open(struct service *s, struct runtime *rt, const char *section,
                  struct err *e);
void service_close(struct service *s);

// Sends a request with the service's headers and the idempotency key; with a URL
// of its own, to that, and without the headers, which are not for others. `body`
// is borrowed until the end. As http_send() otherwise.
struct http_request *service_send(struct service *s, const char *method, const char *url,
                                  const struct channel_call *c, const char *body,
                                  void (*done)(const struct http_answer *answer,
                                               void *arg),
                                  void *arg, struct err *e);

// How an answer ends the call. Appends the error, or what the service said:
// {"status": 200, "body": …}.
enum channel_end service_judge(const struct http_answer *answer, struct buf *text);

#endif
