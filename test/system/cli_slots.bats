#!/usr/bin/env bats
# SPDX-License-Identifier: Apache-2.0
#
# `pgkin slots`.

bats_require_minimum_version 1.5.0
load ../lib/system
load ../lib/cli

setup()
{
    cli_database
}

# some_limits: a command, a group key and a queue with limits, and two tasks of
# worker 1 that run; it has got all that may run.
some_limits()
{
    sql "$DATABASE_URL" "
        set client_min_messages = warning;
        select worker.register_command('mail', 'q', p_kind => 'native', p_concurrency_limit => 2);
        select worker.register_command('call', 'r', p_kind => 'native',
                                       p_group_concurrency_limit => 1);
        update worker.queue_registry set top_concurrency = null where queue in ('q', 'r');
        update worker.queue_registry set concurrency_limit = 60 where queue = 'r';
        select worker.enqueue_many('mail', array_fill('{}'::jsonb, array[5]));
        select worker.enqueue('call', p_group_key => g) from unnest('{a,a,b}'::text[]) g;
        select worker.register_worker('mine', 'here')" >/dev/null
    sql "$DATABASE_URL" "
        select task_id from queues.exchange('q', 10, p_worker_id => 1);
        select task_id from queues.exchange('r', 10, p_worker_id => 1)" >/dev/null
}

@test "slots: no limit" {
    run --separate-stderr "$PGKIN" slots
    [ "$status" -eq 0 ]
    [[ $output =~ ^KEY\ +KIND\ +LIMIT\ +USED\ +WAITING$ ]]
    [ -z "$stderr" ]
    [ "$("$PGKIN" slots --json)" = '[]' ]
    [[ $("$PGKIN" slots --holders) == *$'\nnobody holds a slot' ]]
}

@test "slots: of commands, group keys and queues, in use and waiting" {
    some_limits
    run --separate-stderr "$PGKIN" slots
    echo "$output"
    [ "${#lines[@]}" -eq 5 ]
    [[ ${lines[1]} =~ ^mail\ +command\ +2\ +2\ +3$ ]]
    [[ ${lines[2]} =~ ^call/a\ +group\ +1\ +1\ +1$ ]]
    [[ ${lines[3]} =~ ^call/b\ +group\ +1\ +1\ +0$ ]]
    [[ ${lines[4]} =~ ^queue:r\ +queue\ +60\ +2\ +0$ ]]
    [ "$("$PGKIN" slots --json | json '[(s["task_key"], s["limit"], s["used"], s["waiting"]) for s in d]')" = \
        "[('mail', 2, 2, 3), ('call/a', 1, 1, 1), ('call/b', 1, 1, 0), ('queue:r', 60, 2, 0)]" ]
    [ "$("$PGKIN" slots --json | json 'any("holders" in s for s in d)')" = False ]
}

@test "slots: of a queue, of a command" {
    some_limits
    local keys='[s["task_key"] for s in d]'
    [ "$("$PGKIN" slots -q q --json | json "$keys")" = "['mail']" ]
    [ "$("$PGKIN" slots -q r --json | json "$keys")" = "['call/a', 'call/b', 'queue:r']" ]
    [ "$("$PGKIN" slots -c call --json | json "$keys")" = "['call/a', 'call/b']" ]
    [ "$("$PGKIN" slots -c mail -q r --json)" = '[]' ]
    [ "$("$PGKIN" slots -c queue:r --json)" = '[]' ]
}

@test "slots: who holds them, and for how long" {
    some_limits
    run --separate-stderr "$PGKIN" slots -c mail --holders
    echo "$output"
    [ "${#lines[@]}" -eq 5 ]
    [[ ${lines[2]} =~ ^KEY\ +TASK\ +WORKER\ +NAME\ +SINCE$ ]]
    [[ ${lines[3]} =~ ^mail\ +1\ +1\ +mine\ +[0-9.]+m?s$ ]]
    [[ ${lines[4]} =~ ^mail\ +2\ +1\ +mine\ +[0-9.]+m?s$ ]]
    [ "$("$PGKIN" slots --holders --json |
        json '[[(h["task"], h["worker"], "since" in h) for h in s["holders"]] for s in d]')" = \
        "[[(1, 1, True), (2, 1, True)], [(6, 1, True)], [(8, 1, True)], [(6, 1, True), (8, 1, True)]]" ]
}

@test "slots: a session that runs SQL handlers holds them by its own name" {
    sql "$DATABASE_URL" "
        select worker.register_command('run', 'q', 'app.run', p_concurrency_limit => 1);
        select worker.enqueue('run')" >/dev/null
    local pid
    pid=$(sql "$DATABASE_URL" "select pg_backend_pid() from worker.lease_sql_tasks('q', 1, null, '{0}', true)")
    [[ $("$PGKIN" slots --holders) == *"run "*" session $pid "* ]]
}

@test "slots: an escape sequence in a key does not reach the terminal" {
    sql "$DATABASE_URL" "
        set client_min_messages = warning;
        select worker.register_command('call', 'r', p_kind => 'native',
                                       p_group_concurrency_limit => 1);
        select worker.enqueue('call', p_group_key => e'\\e[31mred')" >/dev/null
    sql "$DATABASE_URL" "select task_id from queues.exchange('r', 1)" >/dev/null
    run -0 "$PGKIN" slots --holders
    [[ $output == *red* ]]
    [[ $output != *$'\e'* ]]
}

@test "slots: wrong usage" {
    fails 2 'unexpected argument "x"' '*' "$PGKIN" slots x
    fails 2 'unknown option "--state"' '*' "$PGKIN" slots --state failed
}
