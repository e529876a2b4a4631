#!/usr/bin/env bats
# SPDX-License-Identifier: Apache-2.0
#
# `pgkin bench` with tiny sizes: that every scenario runs, counts right, reports
# what it promises and cleans up. How fast it is, is not tested here.

bats_require_minimum_version 1.5.0
load ../lib/system

# bench ARGUMENTS...: in a throw-away database; the report in $output.
bench()
{
    run --separate-stderr timeout 120 "$PGKIN" bench "$@" --create --json -d "$PGKIN_TEST_URL"
    echo "$output$stderr" >&2
    [ "$status" -eq 0 ]
    [ -z "$stderr" ]
    [ "${#lines[@]}" -eq 1 ]
}

# is EXPRESSION: of the report, with its keys as columns, in SQL.
is()
{
    local result
    result=$(sql "$PGKIN_TEST_URL" "
        select $1 from jsonb_to_record(\$report\$$output\$report\$) as r(
          scenario text, tasks bigint, seconds float, tasks_per_s float,
          server_us_per_task float, wal_bytes_per_task float, commits_per_task float,
          p50_ms float, p95_ms float, p99_ms float, baseline_tasks_per_s float, ratio float,
          first_tasks_per_s float, last_tasks_per_s float, holder text,
          first_p50_ms float, last_p50_ms float, first_p99_ms float, last_p99_ms float,
          copy_tasks_per_s float, async_tasks_per_s float, async_baseline_tasks_per_s float,
          few bigint, many bigint, scheduled_ratio float, pending_ratio float,
          scheduled_single_ratio float, pending_single_ratio float,
          history bigint, history_ratio float, history_single_ratio float,
          \"limit\" int, limited_tasks bigint, commands int, max_ms float,
          no_limit_statements int, one_limited_statements int, all_limited_statements int,
          no_limit_seq_scans int, one_limited_seq_scans int, all_limited_seq_scans int,
          no_limit_claimed int, one_limited_claimed int, all_limited_claimed int)") || return
    [ "$result" = t ] || { echo "not so: $1" >&2 && false; }
}

# has KEY...: the report has them, and as numbers.
has()
{
    local key
    for key; do
        grep -qE "\"$key\":-?[0-9]" <<<"$output" || { echo "no $key" >&2 && return 1; }
    done
}

no_throw_away_is_left()
{
    [ "$(sql "$PGKIN_TEST_URL" "select count(*) from pg_database
                                where datname = 'pgkin_bench_$1'")" = 0 ]
}

@test "drain: bulk, with the baseline" {
    bench drain --tasks 3000 --batch 100 --baseline
    is "scenario = 'drain' and tasks = 3000 and seconds > 0 and tasks_per_s > 0"
    is "abs(ratio - tasks_per_s / baseline_tasks_per_s) < 0.01 * ratio"
    is "server_us_per_task > 0 and wal_bytes_per_task > 50"
    # One commit per batch, and a few that find nothing or maintain.
    is "commits_per_task between 30 / 3000.0 and 0.1"
}

@test "drain: one by one, several rounds, under a dump" {
    bench drain --tasks 1000 --batch 50 --single --holder dump --rounds 2 --baseline \
        --payload-bytes 200 --sync-commit off
    is "tasks = 2000 and holder = 'dump' and baseline_tasks_per_s > 0"
    has first_tasks_per_s last_tasks_per_s
}

@test "enqueue: bulk" {
    bench enqueue --tasks 2000 --rounds 2 --baseline
    is "scenario = 'enqueue' and tasks = 4000 and commits_per_task = 1 / 2000.0"
    has tasks_per_s server_us_per_task wal_bytes_per_task copy_tasks_per_s baseline_tasks_per_s
}

@test "enqueue: one by one, waiting for the disk and not" {
    bench enqueue --single --tasks 200 --rounds 2 --connections 3 --baseline
    is "tasks = 400 and commits_per_task = 1"
    has tasks_per_s baseline_tasks_per_s async_tasks_per_s async_baseline_tasks_per_s

    bench enqueue --single --seconds 1 --rounds 1 --sync-commit off
    is "tasks > 100 and async_tasks_per_s is null and baseline_tasks_per_s is null"
}

@test "latency" {
    bench latency --seconds 2 --rate 200
    is "scenario = 'latency' and tasks = 400 and seconds between 1.9 and 60"
    is "p50_ms >= 0 and p50_ms <= p95_ms and p95_ms <= p99_ms"
    has p50_ms p95_ms p99_ms server_us_per_task wal_bytes_per_task commits_per_task
}

@test "held-snapshot: every kind of holder" {
    local holder
    for holder in read write dump; do
        bench held-snapshot --holder "$holder" --seconds 1 --rate 300
        is "scenario = 'held-snapshot' and tasks = 300 and holder = '$holder'"
        has first_p50_ms last_p50_ms first_p99_ms last_p99_ms
    done
}

@test "backlog and history" {
    bench backlog --tasks 2000 --batch 10
    is "scenario = 'backlog' and few = 20 and many = 2000"
    has pending_ratio scheduled_ratio pending_single_ratio scheduled_single_ratio

    bench history --tasks 3000 --batch 10
    is "scenario = 'history' and history = 3000"
    has history_ratio history_single_ratio
}

@test "concurrency: no limit, all limited" {
    bench concurrency-baseline --tasks 400
    is "scenario = 'concurrency-baseline' and tasks = 400 and baseline_tasks_per_s is null"
    has seconds tasks_per_s server_us_per_task p50_ms p95_ms p99_ms

    bench concurrency-enabled --tasks 400 --rounds 2 --baseline
    is "scenario = 'concurrency-enabled' and tasks = 800 and \"limit\" = 10"
    is "p50_ms > 0 and p50_ms <= p95_ms and p95_ms <= p99_ms and p99_ms <= max_ms"
    is "abs(ratio - tasks_per_s / baseline_tasks_per_s) < 0.01 * ratio"
    # Never more than the limit in hand: so many calls it takes at least.
    bench concurrency-enabled --tasks 400 --batch 100 --connections 1
    is "commits_per_task >= 40 / 400.0"
    has seconds tasks_per_s server_us_per_task p50_ms p95_ms p99_ms
}

@test "concurrency: one limited of a hundred commands, and a high limit" {
    bench concurrency-mixed --tasks 2000 --baseline
    is "scenario = 'concurrency-mixed' and tasks = 2000 and limited_tasks = 20 and commands = 100"
    is "tasks_per_s > 0 and baseline_tasks_per_s > 0"

    bench concurrency-high --tasks 2000 --baseline --single --holder read
    is "scenario = 'concurrency-high' and tasks = 2000 and \"limit\" = 500 and holder = 'read'"
    has p99_ms ratio
}

@test "concurrency: the plans of a claim" {
    local dir=$BATS_TEST_TMPDIR/plans file
    bench concurrency-plans --tasks 2000 --batch 50 --plans "$dir"
    is "scenario = 'concurrency-plans' and tasks = 2000"
    is "no_limit_claimed = 50 and one_limited_claimed = 50 and all_limited_claimed = 50"
    is "no_limit_statements > 5 and no_limit_statements < one_limited_statements"
    is "no_limit_seq_scans + one_limited_seq_scans + all_limited_seq_scans = 0"
    for file in no-limit one-limited all-limited; do
        grep -q '^-- PL/pgSQL function queues.take' "$dir/$file.txt"
        grep -q 'Index .*Scan using ready_claim_idx' "$dir/$file.txt"
        grep -q 'Buffers: ' "$dir/$file.txt"
    done
    # With no limit the claim does not so much as look at slots.
    run ! grep -q 'slot_' "$dir/no-limit.txt"
    grep -q 'slot_group_pkey' "$dir/all-limited.txt"

    run --separate-stderr "$PGKIN" bench concurrency-plans --tasks 10 --create \
        --plans "$dir/not/there" -d "$PGKIN_TEST_URL"
    [ "$status" -eq 1 ]
    [[ $stderr == *"cannot make the directory"* ]]
}

@test "a table for people, and progress when asked for" {
    run --separate-stderr "$PGKIN" bench drain --tasks 500 --create --progress \
        -d "$PGKIN_TEST_URL"
    [ "$status" -eq 0 ]
    [[ $output =~ scenario\ +drain ]]
    [[ $output =~ tasks\ +500 ]]
    [[ $stderr == *"drain: "* ]]
}

@test "an existing database: installs the schema, leaves nothing unfinished" {
    URL=$(new_database)
    run -0 --separate-stderr "$PGKIN" bench backlog --tasks 500 --batch 2 --json -d "$URL"
    [ "$(sql "$URL" "select count(*) from queues.task")" -gt 1000 ]
    [ "$(sql "$URL" "select count(*) from queues.task t
                     where not exists (select from queues.task_completed c
                                       where c.task_id = t.task_id)")" = 0 ]
    [ "$(sql "$URL" "select (select count(*) from queues.ready) +
                            (select count(*) from queues.timer) +
                            (select count(*) from queues.lease_open) +
                            (select count(*) from worker.command_registry
                              where queue = 'bench') +
                            (select count(*) from pg_namespace
                              where nspname = 'pgkin_bench')")" = 0 ]
    # Its own old tasks are no reason to refuse.
    run -0 --separate-stderr "$PGKIN" bench concurrency-mixed --tasks 500 --json -d "$URL"
    run -0 --separate-stderr "$PGKIN" bench drain --tasks 500 --json -d "$URL"
    [ "$(sql "$URL" "select (select count(*) from worker.command_registry
                              where queue = 'bench') +
                            (select count(*) from queues.slot_group)")" = 0 ]
}

@test "refuses where others have tasks, unless forced" {
    URL=$(migrated_database)
    sql "$URL" "insert into worker.command_registry (command, kind) values ('other', 'native')
                on conflict do nothing;
                select queues.enqueue('other', '{}')"
    run --separate-stderr "$PGKIN" bench drain --tasks 100 -d "$URL"
    [ "$status" -eq 1 ]
    [[ $stderr == *"tasks of others"*"hint: "*"--create"* ]]
    [ "$(sql "$URL" "select count(*) from queues.task")" = 1 ]
    run -0 --separate-stderr "$PGKIN" bench drain --tasks 100 --force -d "$URL"
    [ "$(sql "$URL" "select count(*) from queues.ready")" = 1 ]
}

@test "one benchmark at a time in a database" {
    URL=$(migrated_database)
    in_background "$BATS_TEST_TMPDIR/psql" psql -X -d "$URL" \
        -c "select pg_advisory_lock(1885825643, 1)" -c "select pg_sleep(60)"
    wait_until 10 test "$(sql "$URL" "select 1")" = 1
    wait_until 10 lock_is_held
    run --separate-stderr "$PGKIN" bench drain --tasks 100 -d "$URL"
    [ "$status" -eq 1 ]
    [[ $stderr == *"another benchmark runs"* ]]
}

lock_is_held()
{
    [ "$(sql "$URL" "select count(*) from pg_locks where locktype = 'advisory' and granted
                     and classid = 1885825643 and database =
                       (select oid from pg_database where datname = current_database())")" = 1 ]
}

@test "an interrupt ends it and drops the throw-away database" {
    in_background "$BATS_TEST_TMPDIR/log" "$PGKIN" bench latency --seconds 100 --rate 100 \
        --create -d "$PGKIN_TEST_URL"
    local pid=${background_pid:?}
    wait_until 20 works_in "pgkin_bench_$pid"
    kill -INT "$pid"
    fails "$pid"
    [[ $(cat "$BATS_TEST_TMPDIR/log") == "pgkin: interrupted" ]]
    no_throw_away_is_left "$pid"
}

# fails PID: a background process ends with status 1.
fails()
{
    local status=0
    wait_until 20 is_gone "$1"
    wait "$1" || status=$?
    [ "$status" = 1 ]
}

works_in()
{
    [ "$(sql "$(url_of "$1")" "select count(*) from queues.task_completed")" -gt 0 ]
}

@test "a lost session ends it, and the throw-away database goes" {
    in_background "$BATS_TEST_TMPDIR/log" "$PGKIN" bench latency --seconds 100 --rate 100 \
        --create -d "$PGKIN_TEST_URL"
    local pid=${background_pid:?}
    wait_until 20 works_in "pgkin_bench_$pid"
    sql "$PGKIN_TEST_URL" "select pg_terminate_backend(pid) from pg_stat_activity
                           where application_name = 'pgkin bench'
                             and datname = 'pgkin_bench_$pid'" >/dev/null
    fails "$pid"
    grep -qE '^pgkin: .*(terminating connection|session was lost|not sent)' \
        "$BATS_TEST_TMPDIR/log"
    no_throw_away_is_left "$pid"
}

@test "wrong usage" {
    run --separate-stderr "$PGKIN" bench
    [ "$status" -eq 2 ]
    [[ $stderr == *"no scenario given"* ]]
    run --separate-stderr "$PGKIN" bench drian
    [ "$status" -eq 2 ]
    [[ $stderr == *"unknown scenario \"drian\""*"did you mean \"drain\"?"* ]]
    run --separate-stderr "$PGKIN" bench drain --holder me -d "$PGKIN_TEST_URL"
    [ "$status" -eq 2 ]
    run --separate-stderr "$PGKIN" bench drain --sync-commit maybe -d "$PGKIN_TEST_URL"
    [ "$status" -eq 2 ]
    run --separate-stderr "$PGKIN" bench drain --batch 0 -d "$PGKIN_TEST_URL"
    [ "$status" -eq 2 ]
    [[ $stderr == *"--batch must be from 1"* ]]
    run -0 "$PGKIN" bench --help
    [[ $output == *"held-snapshot"* ]]
}
