#!/usr/bin/env bats
# SPDX-License-Identifier: Apache-2.0
#
# `pgkin enqueue`.

bats_require_minimum_version 1.5.0
load ../lib/system
load ../lib/cli

setup()
{
    cli_database
}

task()
{
    sql "$DATABASE_URL" "select $2 from worker.tasks where id = $1"
}

@test "it prints the id, and that task is there" {
    run --separate-stderr "$PGKIN" enqueue run '{"n": 1}'
    [ "$status" -eq 0 ]
    [ "$output" = 1 ]
    [ -z "$stderr" ]
    [ "$(task 1 'command, payload, priority, state')" = 'run|{"n": 1}|0|pending' ]
    "$PGKIN" enqueue run
    [ "$(task 2 payload)" = '{}' ]
    [ "$("$PGKIN" enqueue run --json)" = '{"id":3}' ]
}

@test "the payload from standard input" {
    "$PGKIN" enqueue run - <<<'{"a": "ü\n\"quoted\""}'
    [ "$(task 1 "payload ->> 'a'")" = $'ü\n"quoted"' ]
    # Longer than what a pipe holds.
    python3 -c 'print("{\"a\": \"" + "x" * 300000 + "\"}")' | "$PGKIN" enqueue run -
    [ "$(task 2 "length(payload ->> 'a')")" = 300000 ]
    printf '{"a": 1}\0' >"$BATS_TEST_TMPDIR/zero"
    run --separate-stderr bash -c '"$1" enqueue run - <"$2"' - "$PGKIN" "$BATS_TEST_TMPDIR/zero"
    [ "$status" -eq 2 ]
    run --separate-stderr bash -c '"$1" enqueue run - </dev/null' - "$PGKIN"
    [ "$status" -eq 2 ]
}

@test "a payload is not SQL" {
    "$PGKIN" enqueue run "{\"a\": \"'); drop table queues.task; --\"}"
    [ "$(task 1 'state')" = pending ]
    fails 1 "unknown command \"run'; select 1; --\"" '*' "$PGKIN" enqueue "run'; select 1; --"
}

@test "priority and keys" {
    "$PGKIN" enqueue run --priority -5 --dedup-key k --group-key g
    [ "$(task 1 'priority, dedup_key, group_key')" = '-5|k|g' ]
    [ "$("$PGKIN" enqueue run '{"n": 2}' --dedup-key k)" = 1 ]
    [ "$(task 1 payload)" = '{}' ]
    [ "$("$PGKIN" enqueue run '{"n": 2}' --dedup-key k --merge replace)" = 1 ]
    [ "$(task 1 payload)" = '{"n": 2}' ]
    [ "$("$PGKIN" enqueue run --priority 9223372036854775807)" = 2 ]
    [ "$(task 2 priority)" = 9223372036854775807 ]
    "$PGKIN" enqueue run --order-key o
    [ "$(sql "$DATABASE_URL" 'select order_key from queues.task where task_id = 3')" = o ]
}

@test "--at" {
    export PGOPTIONS='-c worker.fake_now=2030-01-01T12:00:00Z' PGTZ=UTC
    local i=0 given expected
    while read -r given expected; do
        "$PGKIN" enqueue run --at "${given//_/ }"
        i=$((i + 1))
        [ "$(task $i scheduled_at)" = "$expected" ]
    done <<'END'
+10s 2030-01-01 12:00:10+00
+5m 2030-01-01 12:05:00+00
+2h 2030-01-01 14:00:00+00
+250ms 2030-01-01 12:00:00.25+00
+1.5d 2030-01-03 00:00:00+00
2031-02-03T04:05:06Z 2031-02-03 04:05:06+00
2031-02-03T04:05:06+02:00 2031-02-03 02:05:06+00
2031-02-03_04:05 2031-02-03 04:05:00+00
2031-02-03 2031-02-03 00:00:00+00
END
    PGTZ=America/New_York "$PGKIN" enqueue run --at 2031-02-03T04:05
    [ "$(task 10 scheduled_at)" = '2031-02-03 09:05:00+00' ]
}

@test "wrong usage enqueues nothing" {
    fails 2 'which command? its name is missing' '*--help' "$PGKIN" enqueue
    fails 2 'unexpected argument "c"' '*--help' "$PGKIN" enqueue run '{}' c
    fails 2 'option "--priority": "1.5" is not a whole number' '*' "$PGKIN" enqueue run --priority 1.5
    fails 2 'option "--priority": "99999999999999999999" *' '*' \
        "$PGKIN" enqueue run --priority 99999999999999999999
    fails 2 'option "--at": "soon" is not a time' 'times look like *' "$PGKIN" enqueue run --at soon
    fails 2 'option "--at": "10s" is not a time' 'times look like *' "$PGKIN" enqueue run --at 10s
    fails 2 'date/time field value out of range*' '*' "$PGKIN" enqueue run --at 2026-02-31
    fails 2 'invalid input syntax for type json*' '*' "$PGKIN" enqueue run '{'
    fails 2 '--merge needs --dedup-key' '*' "$PGKIN" enqueue run --merge union
    [ "$(sql "$DATABASE_URL" 'select count(*) from queues.task')" = 0 ]
}

@test "what the server refuses is said, too" {
    fails 1 'unknown command "nothing"' 'register it *' "$PGKIN" enqueue nothing
    fails 1 'a payload is a JSON object, not a JSON array' '' "$PGKIN" enqueue run '[1]'
    python3 -c 'print("{\"a\": \"" + "x" * 1100000 + "\"}")' >"$BATS_TEST_TMPDIR/big"
    fails 1 'the payload has * bytes as text, and 1048576 are allowed' '*' \
        bash -c '"$1" enqueue run - <"$2"' - "$PGKIN" "$BATS_TEST_TMPDIR/big"
}

# ---------------------------------------------------------------- --wait

waiting()
{
    local out=$BATS_TEST_TMPDIR/out
    in_background "$out" "$PGKIN" enqueue "$@" --wait
    # The id comes at once.
    wait_until 20 grep -qx '[0-9]*' "$out"
}

ended_with()
{
    local ended=0
    # shellcheck disable=SC2154 # from in_background
    wait "$background_pid" || ended=$?
    [ "$ended" -eq "$1" ]
}

@test "--wait: completed" {
    waiting run '{"n": 1}'
    work
    wait "$background_pid"
    [ "$(cat "$BATS_TEST_TMPDIR/out")" = $'1\ncompleted\n{"done": {"n": 1}}' ]
}

@test "--wait: failed, canceled" {
    waiting run '{"fail": "too late"}'
    work
    ended_with 1
    grep -qx failed "$BATS_TEST_TMPDIR/out"
    grep -q '^pgkin: task 1 failed: too late' "$BATS_TEST_TMPDIR/out"

    waiting later
    sql "$DATABASE_URL" "select worker.cancel(2, 'changed my mind')"
    ended_with 1
    grep -qx canceled "$BATS_TEST_TMPDIR/out"
    grep -qx 'pgkin: task 2 was canceled: changed my mind' "$BATS_TEST_TMPDIR/out"
}

@test "--wait follows a parent to the end of its children, and prints JSON on request" {
    in_background "$BATS_TEST_TMPDIR/out" "$PGKIN" enqueue run '{"children": 2}' --wait --json
    wait_until 20 sql_is 1 'select count(*) from queues.task'
    sql "$DATABASE_URL" 'call worker.process_tasks()'
    sql_is waiting 'select state from worker.tasks where id = 1'
    kill -0 "$background_pid"
    work
    wait "$background_pid"
    [ "$(json 'd["id"], d["state"], d["result"]["done"]' <"$BATS_TEST_TMPDIR/out")" = \
        "1 completed {'children': 2}" ]
}

sql_is()
{
    [ "$(sql "$DATABASE_URL" "$2")" = "$1" ]
}

@test "--wait: a signal ends the waiting, not the task" {
    waiting later
    kill -TERM "$background_pid"
    ended_with 1
    grep -qx 'pgkin: interrupted; task 1 goes on' "$BATS_TEST_TMPDIR/out"
    grep -qx 'hint: see it with: pgkin show 1' "$BATS_TEST_TMPDIR/out"
    sql_is pending 'select state from worker.tasks where id = 1'
}

@test "--wait: the connection is lost" {
    waiting later
    sql "$DATABASE_URL" "select count(pg_terminate_backend(pid)) from pg_stat_activity
                          where datname = current_database() and application_name = 'pgkin'"
    ended_with 1
    grep -q '^pgkin: cannot follow task 1: ' "$BATS_TEST_TMPDIR/out"
    grep -qx 'hint: the task goes on; see it with: pgkin show 1' "$BATS_TEST_TMPDIR/out"
}
