#!/usr/bin/env bats
# SPDX-License-Identifier: Apache-2.0
#
# `pgkin cancel`, `retry`, `pause` and `resume`: they act, or say why there is
# nothing to do.

bats_require_minimum_version 1.5.0
load ../lib/system
load ../lib/cli

setup()
{
    cli_database
}

@test "cancel: a pending task" {
    "$PGKIN" enqueue run
    run --separate-stderr "$PGKIN" cancel 1 --reason 'not wanted'
    [ "$status" -eq 0 ]
    [ "$output" = 'task 1 is canceled' ]
    [ "$(sql "$DATABASE_URL" 'select state, error from worker.tasks')" = 'canceled|not wanted' ]
    fails 1 'task 1 has ended already: it is canceled' '' "$PGKIN" cancel 1
}

@test "cancel: a running task, twice" {
    "$PGKIN" enqueue run
    sql "$DATABASE_URL" "select worker.register_worker('mine', 'here')"
    sql "$DATABASE_URL" "select task_id from queues.exchange('q', 1, p_worker_id => 1, p_lanes => '{0}')"
    run --separate-stderr "$PGKIN" cancel 1
    [ "$status" -eq 0 ]
    [ "$output" = 'task 1 was asked to stop' ]
    fails 1 'task 1 was asked to stop already' '' "$PGKIN" cancel 1
}

@test "cancel: nothing to do" {
    "$PGKIN" enqueue run
    work
    fails 1 'task 1 has ended already: it is completed' '' "$PGKIN" cancel 1
    fails 1 'there is no task 2' '*' "$PGKIN" cancel 2
    fails 2 'which task? its id is missing' '*' "$PGKIN" cancel
    fails 2 '"one" is not the id of a task' '*' "$PGKIN" cancel one
}

@test "retry" {
    has_function 'worker.retry(bigint)' || skip 'worker.retry is not there'
    "$PGKIN" enqueue run '{"fail": "once"}'
    fails 1 'task 1 is pending' 'only a failed or canceled task *' "$PGKIN" retry 1
    work
    run --separate-stderr "$PGKIN" retry 1
    [ "$status" -eq 0 ]
    [ "$output" = 'task 1 is pending again' ]
    [ "$(sql "$DATABASE_URL" 'select state from worker.tasks where id = 1')" = pending ]
    fails 1 'there is no task 9' '*' "$PGKIN" retry 9
    "$PGKIN" enqueue later
    work
    fails 1 'task 2 is completed' 'only a failed or canceled task *' "$PGKIN" retry 2
    fails 2 'which task? its id is missing' '*' "$PGKIN" retry
}

@test "pause and resume" {
    has_function 'worker.pause(text, interval)' || skip 'worker.pause is not there'
    run --separate-stderr "$PGKIN" pause q
    [ "$status" -eq 0 ]
    [ "$output" = 'queue q is paused' ]
    fails 1 'queue "q" is paused already' '' "$PGKIN" pause q
    "$PGKIN" enqueue run
    work
    [ "$(sql "$DATABASE_URL" 'select state from worker.tasks where id = 1')" = pending ]
    run --separate-stderr "$PGKIN" resume q
    [ "$status" -eq 0 ]
    [ "$output" = 'queue q is resumed' ]
    fails 1 'queue "q" is not paused' '' "$PGKIN" resume q
    work
    [ "$(sql "$DATABASE_URL" 'select state from worker.tasks where id = 1')" = completed ]
}

@test "pause for some time" {
    has_function 'worker.pause(text, interval)' || skip 'worker.pause is not there'
    export PGOPTIONS='-c worker.fake_now=2030-01-01T12:00:00Z' PGTZ=UTC
    [ "$("$PGKIN" pause q 90)" = 'queue q is paused until 2030-01-01 12:01:30+00' ]
    [ "$("$PGKIN" pause q 10m)" = 'queue q is paused until 2030-01-01 12:10:00+00' ]
    export PGOPTIONS='-c worker.fake_now=2030-01-01T12:10:00Z'
    fails 1 'queue "q" is not paused' '' "$PGKIN" resume q
}

@test "pause and resume: wrong queue, wrong time" {
    fails 1 'there is no queue "nowhere"' 'pgkin status lists the queues' "$PGKIN" pause nowhere
    fails 1 'there is no queue "nowhere"' 'pgkin status lists the queues' "$PGKIN" resume nowhere
    fails 1 'queue "q" is not paused' '' "$PGKIN" resume q
    fails 2 'which queue? its name is missing' '*' "$PGKIN" pause
    fails 2 'which queue? its name is missing' '*' "$PGKIN" resume
    for seconds in 0 x 5x 1e9; do
        fails 2 "\"$seconds\" is not a number of seconds" '*' "$PGKIN" pause q "$seconds"
    done
}
