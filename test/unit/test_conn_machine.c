// SPDX-License-Identifier: Apache-2.0

#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <string.h>

#include <cmocka.h>

#include "core/conn.h"

static void test_mermaid(void **state)
{
    (void)state;
    static const char *const states[] = {"off", "on", "broken"};
    static const struct machine_transition transitions[] = {
        {0, 1, "switched"},
        {1, 0, "switched"},
        {1, 2, "dropped"},
    };
    const struct machine m = {.name = "lamp",
                              .states = states,
                              .state_count = 3,
                              .transitions = transitions,
                              .transition_count = 3};
    struct buf b = BUF_INIT;
    machine_print_mermaid(&m, &b);
    assert_string_equal(buf_str(&b), "---\n"
                                     "title: lamp\n"
                                     "---\n"
                                     "stateDiagram-v2\n"
                                     "    [*] --> off\n"
                                     "    off --> on: switched\n"
                                     "    on --> off: switched\n"
                                     "    on --> broken: dropped\n"
                                     "    broken --> [*]\n");
    buf_clear(&b);
    assert_true(machine_allowed(&m, 0, 1));
    assert_false(machine_allowed(&m, 0, 2));
    assert_false(machine_allowed(&m, 2, 0));
    assert_string_equal(machine_step(&m, 1, 2), "dropped");
    assert_string_equal(machine_state_name(&m, 7), "invalid");
}

// Every state can be reached from the first, can be left for it, and has a
// name; no row is there twice.
static void test_connection_machine_is_whole(void **state)
{
    (void)state;
    const struct machine *m = conn_machine();
    bool reached[16] = {true};
    bool returns[16] = {true};
    assert_in_range(m->state_count, 2, 16);
    for (size_t round = 0; round < m->state_count; round++) {
        for (size_t i = 0; i < m->transition_count; i++) {
            const struct machine_transition *t = &m->transitions[i];
            reached[t->to] |= reached[t->from];
            returns[t->from] |= returns[t->to];
        }
    }
    for (size_t i = 0; i < m->state_count; i++) {
        assert_non_null(m->states[i]);
        assert_true(reached[i]);
        assert_true(returns[i]);
    }
    for (size_t i = 0; i < m->transition_count; i++) {
        const struct machine_transition *t = &m->transitions[i];
        for (size_t j = 0; j < i; j++)
            assert_false(m->transitions[j].from == t->from &&
                         m->transitions[j].to == t->to);
        assert_null(strpbrk(t->why, ":;"));
    }
    assert_false(machine_allowed(m, CONN_CLOSED, CONN_IDLE));
    assert_false(machine_allowed(m, CONN_WAITING, CONN_BUSY));
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_mermaid),
        cmocka_unit_test(test_connection_machine_is_whole),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
