#!/usr/bin/env bats
# SPDX-License-Identifier: Apache-2.0
#
# The durable queue under many clients, under old snapshots and locks, in
# another database, and as the planner sees it. PGKIN_TEST_SCALE multiplies the
# number of tasks.

load ../lib/system
load ../lib/queue

scale=${PGKIN_TEST_SCALE:-1}

setup()
{
    url=$(migrated_database)
}

# ------------------------------------------------------------------- clients

# One at a time; in batches that cut bundles; and claims that are thrown away.
write_client_scripts()
{
    cat >"$BATS_TEST_TMPDIR/single.sql" <<'END'
select coalesce(task_id, 0) as id from queues.dequeue_next_available_task() \gset
\if :id > 0
insert into seen values (:id);
select queues.complete_task(:id);
\endif
END
    cat >"$BATS_TEST_TMPDIR/batch.sql" <<'END'
with got as materialized (
  select * from queues.exchange('default', 7, p_done => array[:leases]::bigint[])),
noted as (insert into seen select task_id from got where event = 'claimed')
select coalesce(string_agg(distinct lease_id::text, ',') filter (where event = 'claimed'), '0') as leases
  from got \gset
END
    cat >"$BATS_TEST_TMPDIR/rollback.sql" <<'END'
begin;
select count(*) from queues.exchange('default', 5);
rollback;
END
}

@test "16 clients and one that rotates without pause: no task twice, none lost" {
    local n=$((2500 * scale)) transactions=$((150 * scale)) results rotator
    write_client_scripts
    sql "$url" "create table seen (task_id bigint)"
    sql "$url" "select count(queues.enqueue('email', '{}')) from generate_series(1, $n / 2)" >/dev/null
    sql "$url" "select count(*) from queues.enqueue_many('sms', array_fill('{}'::jsonb, '{$n}'))" >/dev/null
    sql "$url" "select count(queues.add_task('email', '{}', i % 5)) from generate_series(1, $n / 2) i" >/dev/null
    in_background "$BATS_TEST_TMPDIR/rotator.log" psql -X -q -v ON_ERROR_STOP=1 -d "$url" -c "
        do \$\$ begin
          loop
            perform queues.rotate_queue('default');
            perform queues.maintain();
            commit;
            exit when exists (select from pg_class where relname = 'stopped');
          end loop;
        end \$\$"
    # shellcheck disable=SC2154 # set by in_background
    rotator=$background_pid
    run queue_pgbench -c 16 -j 2 -t "$transactions" -D leases=0 \
        -f "$BATS_TEST_TMPDIR/single.sql@4" -f "$BATS_TEST_TMPDIR/batch.sql@2" \
        -f "$BATS_TEST_TMPDIR/rollback.sql@1" "$url"
    echo "$output"
    [ "$status" -eq 0 ]
    [[ $output != *aborted* ]]
    # What is left, and what the clients held when they had done their share.
    sql "$url" "
        do \$\$ begin
          for i in 1..1000 loop
            insert into seen select task_id from queues.exchange('default', 1000);
            exit when not found;
          end loop;
        end \$\$;
        select from queues.exchange('default', 0, p_done => array(select lease_id from queues.lease_open));
        create table stopped ()"
    wait_until 20 is_gone "$rotator"
    cat "$BATS_TEST_TMPDIR/rotator.log"
    results=$(sql "$url" "
        select (select count(*) from queues.task), count(*), count(distinct task_id),
               (select count(*) from queues.task_completed where state = 'completed'),
               (select count(*) from queues.ready) + (select count(*) from queues.lease_open)
                 + (select count(*) from queues.attempt_end),
               pg_sequence_last_value('queues.q1_generation') > 10
          from seen")
    echo "tasks, seen, distinct, completed, left, rotated: $results"
    [ "$results" = "$((2 * n))|$((2 * n))|$((2 * n))|$((2 * n))|0|t" ]
}

@test "a producer that commits late, claims all the while: found in two seconds" {
    local producer
    sql "$url" "create table seen (task_id bigint)"
    hold_until "$url" "$BATS_TEST_TMPDIR/late.log" go \
        "begin; select queues.enqueue('email', '{\"late\": true}')"
    producer=$background_pid
    sql "$url" "select count(queues.enqueue('email', '{}')) from generate_series(1, 3000)" >/dev/null
    for _ in 1 2 3; do
        sql "$url" "select queues.rotate_queue('default')" >/dev/null
        sql "$url" "select queues.maintain()" >/dev/null
    done
    sql "$url" "select count(*) from queues.exchange('default', 1500)" >/dev/null
    sql "$url" "create table go ()"
    wait_until 10 is_gone "$producer"
    found()
    {
        sql "$url" "select queues.maintain()" >/dev/null
        sql "$url" "insert into seen select task_id from queues.exchange('default', 100)" &&
            [ "$(sql "$url" "select count(*) from seen join queues.task using (task_id) where payload ? 'late'")" = 1 ]
    }
    wait_until 2 found
}

# ---------------------------------------------------------- snapshots, locks

# churn URL TASKS: enqueues single tasks and claims and ends them, ten at a time,
# each step a transaction of its own, then does what a worker does now and then.
churn()
{
    cat >"$BATS_TEST_TMPDIR/churn.sql" <<'END'
select count(queues.enqueue('email', '{}')) from generate_series(1, 10);
with got as materialized (
  select * from queues.exchange('default', 10, p_done => array[:leases]::bigint[]))
select coalesce(string_agg(distinct lease_id::text, ',') filter (where event = 'claimed'), '0') as leases
  from got \gset
END
    queue_pgbench -c 1 -t $(($2 / 10)) -D leases=0 -f "$BATS_TEST_TMPDIR/churn.sql" "$1" >/dev/null 2>&1 &&
        sql "$1" "select queues.rotate_queue('default')" >/dev/null &&
        sql "$1" "select queues.maintain()" >/dev/null
}

@test "claims stay flat while a snapshot is held, and would not without rotation" {
    local n=$((8000 * scale)) first last without
    churn "$url" 200
    first=$(claim_buffers "$url")
    hold "$url" "$BATS_TEST_TMPDIR/holder.log" "begin isolation level repeatable read; select count(*) from queues.task"
    churn "$url" $((n / 2))
    churn "$url" $((n / 2))
    last=$(claim_buffers "$url")

    url=$(migrated_database)
    churn "$url" 200
    hold "$url" "$BATS_TEST_TMPDIR/holder2.log" "begin isolation level repeatable read; select count(*) from queues.task"
    hold "$url" "$BATS_TEST_TMPDIR/lock.log" "select pg_advisory_lock(queues.maintenance_key(1))"
    churn "$url" "$n"
    without=$(claim_buffers "$url")
    echo "buffers of a claim: $first at first, $last after $n tasks, $without without rotation"
    ((first > 0 && last <= 2 * first))
    ((2 * without >= 5 * last))
}

@test "locks and a snapshot as pg_dump holds them stop nothing" {
    local ended
    sql "$url" "select count(*) from queues.enqueue_many('email', array_fill('{}'::jsonb, '{500}'))" >/dev/null
    hold "$url" "$BATS_TEST_TMPDIR/holder.log" "
        begin isolation level repeatable read;
        do \$\$ declare v text; begin
          for v in select oid::regclass from pg_class
                    where relkind = 'r' and relnamespace in ('queues'::regnamespace, 'worker'::regnamespace) loop
            execute 'lock table ' || v || ' in access share mode';
          end loop;
        end \$\$"
    # Whatever waited would run into these limits.
    ended=$(PGOPTIONS='-c lock_timeout=2s -c statement_timeout=20s' psql -X -q -A -t -v ON_ERROR_STOP=1 -d "$url" <<'END'
\o /dev/null
insert into queues.staging (task_type, payload)
  select 'sms', jsonb_build_object('a', repeat('x', 1000)) from generate_series(1, 2000);
select queues.rotate_queue('default');
select queues.maintain();
select queues.enqueue('email', '{}');
select task_id from queues.dequeue_next_available_task() \gset
select queues.complete_task(:task_id);
select lease_id from queues.exchange('default', 2500) limit 1 \gset
select * from queues.exchange('default', 500, p_done => array[:lease_id]);
select queues.rotate_queue('default');
select queues.maintain();
select queues.remove_expired();
\o
select count(*) from queues.task_completed;
END
    )
    [ "$ended" = 2501 ]
    # The staging table could not be emptied meanwhile; it is afterwards.
    [ "$(sql "$url" "select pg_relation_size('queues.staging') > 1048576")" = t ]
    stop_background
    staging_is_empty()
    {
        sql "$url" "select queues.maintain()" >/dev/null &&
            [ "$(sql "$url" "select pg_relation_size('queues.staging')")" = 0 ]
    }
    wait_until 10 staging_is_empty
}

# ------------------------------------------------------------ another database

@test "a dump restored elsewhere goes on working" {
    local copy state order
    sql "$url" "
        update worker.command_registry set max_attempts = 5, backoff_initial = '1 hour' where command = 'sms';
        insert into worker.queue_registry (queue, top_concurrency) values ('other', null);
        select worker.register_worker('w');
        select queues.enqueue('email', '{\"n\": 1}');
        select count(*) from queues.enqueue_many('email', array_fill('{\"n\": 2}'::jsonb, '{150}'));
        select queues.rotate_queue('default');
        select queues.enqueue('email', '{\"n\": 3}');
        select queues.rotate_queue('default');
        select queues.enqueue('email', '{\"n\": 4}', now() + interval '1 day');
        select queues.enqueue('sms', '{\"n\": 5}', '2020-01-01')" >/dev/null
    sql "$url" "select count(*) from queues.exchange('default', 2);
                select count(*) from queues.exchange('default', 3, 1);
                select count(*) from queues.exchange('default', 5);
                select count(*) from queues.exchange('default', 0, p_done => '{3}');
                select event from queues.exchange('default', 0, p_lease_ids => '{1}', p_task_ids => array[
                  (select task_id from queues.task where task_type = 'sms')], p_outcomes => '{failed}')" >/dev/null
    copy=$(new_database)
    pg_dump -d "$url" >"$BATS_TEST_TMPDIR/dump.sql"
    psql -X -q -v ON_ERROR_STOP=1 -d "$copy" -f "$BATS_TEST_TMPDIR/dump.sql" >/dev/null

    # The same is held, done and to be done, in the same order.
    state="select (select count(*) from queues.task), (select count(*) from queues.task_completed),
                  (select array_agg(task_id order by task_id) from queues.task_lease where outcome is null),
                  (select count(*) from queues.timer), (select max(live) from queues.generation_ledger)"
    [ "$(sql "$copy" "$state")" = "$(sql "$url" "$state")" ]
    order="begin; select task_id, attempt from queues.exchange('default', 1000); rollback"
    [ "$(sql "$copy" "$order" | wc -l)" -eq 143 ]
    [ "$(sql "$copy" "$order")" = "$(sql "$url" "$order")" ]

    # And everything still works there.
    [ "$(sql "$copy" "select queues.complete_task(1, 1), queues.complete_task(1, 1)")" = "t|f" ]
    [ "$(sql "$copy" "begin; set local worker.fake_now = '2090-01-01';
                      select queues.maintain() ->> 'recovered'; rollback")" = 3 ]
    run sql "$copy" "delete from queues.task"
    [[ $output == *'never changed'* ]]
    sql "$copy" "insert into queues.staging (task_type) values ('email')"
    # A minute later the worker is known to be gone; its three tasks come back.
    sql "$copy" "select queues.rotate_queue('default');
                 select set_config('worker.fake_now', (now() + interval '1 minute')::text, false);
                 select queues.maintain()" >/dev/null
    sql "$copy" "insert into worker.queue_registry (queue) values ('new')"
    [ "$(sql "$copy" "select count(*) from queues.exchange('default', 1000)")" = 147 ]
    sql "$copy" "select from queues.exchange('default', 0, p_done => array(select lease_id from queues.lease_open))"
    [ "$(sql "$copy" "select count(*) from queues.ready")" = 0 ]
    [ "$(sql "$copy" "set worker.fake_now = '2090-01-01'; select count(*) from queues.exchange('default', 1000)")" = 2 ]
}

# ---------------------------------------------------------------------- plans

# check_plans: every statement of a claim, of an exchange and of the ways to
# finish, on the tables as they are. A transaction block, so that no claim
# settles generations on the way.
check_plans()
{
    local plans bad
    plans=$(
        explained "$url" "begin" "select count(queues.enqueue('email', '{}')) from generate_series(1, 9)" \
            "select set_config('x.done', lease_id::text, true) from queues.exchange('default', 2)" \
            "select set_config('x.lease', lease_id::text, true), set_config('x.task', task_id::text, true)
               from queues.exchange('default', 2)" \
            "select * from queues.exchange('default', 500,
               p_done => array[current_setting('x.done')::bigint],
               p_lease_ids => array[current_setting('x.lease')::bigint],
               p_task_ids => array[current_setting('x.task')::bigint],
               p_outcomes => '{failed}', p_errors => '{x}')"
        explained "$url" "begin" "select queues.enqueue('email', '{}')" \
            "select queues.complete_task(task_id) from queues.dequeue_next_available_task()"
        explained "$url" "begin" "select queues.add_task('email', '{}', p_parent_id => 1)" \
            "select queues.complete_task(task_id, 0) from queues.dequeue_next_available_task()"
        explained "$url" "begin" "select queues.enqueue('email', '{}', now() + interval '1 hour')"
    )
    bad=$(bad_scans <<<"$plans")
    if [ -n "$bad" ]; then
        echo "$1:"
        echo "$bad"
        return 1
    fi
    # The claim locks by all of its index.
    grep -A 12 'limit v_limit for update skip locked' <<<"$plans" |
        grep -q 'Index Cond: ((queue_id = .*) AND (generation = .*) AND (lane = .*) AND (ROW(priority, run_at, first_id) >= ROW(.*)) AND (ROW(priority, run_at, first_id) < ROW('
}

@test "plans have index bounds on empty, fresh and large tables" {
    check_plans "empty tables"
    sql "$url" "analyze"
    check_plans "empty tables, analysed"

    url=$(migrated_database)
    sql "$url" "alter table queues.task set (autovacuum_enabled = off);
                alter table queues.ready set (autovacuum_enabled = off);
                select count(*) from queues.enqueue_many('email', array_fill('{}'::jsonb, '{50000}'));
                select count(queues.enqueue('email', '{}')) from generate_series(1, 5000);
                select count(queues.enqueue('email', '{}', now() + interval '1 day')) from generate_series(1, 2000);
                do \$\$ begin
                  for i in 1..60 loop
                    perform queues.exchange('default', 500, p_done => array(select lease_id from queues.lease_open));
                  end loop;
                end \$\$" >/dev/null
    check_plans "large tables without statistics"
    sql "$url" "vacuum analyze"
    check_plans "large tables with statistics"
}
