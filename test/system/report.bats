#!/usr/bin/env bats
# SPDX-License-Identifier: Apache-2.0
#
# Reports: right although sessions die, and as cheap with many tasks as with few.
# PGKIN_TEST_SCALE=50 makes it 5,000,000 tasks.

bats_require_minimum_version 1.5.0
load ../lib/system
load ../lib/queue

SCALE=${PGKIN_TEST_SCALE:-1}

setup()
{
    URL=$(migrated_database)
}

is_sql()
{
    local got
    got=$(sql "$URL" "$2") || return
    [ "$got" = "$1" ] || {
        echo "expected: $1"
        echo "got: $got"
        return 1
    } >&2
}

# Runs what there is until its session is ended.
runner()
{
    while [ ! -e "$BATS_TEST_TMPDIR/over" ]; do
        PGAPPNAME=runner psql -X -q -d "$URL" -c "call worker.process_tasks(p_queue => 'app')" >/dev/null 2>&1 || true
    done
}

@test "what sessions had ended when they died is counted, and counted once" {
    sql "$URL" "
        set client_min_messages = warning;
        create schema app;
        create procedure app.work(payload jsonb) language plpgsql as \$\$
        begin
          perform pg_sleep(0.001);
          if (payload ->> 'n')::int % 10 = 0 then
            raise exception 'no';
          end if;
        end \$\$;
        select worker.register_command('work', 'app', 'app.work', p_max_attempts => 2,
                                       p_backoff_initial => '0', p_max_leases => 10000);
        update worker.queue_registry set top_concurrency = null where queue = 'app';
        select from worker.enqueue_many('work', array(select jsonb_build_object('n', n)
                                                        from generate_series(1, 2000) n))" >/dev/null
    local i ended=0
    for i in 1 2 3; do
        in_background "$BATS_TEST_TMPDIR/runner$i" runner
    done
    until [ "$(sql "$URL" "select count(*) = 2000 from queues.task_completed")" = t ]; do
        ended=$((ended + $(sql "$URL" "
            select count(pg_terminate_backend(pid)) from (
              select pid from pg_stat_activity
               where datname = current_database() and application_name = 'runner' and state = 'active'
               order by random() limit 1) s")))
        sql "$URL" "select queues.maintain()" >/dev/null
        sleep 0.1
    done
    touch "$BATS_TEST_TMPDIR/over"
    wait_until 30 is_sql 0 "select count(*) from pg_stat_activity
        where datname = current_database() and application_name = 'runner'"
    wait_until 30 is_sql 0 "select worker.reset_abandoned_processing_tasks() + (select count(*) from queues.lease_open)"
    [ "$ended" -gt 2 ]
    is_sql "2000|1800|200|200" "select total_completed, total_succeeded, total_failed, total_retries
        from worker.report where queue = 'app'"
    is_sql "" "select queue from worker.report r where queue = 'app' and total_recovered
        <> (select count(*) from queues.attempt_end where outcome = 'lost')"
}

# report_buffers: how many buffers a report touches, in a session that has
# reported before.
report_buffers()
{
    psql -X -q -A -t -v ON_ERROR_STOP=1 -d "$URL" -c "select count(*) from worker.report" \
        -c "explain (analyze, buffers, timing off, costs off) select * from worker.report" |
        sed -n '/Planning/q; s/.*shared hit=\([0-9]*\)\( read=\([0-9]*\)\)\?.*/\1 \3/p' |
        awk 'NR == 1 { print $1 + $2 }'
}

# fill N: N tasks that have ended, N that wait.
fill()
{
    sql "$URL" "
        set work_mem = '64MB';
        with added as (
          insert into queues.task (task_type, payload, enqueued_at, scheduled_at, priority, queue_id, lane)
            select 'sms', '{}', now(), now(), 0, 1, 2 from generate_series(1, $1) returning task_id)
        insert into queues.task_completed (task_id, completed_at, queue_id, state, attempt)
          select task_id, now(), 1, 'completed', 1 from added;
        with added as (
          insert into queues.task (task_type, payload, enqueued_at, scheduled_at, priority, queue_id, lane)
            select 'sms', '{}', now(), now(), 0, 1, 2 from generate_series(1, $1) returning task_id)
        insert into queues.ready (queue_id, lane, generation, priority, run_at, first_id, task_ids)
          select 1, 2, 1, 0, now(), task_id, array[task_id] from added;
        analyze queues.ready"
}

@test "a report costs the same with many tasks as with few, and estimates well" {
    local few many
    fill 2000
    few=$(report_buffers)
    fill $((50000 * SCALE))
    many=$(report_buffers)
    echo "buffers: $few with few, $many with many"
    [ "$many" -lt $((few * 12 / 10 + 100)) ]
    is_sql t "select backlog between 0.9 * $((50000 * SCALE + 2000)) and 1.1 * $((50000 * SCALE + 2000))
                     and not backlog_exact from worker.report where queue = 'default'"
    explained "$URL" "select * from worker.report" >"$BATS_TEST_TMPDIR/plans"
    grep -q 'ready_claim_idx' "$BATS_TEST_TMPDIR/plans"
    # The plan of the estimate is not executed.
    run ! grep -E 'Seq Scan on (task|task_completed|lease|attempt_end|error|waiting|timer|lease_open|stat_raw) ' \
        "$BATS_TEST_TMPDIR/plans"
    # Events of one task (the other tables are empty here), and of the newest.
    explained "$URL" "analyze queues.task, queues.task_completed" \
        "select * from worker.events where task_id = 4711" >"$BATS_TEST_TMPDIR/plans"
    run ! grep -E 'Seq Scan on (task|task_completed) ' "$BATS_TEST_TMPDIR/plans"
    explained "$URL" "select * from worker.recent_events(100)" >"$BATS_TEST_TMPDIR/plans"
    run ! grep -E 'Seq Scan on (task|task_completed|lease|attempt_end|error) ' "$BATS_TEST_TMPDIR/plans"
}

@test "statistics do not grow dear while a snapshot is held" {
    sql "$URL" "select queues.enqueue('sms', '{}') from generate_series(1, 300)" >/dev/null
    hold "$URL" "$BATS_TEST_TMPDIR/held" "begin isolation level repeatable read; select count(*) from queues.task"
    local few many
    few=$(report_buffers)
    # A row for each of 3,000 leases, of an hour ago, as if maintained all along.
    sql "$URL" "
        insert into worker.stat_raw select now() - interval '1 hour' - n * interval '1 ms', 1, 1, 0, 0, 0, 0
          from generate_series(1, 3000) n" >/dev/null
    # One round sums up, the next knows that it has committed.
    sql "$URL" "select queues.maintain()" >/dev/null
    sql "$URL" "select queues.maintain()" >/dev/null
    is_sql 0 "select count(*) from worker.stat_raw"
    many=$(report_buffers)
    echo "buffers: $few before, $many after"
    [ "$many" -lt $((few + 15)) ]
    is_sql 3000 "select total_succeeded from worker.report where queue = 'default'"
}
