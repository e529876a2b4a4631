// SPDX-License-Identifier: Apache-2.0
//
// An e-mail out of a payload: the envelope, and the message as RFC 5322 and MIME
// have it. Everything in the payload is data of strangers: nothing in it can end
// a header, add a recipient that was not named, or reach the server as a command.
//
//     from_address   "a@example.org" or "Name <a@example.org>"
//     to_address, cc_address, bcc_address
//                    the same; several with commas between them, or as an array
//     reply_to, subject, text, html, message_id

#ifndef PGKIN_DAEMON_MAIL_MESSAGE_H
#define PGKIN_DAEMON_MAIL_MESSAGE_H

#include <jansson.h>
#include <stdbool.h>
#include <stddef.h>
#include <time.h>

#include "core/arena.h"
#include "core/buf.h"
#include "core/err.h"

#define MAIL_RECIPIENTS_MAX 1000

struct mail_message {
    const char *sender;            // "<a@example.org>"
    const char *const *recipients; // the same; ends with NULL
    size_t recipient_count;
    const char *message_id; // "<...@...>": the same for the same payload and key
    struct buf data;        // with CRLF at the end of each line; not dot-stuffed
};

// Fills `m`, with texts in the arena. `key` makes the message id where the payload
// has none. False with `e` filled when the payload is none for an e-mail.
bool mail_message_build(struct mail_message *m, const json_t *payload, const char *key,
                        time_t now, struct arena *a, struct err *e);
void mail_message_clear(struct mail_message *m);

#endif
