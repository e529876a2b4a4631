#!/usr/bin/env bats
# SPDX-License-Identifier: Apache-2.0
#
# Limits with many sessions at once, some of which die. PGKIN_TEST_SCALE makes it
# longer.

load ../lib/system
load ../lib/queue

SCALE=${PGKIN_TEST_SCALE:-1}

# What runs holds an advisory lock for as long as it does, whoever runs it, and
# dies with it. Each start counts them: what it sees is true at that instant.
setup()
{
    url=$(migrated_database)
    sql "$url" "
      create schema app;
      create sequence app.most minvalue 0 start 0;
      create sequence app.most_of_key minvalue 0 start 0;
      create table app.done (task_id bigint);
      create function app.count_running(p_task_id bigint) returns void language plpgsql as \$\$
      declare
        v_key int := (select substr(group_key, 2)::int from queues.task where task_id = p_task_id);
      begin
        perform pg_advisory_lock(4200, p_task_id::int), pg_advisory_lock(4300 + v_key, p_task_id::int);
        perform setval('app.most', greatest(coalesce(pg_sequence_last_value('app.most'), 0), (
          select count(*) from pg_locks l where l.locktype = 'advisory' and l.granted and l.classid = 4200
             and l.database = (select oid from pg_database where datname = current_database()))));
        perform setval('app.most_of_key', greatest(coalesce(pg_sequence_last_value('app.most_of_key'), 0), (
          select count(*) from pg_locks l where l.locktype = 'advisory' and l.granted and l.classid = 4300 + v_key
             and l.database = (select oid from pg_database where datname = current_database()))));
        perform pg_sleep(0.004);
        perform pg_advisory_unlock(4200, p_task_id::int), pg_advisory_unlock(4300 + v_key, p_task_id::int);
      end \$\$;
      create procedure app.job(payload jsonb) language plpgsql as \$\$
      begin
        perform app.count_running(worker.current_task_id());
        insert into app.done values (worker.current_task_id());
      end \$\$;
      create function app.open() returns boolean language sql as \$\$
        select count(*) > (select count(*) from queues.task_completed) from queues.task
      \$\$;
      -- A worker that runs tasks elsewhere: claims, is busy, says so.
      create procedure app.client() language plpgsql as \$\$
      declare
        v_worker bigint := worker.register_worker('client');
        v_ids bigint[];
        v_leases bigint[];
      begin
        commit;
        while app.open() loop
          perform worker.beat(v_worker);
          select array_agg(e.task_id), array_agg(e.lease_id) into v_ids, v_leases
            from queues.exchange('default', 2, v_worker, pg_backend_pid(),
                                 p_lease_ids => coalesce(v_leases, '{}'),
                                 p_task_ids => coalesce(v_ids, '{}'),
                                 p_outcomes => array(select 'completed' from unnest(v_ids))) e
           where e.event = 'claimed';
          commit;
          for i in 1..coalesce(cardinality(v_ids), 0) loop
            perform app.count_running(v_ids[i]);
            commit;
          end loop;
          if v_ids is null then
            perform pg_sleep(0.005);
          end if;
        end loop;
      end \$\$;
      create procedure app.fiber() language plpgsql as \$\$
      begin
        while app.open() loop
          call worker.process_tasks(p_queue => 'default');
          perform pg_sleep(0.005);
          commit;
        end loop;
      end \$\$;
      create procedure app.keeper() language plpgsql as \$\$
      begin
        while app.open() loop
          perform queues.maintain();
          commit;
          perform pg_sleep(0.05);
        end loop;
      end \$\$"
}

# session PROCEDURE: runs it, until it is killed. Sets $background_pid.
session()
{
    PGOPTIONS='-c client_connection_check_interval=20' \
        in_background "$BATS_TEST_TMPDIR/$1.$RANDOM" psql -X -q -v ON_ERROR_STOP=1 -d "$url" -c "call app.$1()"
}

all_done()
{
    [ "$(sql "$url" 'select app.open()')" = f ]
}

# Kills, in turn, a client by SIGKILL and a session of its server, and starts
# others, while there is work.
kill_some()
{
    local victim pids=("$@") n=0
    until all_done || ((++n > rounds)); do
        sleep 0.1
        victim=$((RANDOM % ${#pids[@]}))
        if ((n % 2)); then
            kill -KILL "${pids[victim]}" 2>/dev/null || true
        else
            sql "$url" "select count(pg_terminate_backend(pid)) from (
              select pid from pg_stat_activity where datname = current_database()
                 and query ~ 'app.(client|fiber)' and pid <> pg_backend_pid() order by random() limit 1) s"
        fi
        session "${kinds[victim % ${#kinds[@]}]}"
        # shellcheck disable=SC2154 # set by in_background, and by the test
        pids[victim]=$background_pid
        [ -z "$between" ] || sql "$url" "$between"
    done
    session "${kinds[0]}"
    session fiber
}

# Those who were killed say so; nobody else has anything to say.
no_errors()
{
    ! grep -h -A 3 ERROR "$BATS_TEST_TMPDIR"/{client,fiber,keeper}.*
}

# What must be true in the end, whatever happened.
nothing_left()
{
    sql "$url" "
      select 'unfinished ' || id from worker.tasks where state <> 'completed'
      union all select 'twice ' || task_id from app.done group by task_id having count(*) > 1
      union all select 'held ' || task_key from queues.slot_held
      union all select 'used ' || task_key from worker.concurrency_slots where used <> 0
      union all select 'parked ' || gate from queues.timer where gate is not null
      union all select problem from worker.slot_problem"
}

@test "never above the limit, with claims and deaths all over, and nothing leaks" {
    sql "$url" "
      set client_min_messages = warning;
      select from worker.register_command('job', p_handler => 'app.job', p_concurrency_limit => 4,
                                          p_group_concurrency_limit => 2, p_max_leases => 100);
      select count(worker.enqueue('job', p_group_key => 'k' || i % 7)) from generate_series(1, 600 * $SCALE) i"
    session keeper
    pids=()
    for procedure in client fiber client fiber client fiber; do
        session "$procedure"
        pids+=("$background_pid")
    done
    rounds=$((10 * SCALE)) between='' kinds=(fiber client)
    kill_some "${pids[@]}"
    wait_until $((60 * SCALE)) all_done
    no_errors
    run nothing_left
    [ -z "$output" ]
    run sql "$url" "select pg_sequence_last_value('app.most'), pg_sequence_last_value('app.most_of_key')"
    echo "most at once: $output"
    [[ $output =~ ^[234]\|[12]$ ]]
}

@test "limits that change meanwhile" {
    sql "$url" "
      set client_min_messages = warning;
      select from worker.register_command('job', p_handler => 'app.job', p_concurrency_limit => 5, p_max_leases => 100);
      select count(worker.enqueue('job', p_group_key => 'k' || i % 7)) from generate_series(1, 500 * $SCALE) i"
    session keeper
    pids=()
    for procedure in client fiber client fiber; do
        session "$procedure"
        pids+=("$background_pid")
    done
    rounds=$((12 * SCALE)) kinds=(client fiber)
    between="update worker.command_registry set concurrency_limit = 1 + floor(random() * 5),
                    group_concurrency_limit = case when random() < 0.5 then 1 + floor(random() * 3) end
              where command = 'job';
             update worker.queue_registry set concurrency_limit = case when random() < 0.5 then floor(random() * 5) end
              where queue = 'default'"
    kill_some "${pids[@]}"
    sql "$url" "update worker.queue_registry set concurrency_limit = 5 where queue = 'default'"
    wait_until $((60 * SCALE)) all_done
    no_errors
    run nothing_left
    [ -z "$output" ]
    [ "$(sql "$url" "select pg_sequence_last_value('app.most') <= 5")" = t ]
}

@test "order keys keep their order over retries and deaths" {
    sql "$url" "
      set client_min_messages = warning;
      create table app.ran (i bigint generated always as identity, key text, n int);
      create procedure app.step(payload jsonb) language plpgsql as \$\$
      begin
        if random() < 0.1 then raise exception 'again'; end if;
        perform app.count_running(worker.current_task_id());
        insert into app.ran (key, n) values (payload ->> 'key', (payload ->> 'n')::int);
      end \$\$;
      select from worker.register_command('step', p_handler => 'app.step', p_max_attempts => 1000,
        p_backoff_initial => '10 ms', p_backoff_base => 1, p_max_leases => 100);
      select count(worker.enqueue('step', jsonb_build_object('key', i % 10, 'n', i), p_group_key => 'k' || i % 10,
        p_order_key => 'o' || i % 10, p_priority => (random() * 3)::int)) from generate_series(1, 300 * $SCALE) i"
    session keeper
    pids=()
    for procedure in fiber fiber fiber fiber; do
        session "$procedure"
        pids+=("$background_pid")
    done
    rounds=$((8 * SCALE)) between='' kinds=(fiber)
    kill_some "${pids[@]}"
    wait_until $((60 * SCALE)) all_done
    no_errors
    run nothing_left
    [ -z "$output" ]
    [ "$(sql "$url" "select pg_sequence_last_value('app.most_of_key')")" -eq 1 ]
    run sql "$url" "
      select count(*) || ' ran, ' || count(distinct n) || ' different, ' || count(*) filter (where n < before) || ' out of order'
        from (select n, lag(n) over (partition by key order by i) as before from app.ran) s"
    echo "$output"
    [ "$output" = "$((300 * SCALE)) ran, $((300 * SCALE)) different, 0 out of order" ]
    [ "$(sql "$url" 'select count(*) from queues.ordered')" -eq 0 ]
}

# The statements of a claim, without what differs from run to run.
claim_plan()
{
    explained "$url" "select from queues.enqueue_many('email', array_fill('{}'::jsonb, '{3}'))" \
        "select count(*) from queues.exchange('default', 2)" \
        "select count(*) from queues.exchange('default', 1)" |
        grep -E 'Query Text|Scan|LockRows|Delete|Insert|Update' | sed 's/(cost.*//'
}

@test "workers that wait for a slot do not wear out the server" {
    sql "$url" "
      create procedure app.nap(payload jsonb) language sql as \$\$ select pg_sleep(60) \$\$;
      select worker.register_command('nap', 'naps', 'app.nap', p_concurrency_limit => 1);
      update worker.queue_registry set top_concurrency = null where queue = 'naps';
      select worker.enqueue('nap') from generate_series(1, 100)" >/dev/null
    for _ in 1 2 3; do
        in_background "$BATS_TEST_TMPDIR/work.log" "$PGKIN" work -d "$url" --queue naps:4
        workers+=("$background_pid")
    done
    naps() { [ "$(sql "$url" "select count(*) from queues.lease_open")" = 1 ]; }
    wait_until 20 naps
    # As soon as they have found out: some looks a second each, not hundreds.
    transactions() { sql "$url" "select xact_commit + xact_rollback from pg_stat_database where datname = current_database()"; }
    calm()
    {
        local before
        before=$(transactions)
        sleep 2
        [ $(($(transactions) - before)) -lt 1000 ]
    }
    wait_until 20 calm
    kill -KILL "${workers[@]}" # one of them would wait for its nap
}

@test "with no limited command in the queue the claim is the plain one" {
    plain=$(claim_plan)
    # Nothing that has to do with limits.
    run grep -E 'gated|slot_|rate_tick|ordered|gate_check|timer_gate' <<<"$plain"
    [ "$status" -eq 1 ]
    sql "$url" "
      set client_min_messages = warning;
      select from worker.register_command('job', 'elsewhere', 'app.job', p_concurrency_limit => 4,
                                          p_group_concurrency_limit => 2, p_rate_limit => 10);
      select count(worker.enqueue('job', p_group_key => 'k')) from generate_series(1, 10)"
    # Once there is one, elsewhere: one look, in each of the two claims.
    diff <(echo "$plain") <(claim_plan) >"$BATS_TEST_TMPDIR/more" || true
    cat "$BATS_TEST_TMPDIR/more"
    [ "$(grep -c '^> .* on gated' "$BATS_TEST_TMPDIR/more")" -eq 2 ]
    [ "$(grep -c '^[<>]' "$BATS_TEST_TMPDIR/more")" -eq 4 ]
}

@test "a limited claim reads nothing without bounds" {
    sql "$url" "
      set client_min_messages = warning;
      select from worker.register_command('job', p_handler => 'app.job', p_concurrency_limit => 4,
                                          p_group_concurrency_limit => 2, p_rate_limit => 1000000);
      select count(worker.enqueue('job', p_group_key => 'k' || i % 3)) from generate_series(1, 30) i;
      select count(worker.enqueue('job', p_order_key => 'k' || i % 3)) from generate_series(1, 30) i"
    run explained "$url" "select count(*) from queues.exchange('default', 2)" \
        "select count(*) from queues.exchange('default', 9, p_done => '{1}', p_lanes => '{0,1,2,3}')"
    plans=$(sed -E 's/ on (slot_held|slot_group|ordered|rate_tick|gate_floor|gated) / on lease /' <<<"$output")
    run bad_scans <<<"$plans"
    echo "$output"
    [ -z "$output" ]
}

# buffers STATEMENT: how many a claim touches, in a session that has its caches.
buffers()
{
    psql -X -q -A -t -v ON_ERROR_STOP=1 -d "$url" -c "$1" -c "$1" -c "explain (analyze, buffers, timing off, costs off) $1" |
        sed -n '/Planning/q; s/.*shared hit=\([0-9]*\)\( read=\([0-9]*\)\)\?.*/\1 \3/p' |
        awk '{ n += $1 + $2 } END { print n + 0 }'
}

@test "slots and keys in much use stay cheap while a snapshot is held" {
    sql "$url" "
      set client_min_messages = warning;
      select from worker.register_command('one', p_kind => 'http', p_url => 'http://x/', p_concurrency_limit => 1, p_rate_limit => 1000000);
      select from worker.register_command('key', 'kq', p_kind => 'http', p_url => 'http://x/', p_group_concurrency_limit => 1);
      update worker.queue_registry set top_concurrency = null;
      select count(*) from worker.enqueue_many('one', array_fill('{}'::jsonb, '{3000}'));
      select count(*) from worker.enqueue_many('key', array_fill('{}'::jsonb, '{3000}'), p_group_key => 'k');
      create procedure app.use(p_queue text) language plpgsql as \$\$
      declare
        v_lease bigint;
      begin
        for i in 1..2500 loop
          select e.lease_id into v_lease from queues.exchange(p_queue, 1, p_done => array[v_lease]) e
           where e.event = 'claimed';
          commit;
        end loop;
        perform queues.exchange(p_queue, 0, p_done => array[v_lease]);
      end \$\$"
    done_and_next="select count(*) from queues.exchange('QUEUE', 1, p_done => (select array_agg(lease_id) from queues.lease_open o join worker.queue_registry q using (queue_id) where q.queue = 'QUEUE'))"
    hold "$url" "$BATS_TEST_TMPDIR/holder" 'begin isolation level repeatable read; select count(*) from queues.task'
    for queue in default kq; do
        before=$(buffers "${done_and_next//QUEUE/$queue}")
        sql "$url" "call app.use('$queue')"
        after=$(buffers "${done_and_next//QUEUE/$queue}")
        echo "$queue: $before, then $after buffers"
        ((after < before * 4)) || false
    done
}
