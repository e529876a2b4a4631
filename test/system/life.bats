#!/usr/bin/env bats
# SPDX-License-Identifier: Apache-2.0
#
# The life of a task beyond the happy path, from several sessions: who is told of
# what, and that nothing is lost or done twice when all happens at once.
# PGKIN_TEST_SCALE makes the rounds more.

bats_require_minimum_version 1.5.0
load ../lib/system

SCALE=${PGKIN_TEST_SCALE:-1}

setup()
{
    URL=$(migrated_database)
    sql "$URL" "set client_min_messages = warning; create schema app" >/dev/null
}

# is_sql EXPECTED STATEMENT
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

# heard CHANNEL PAYLOAD: how often.
heard()
{
    grep -c "\"$1\" with payload \"$2\"" "$BATS_TEST_TMPDIR/heard" || true
}

@test "workers hear of pause and resume, and of what they are to stop" {
    sql "$URL" "
        set client_min_messages = warning;
        create procedure app.work(payload jsonb) language plpgsql as 'begin end';
        select worker.register_command('work', 'q', 'app.work');
        select worker.register_command('far', 'f', p_kind => 'native');
        update worker.queue_registry set top_concurrency = null"
    psql -X -q -d "$URL" -v ON_ERROR_STOP=1 >"$BATS_TEST_TMPDIR/heard" <<'END'
listen worker_queue_change;
listen worker_task_changed;
listen worker_tasks;
select setval('queues.q' || queue_id || '_wake', 1) from worker.queue_registry where queue in ('q', 'f');
select worker.pause('q');
select worker.resume('q');
-- by itself, when its time is over
select worker.pause('f', '1 hour');
begin;
set local worker.fake_now = '2100-01-01';
select queues.resume_due(worker.now());
commit;
-- a retry
select worker.pause_command('far');
select worker.resume_command('far');
select worker.enqueue('work') as id \gset
select worker.cancel(:id);
select worker.retry(:id);
select worker.cancel(:id);
-- pending: nobody need be told; held by a worker: he is
select worker.register_worker('w') as w \gset
select worker.cancel(worker.enqueue('far'));
select worker.enqueue('far') as id \gset
select * from queues.exchange('f', 1, :w);
select worker.cancel(:id);
select worker.cancel(:id);
END
    [ "$(heard worker_queue_change q)" -ge 2 ]
    [ "$(heard worker_queue_change f)" -ge 4 ]
    # resume, enqueue, retry; resume, resume of the command, two enqueued
    [ "$(heard worker_tasks q)" -ge 3 ]
    [ "$(heard worker_tasks f)" -ge 4 ]
    [ "$(heard worker_task_changed cancel)" = 1 ]
}

@test "claims, ends, cancels and retries at once: each task is in one place, each end told once" {
    sql "$URL" "
        set client_min_messages = warning;
        select worker.register_command('told', 'told', p_kind => 'native');
        select worker.register_command('work', 'f', p_kind => 'native', p_max_attempts => 2,
                                       p_backoff_initial => '1 ms', p_on_complete => 'told');
        update worker.queue_registry set top_concurrency = null;
        create procedure app.produce(p_rounds int) language plpgsql as \$\$
        declare v_id bigint;
        begin
          for i in 1..p_rounds loop
            perform worker.enqueue_many('work', array_fill('{}'::jsonb, array[1 + (random() * 8)::int]));
            v_id := worker.enqueue('work', p_dedup_key => (random() * 3)::int::text);
            commit;
          end loop;
        end \$\$;
        -- Claims a few, gives some of them children, ends them in all ways.
        create procedure app.consume(p_rounds int) language plpgsql as \$\$
        declare
          v_worker bigint := worker.register_worker('w');
          v_leases bigint[];
          v_ids bigint[];
        begin
          commit;
          for i in 1..p_rounds loop
            perform worker.beat(v_worker);
            select array_agg(x.lease_id), array_agg(x.task_id) into v_leases, v_ids
              from queues.exchange('f', 1 + (random() * 5)::int, v_worker) x;
            commit;
            if v_ids is null then
              perform pg_sleep(0.001);
              continue;
            end if;
            begin
              perform worker.spawn_task('work', '{}', v_ids[1]) from queues.task t
               where t.task_id = v_ids[1] and t.parent_id is null and random() < 0.3;
            exception when object_not_in_prerequisite_state then
              null;  -- it is being canceled
            end;
            commit;
            perform worker.cancel_requests(v_worker);
            perform queues.exchange('f', 0, v_worker, null, null, v_leases, v_ids,
              array(select ('{completed,completed,failed,failed,fatal,snoozed,canceled,released}'::text[])[1 + floor(random() * 8)::int]
                      from unnest(v_ids)), p_delays => array(select 0.001 from unnest(v_ids)));
            commit;
          end loop;
        end \$\$;
        create procedure app.disturb(p_rounds int) language plpgsql as \$\$
        declare
          v_ids bigint[];
          v_id bigint;
        begin
          for i in 1..p_rounds loop
            v_ids := array(select task_id from queues.task where task_type = 'work' order by random() limit 3);
            foreach v_id in array v_ids loop
              perform worker.cancel(v_id);
              commit;
              perform worker.retry(v_id);
              commit;
            end loop;
            perform worker.retry_failed(p_limit => 2);
            commit;
            perform queues.maintain();
            commit;
            if i % 10 = 0 then
              perform worker.cancel_all('f');
              commit;
            end if;
          end loop;
        end \$\$"
    local i pids=() failed=0 rounds=$((60 * SCALE))
    for i in "produce($rounds)" "consume($((3 * rounds)))" "consume($((3 * rounds)))" "disturb($rounds)" "disturb($rounds)"; do
        psql -X -q -v ON_ERROR_STOP=1 -d "$URL" -c "call app.$i" 3>&- &
        pids+=($!)
    done
    for i in "${pids[@]}"; do
        wait "$i" || failed=1
    done
    [ "$failed" = 0 ]
    # Each task is in one place.
    is_sql "" "
        select t.task_id, count(p.task_id), string_agg(p.place, ' ')
          from queues.task t
          left join (select unnest(task_ids) as task_id, 'ready' as place from queues.ready
                     union all select unnest(task_ids), 'timer' from queues.timer
                     union all select task_id, 'leased' from queues.in_flight
                     union all select task_id, 'waiting' from queues.waiting
                     union all select task_id, 'ended' from queues.task_completed) p using (task_id)
         group by t.task_id having count(p.task_id) <> 1"
    # What is left runs to its end.
    sql "$URL" "update queues.timer set run_at = worker.now(); select worker.stop_worker(worker_id) from worker.worker"
    wait_until 30 nothing_left
    is_sql "0|0|0|0" "select (select count(*) from queues.ready r join worker.queue_registry q using (queue_id) where q.queue = 'f'),
                     (select count(*) from queues.waiting), (select count(*) from queues.lease_open),
                     (select count(*) from queues.cancel_request)"
    # Each end has one follower, also those that were taken back by a retry.
    is_sql "t" "
        select (select count(*) from queues.task where task_type = 'told')
             = (select count(*) from queues.task_completed) + (select count(*) from queues.past_end)"
    is_sql "" "
        select task_id, count(*) from (
          select (payload ->> 'task_id')::bigint as task_id from queues.task where task_type = 'told') f
          group by 1
         having count(*) <> 1 + (select count(*) from queues.past_end p where p.task_id = f.task_id)"
    # A retry in between, and all attempts are there to be seen.
    is_sql "t|t" "select count(*) > 0, count(distinct state) = 2 from queues.past_end"
    is_sql "" "select task_id, attempt from queues.task_lease group by 1, 2 having count(*) > 1 and not bool_or(outcome = 'released')"
    is_sql "0" "select count(*) from worker.rescue"
}

# One more round of a worker; true when there was nothing for it.
nothing_left()
{
    [ "$(sql "$URL" "
        select queues.maintain() is null;
        select count(*) from queues.exchange('f', 0, p_done => array(select lease_id from queues.lease_open));
        update queues.timer set run_at = worker.now();
        select count(*) from queues.exchange('f', 100)" | tail -1)" = 0 ] &&
        [ "$(sql "$URL" "select count(*) from queues.waiting")" = 0 ]
}
