// SPDX-License-Identifier: Apache-2.0
//
// What e-mail, text messages and file deletions have in common: the steps in the
// database around one call of a provider. docs/channels.md is the contract.
//
//     beginning ──> calling ──> recording ──> over
//         │                        ^
//         └── called before ───────┘
//
// A provider only makes the call. It is given what the before handler said, and
// says how it went; handlers, facts and the end of the task are done here.

#ifndef PGKIN_DAEMON_CHANNEL_H
#define PGKIN_DAEMON_CHANNEL_H

#include <jansson.h>
#include <stdbool.h>
#include <stdint.h>

#include "core/err.h"
#include "core/machine.h"
#include "daemon/kind.h"

// One call. The provider reads it, and keeps what it likes in `state`.
struct channel_call {
    const char *idempotency_key;
    int64_t task_id;
    json_t *payload;    // an object; borrowed until channel_answer()
    int64_t timeout_ms; // how long the provider may take
    void *state;
};

struct provider {
    // NULL with `e` filled: it is not set up, and calls fail.
    void *(*open)(struct runtime *rt, struct err *e);
    void (*close)(void *self);
    // Makes the call; ends with channel_answer(), which may come from within.
    void (*call)(void *self, struct channel_call *c);
    // Stops at once, without channel_answer().
    void (*abort)(void *self, struct channel_call *c);
};

enum channel_end {
    CHANNEL_SUCCEEDED,
    CHANNEL_FAILED,
    CHANNEL_FINAL, // failed, and would fail again
};

// Ends the call, exactly once unless it was aborted. `text`: what the provider
// said as JSON, or the error; borrowed. The call is gone afterwards.
void channel_answer(struct channel_call *c, enum channel_end end, const char *text);

// The same with an error that is at hand.
void channel_refuse(struct channel_call *c, enum channel_end end, const struct err *e);

// For a struct kind. channel_open() is called by the kind's own open().
void *channel_open(struct runtime *rt, const struct provider *p, struct err *e);
void channel_close(void *self);
void channel_start(void *self, struct attempt *a);
void channel_stop(void *self, struct attempt *a);

const struct machine *channel_machine(void);

#endif
