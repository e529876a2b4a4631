// SPDX-License-Identifier: Apache-2.0
//
// Texts as e-mail carries them: RFC 2047 for headers, quoted-printable for
// bodies. What is ASCII and short stays as it is, for people who read it raw.

#ifndef PGKIN_DAEMON_MAIL_ENCODE_H
#define PGKIN_DAEMON_MAIL_ENCODE_H

#include <stddef.h>

#include "core/buf.h"

// The value of a header that is free text. `column`: what stands before it on its
// line. The text has no control characters but tabs.
void mail_encode_text(struct buf *out, const char *text, size_t column);

// The name before an address: bare, quoted or encoded.
void mail_encode_phrase(struct buf *out, const char *text);

// Content-Transfer-Encoding, an empty line, and the body, each line of it ended
// by CRLF whatever ended it before.
void mail_encode_body(struct buf *out, const char *text, size_t len);

#endif
