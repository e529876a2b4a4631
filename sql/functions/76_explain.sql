-- worker.explain_task: why is it where it is?

-- Children told of by id, at most ten.
create or replace function queues.unfinished_children(p_task_id bigint, out n bigint, out ids text)
language plpgsql
as $$
begin
  select count(*), string_agg(s.task_id::text, ', ' order by s.task_id) filter (where s.i <= 10)
    into n, ids
    from (select c.task_id, row_number() over (order by c.task_id) as i from queues.task c
           where c.parent_id = p_task_id
             and not exists (select from queues.task_completed d where d.task_id = c.task_id)) s;
  if n > 10 then
    ids := ids || ' …';
  end if;
end
$$;

-- Tasks that a claim would take before this one, out of its lane. Counted up to
-- some ten thousand.
create or replace function queues.count_before(p_task queues.task) returns bigint
language plpgsql
as $$
declare
  v_place tid := queues.find_ready(p_task, true);
  v_own record;
begin
  select r.lane, r.priority, r.run_at, r.first_id,
         array_position(r.task_ids, p_task.task_id) - 1 as in_bundle
    into v_own from queues.ready r where r.ctid = v_place;
  if not found then
    return 0;
  end if;
  return v_own.in_bundle + coalesce((
    select sum(cardinality(s.task_ids))
      from (select r.task_ids from queues.ready r
             where r.queue_id = p_task.queue_id and r.lane = v_own.lane
               and (r.priority, r.run_at, r.first_id)
                   < (v_own.priority, v_own.run_at, v_own.first_id)
             limit 10000) s), 0);
end
$$;

create or replace function worker.explain_task(p_task_id bigint) returns text
language plpgsql security definer
set search_path = pg_catalog, pg_temp
as $$
declare
  v_now timestamptz := worker.now();
  v_task queues.task;
  v_queue worker.queue_registry;
  v_ended queues.task_completed;
  v_flight queues.in_flight;
  v_row record;
  v_last record;
  v_n bigint;
  v_asked text;
  v_why text[] := '{}';
begin
  select * into v_task from queues.task t where t.task_id = p_task_id;
  if not found then
    return format('There is no task %s: it was never enqueued, its transaction was rolled back, or retention has removed it.', p_task_id);
  end if;
  select * into v_queue from worker.queue_registry q where q.queue_id = v_task.queue_id;

  select * into v_ended from queues.task_completed c where c.task_id = p_task_id;
  if found then
    return case v_ended.state
      when 'completed' then format('It completed at %s.', v_ended.completed_at)
      when 'canceled' then format('It was canceled at %s: %s.', v_ended.completed_at,
                                  coalesce(v_ended.reason, 'no reason was given'))
      else format('It failed at %s after %s attempt(s) with: %s', v_ended.completed_at,
                  v_ended.attempt,
                  coalesce((select split_part(e.error_message, E'\n', 1) from queues.error e
                             where e.task_id = p_task_id
                               and not coalesce(e.context ? 'hook', false)
                             order by e.error_id desc limit 1),
                           'no message')) end;
  end if;

  v_asked := case when exists (select from queues.cancel_request r where r.task_id = p_task_id)
               then ' It was asked to stop.' else '' end;
  if exists (select from queues.waiting w where w.task_id = p_task_id) then
    select * into v_row from queues.unfinished_children(p_task_id);
    return format('Its own work is done; it is waiting for %s child(ren): %s.', v_row.n, v_row.ids)
           || v_asked;
  end if;

  select * into v_flight from queues.in_flight f where f.task_id = p_task_id;
  if found then
    return format('It is held by %s since %s (attempt %s).',
                  coalesce('worker ' || v_flight.worker_id
                             || coalesce(' on pid ' || coalesce(v_flight.backend_pid, (
                                  select w.pid from worker.worker w
                                   where w.worker_id = v_flight.worker_id)), ''),
                           'the session with pid ' || v_flight.backend_pid,
                           'a caller of queues.dequeue_next_available_task()'),
                  v_flight.leased_at, v_flight.attempt) || v_asked;
  end if;

  select t.run_at, t.attempts, t.gate into v_row from queues.timer t
   where t.queue_id = v_task.queue_id and p_task_id = any(t.task_ids)
   order by t.run_at = v_task.scheduled_at desc limit 1;
  if found and v_row.run_at > v_now and v_row.gate is null then
    select e.outcome, e.reason into v_last from queues.attempt_end e
     where e.task_id = p_task_id order by e.lease_id desc limit 1;
    v_why := v_why || format(case when v_last.outcome = 'snoozed'
                               then 'It was put off%3$s and runs again in %1$s, at %2$s.'
                               when v_row.attempts > 0
                               then 'It is retried in %s, at %s.'
                               else 'It is scheduled in %s, at %s.' end,
                             date_trunc('second', v_row.run_at - v_now), v_row.run_at,
                             coalesce(' (' || v_last.reason || ')', ''));
  end if;
  if v_queue.paused and (v_queue.paused_until is null or v_queue.paused_until > v_now) then
    v_why := v_why || format('Queue "%s" is paused%s.', v_queue.queue,
                             coalesce(' until ' || v_queue.paused_until, ''));
  end if;
  v_why := v_why || queues.explain_limits(v_task, v_queue, v_now);
  if v_task.parent_id is null and v_queue.top_concurrency is not null then
    select count(*) as n,
           array_to_string((array_agg(s.task_id order by s.task_id))[1:10], ', ') as ids
      into v_row
      from (select w.task_id from queues.waiting w
             where w.queue_id = v_task.queue_id and w.top
            union all
            (select distinct on (f.lease_id) f.task_id
               from queues.in_flight f join queues.lease_open o using (lease_id)
              where f.queue_id = v_task.queue_id and o.top
              order by f.lease_id, f.place)) s;
    if v_row.n >= v_queue.top_concurrency then
      v_why := v_why || format('Queue "%s" runs %s top-level task(s) at a time, and these hold the place(s): %s.',
                               v_queue.queue, v_queue.top_concurrency, v_row.ids);
    end if;
  end if;
  v_n := queues.count_before(v_task);
  if v_n > 0 then
    v_why := v_why || format('It is behind %s%s other(s) in queue "%s".',
                             case when v_n >= 10000 then 'at least ' else '' end, v_n,
                             v_queue.queue);
  end if;
  if not exists (select from worker.worker w join worker.heartbeat h using (worker_id)
                  where w.stopped_at is null and h.beat_at > v_now - interval '10 seconds')
     and not exists (select from queues.lease_open o where o.queue_id = v_task.queue_id) then
    v_why := v_why || format('No worker serves queue "%s".', v_queue.queue);
  end if;
  if cardinality(v_why) = 0 then
    v_why := array['It is ready and will be taken by the next free worker.'];
  end if;
  return array_to_string(v_why, ' ');
end
$$;

comment on function worker.explain_task(bigint) is 'says why a task is where it is';

-- By way of what failed in their queue, which is little, and not of all the
-- siblings, which may be many and may all ask.
create or replace function worker.has_failed_siblings(p_task_id bigint) returns boolean
language plpgsql security definer
set search_path = pg_catalog, pg_temp
set enable_seqscan = off
set jit = off
set enable_bitmapscan = off
set plan_cache_mode = force_generic_plan
as $$
declare
  v_task queues.task;
begin
  select * into v_task from queues.task t where t.task_id = p_task_id;
  return v_task.parent_id is not null and exists (
    select from queues.task_completed c
      join queues.task s on s.task_id = c.task_id
     where c.queue_id = v_task.queue_id and c.task_id > v_task.parent_id
       and c.state <> 'completed' and c.state = 'failed'
       and s.parent_id = v_task.parent_id and s.task_id <> p_task_id);
end
$$;

-- For tests: raises unless a task of this command with this in its payload has
-- been enqueued. Returns the newest such task.
create or replace function worker.assert_enqueued(p_command text, p_payload jsonb default '{}')
returns bigint
language plpgsql security definer
set search_path = pg_catalog, pg_temp
as $$
declare
  v_task_id bigint;
begin
  select t.id into v_task_id from worker.tasks t
   where t.command = p_command and t.payload @> p_payload order by t.id desc limit 1;
  if v_task_id is null then
    raise exception 'no task "%" with % in its payload was enqueued', p_command, p_payload
      using errcode = 'assert_failure',
            detail = (select 'Enqueued: ' || coalesce(string_agg(format('%s %s', s.command, s.payload), '; '), 'nothing')
                        from (select t.command, t.payload from worker.tasks t
                               order by t.id desc limit 10) s);
  end if;
  return v_task_id;
end
$$;
