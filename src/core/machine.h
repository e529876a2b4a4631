// SPDX-License-Identifier: Apache-2.0
//
// A state machine as data. The module that owns one keeps an enum, a table of
// the transitions that may happen, each with its reason, and a single function
// through which every change of state goes. The same table is the drawing:
// there is no second description that could differ from it.

#ifndef PGKIN_CORE_MACHINE_H
#define PGKIN_CORE_MACHINE_H

#include <stdbool.h>
#include <stddef.h>

#include "core/buf.h"

struct machine_transition {
    int from;
    int to;
    const char *why; // a few words, without ':' or ';'
};

struct machine {
    const char *name;
    const char *const *states; // indexed by the owner's enum; 0 is the first state
    size_t state_count;
    const struct machine_transition *transitions;
    size_t transition_count;
};

bool machine_allowed(const struct machine *m, int from, int to);

// For the owner's one function: the reason for this step. BUG()s when the
// table does not have it.
const char *machine_step(const struct machine *m, int from, int to);

// "invalid" for a number that is not a state.
const char *machine_state_name(const struct machine *m, int state);

// Appends a mermaid stateDiagram-v2.
void machine_print_mermaid(const struct machine *m, struct buf *out);

#endif
