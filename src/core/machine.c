// SPDX-License-Identifier: Apache-2.0

#include "core/machine.h"

#include "core/err.h"

static const struct machine_transition *find_transition(const struct machine *m, int from,
                                                        int to)
{
    for (size_t i = 0; i < m->transition_count; i++) {
        const struct machine_transition *t = &m->transitions[i];
        if (t->from == from && t->to == to)
            return t;
    }
    return NULL;
}

bool machine_allowed(const struct machine *m, int from, int to)
{
    return find_transition(m, from, to) != NULL;
}

const char *machine_step(const struct machine *m, int from, int to)
{
    const struct machine_transition *t = find_transition(m, from, to);
    if (t == NULL)
        BUG("machine %s: no transition from %s to %s", m->name,
            machine_state_name(m, from), machine_state_name(m, to));
    return t->why;
}

const char *machine_state_name(const struct machine *m, int state)
{
    return state >= 0 && (size_t)state < m->state_count ? m->states[state] : "invalid";
}

static bool is_final(const struct machine *m, int state)
{
    for (size_t i = 0; i < m->transition_count; i++) {
        if (m->transitions[i].from == state)
            return false;
    }
    return true;
}

void machine_print_mermaid(const struct machine *m, struct buf *out)
{
    buf_addf(out, "---\ntitle: %s\n---\nstateDiagram-v2\n", m->name);
    buf_addf(out, "    [*] --> %s\n", m->states[0]);
    for (size_t i = 0; i < m->transition_count; i++) {
        const struct machine_transition *t = &m->transitions[i];
        buf_addf(out, "    %s --> %s: %s\n", machine_state_name(m, t->from),
                 machine_state_name(m, t->to), t->why);
    }
    for (size_t i = 0; i < m->state_count; i++) {
        if (is_final(m, (int)i))
            buf_addf(out, "    %s --> [*]\n", m->states[i]);
    }
}
