-- Again, or not: when a task is tried again by itself, when it is not, and how
-- an ended one is put back.

-- Seconds that somebody outside asked for, made harmless: a number that is no
-- number, or would take the task beyond next year, becomes a year.
create or replace function queues.delay(p_seconds real) returns interval
language sql immutable
as $$ select make_interval(secs => greatest(least(p_seconds, 31536000), 0)) $$;

-- When to try again, or null when that was the last attempt. A delay that the
-- handler asked for takes the place of the backoff.
create or replace function queues.retry_at(
  p_command worker.command_registry, p_failures integer, p_now timestamptz,
  p_delay real default null)
returns timestamptz
language plpgsql
as $$
begin
  if p_failures >= coalesce(p_command.max_attempts, 1) then
    return null;
  elsif p_delay > 0 then
    return p_now + queues.delay(p_delay);
  end if;
  -- In seconds: an interval overflows long before a number does.
  return p_now + make_interval(secs => least(
    extract(epoch from p_command.backoff_initial)
      * power(p_command.backoff_base, least(p_failures - 1, 60)),
    extract(epoch from p_command.backoff_max)) * (0.5 + random()));
end
$$;

-- Why a task must not go on, or null when it may.
create or replace function queues.stop_reason(p_task_id bigint, p_parent_id bigint) returns text
language plpgsql
as $$
declare
  v_reason text;
begin
  select coalesce(r.reason, '') into v_reason
    from queues.cancel_request r where r.task_id = p_task_id;
  if found or p_parent_id is null then
    return v_reason;
  elsif exists (select from queues.cancel_request r where r.task_id = p_parent_id) then
    return 'the parent task was canceled';
  elsif exists (select from queues.task_completed c where c.task_id = p_parent_id) then
    return 'the parent task has ended';
  end if;
  return null;
end
$$;

-- Was this child spawned in an attempt of its parent that is over and has been
-- answered for? One that was given to the parent before, or between attempts,
-- stays with it. After worker.retry by number, because that may happen in the
-- very moment of the end.
create or replace function queues.of_past_attempt(p_child queues.task) returns boolean
language plpgsql
as $$
begin
  return exists (select from queues.past_end p
                  where p.task_id = p_child.parent_id and p.last_task_id >= p_child.task_id)
      or exists (select from queues.attempt_end e join queues.lease l using (lease_id)
                  where e.task_id = p_child.parent_id
                    and e.outcome in ('failed', 'lost', 'snoozed')
                    and p_child.enqueued_at between l.leased_at and e.ended_at);
end
$$;

-- Keeps the parent of an ended child from ending while the child is put back.
-- False: it has ended, is asked to stop, or has begun anew without this child.
create or replace function queues.hold_parent_of(p_task queues.task) returns boolean
language plpgsql
as $$
declare
  v_parent queues.task;
  v_held boolean := false;
begin
  select * into v_parent from queues.task t where t.task_id = p_task.parent_id;
  loop
    if queues.stop_reason(v_parent.task_id, v_parent.parent_id) is not null
       or exists (select from queues.task_completed c where c.task_id = v_parent.task_id)
       or queues.of_past_attempt(p_task) then
      return false;
    end if;
    exit when v_held;
    v_held := queues.hold_parent(v_parent);  -- and look again, now that it is held
  end loop;
  return true;
end
$$;

create or replace function worker.retry(p_task_id bigint) returns boolean
language plpgsql security definer
set search_path = pg_catalog, pg_temp
set enable_seqscan = off
set jit = off
set enable_bitmapscan = off
set plan_cache_mode = force_generic_plan
as $$
declare
  v_now timestamptz := worker.now();
  v_task queues.task;
  v_end queues.task_completed;
  v_lane integer;
begin
  select * into v_task from queues.task t where t.task_id = p_task_id;
  if not found
     or not exists (select from queues.task_completed c
                     where c.task_id = p_task_id and c.state in ('failed', 'canceled'))
     or (v_task.parent_id is not null and not queues.hold_parent_of(v_task)) then
    return false;
  end if;
  select c.lane + (v_task.parent_id is not null)::integer into v_lane
    from worker.command_registry c where c.command = v_task.task_type;
  if not found then
    perform queues.refuse_command(v_task.task_type);
  elsif not exists (select from worker.queue_registry q where q.queue_id = v_task.queue_id) then
    raise exception 'the queue of task % is gone', p_task_id using errcode = 'undefined_object';
  end if;
  -- Of several who try, and of those who remove it, the first one gets the row.
  delete from queues.task_completed c
   where c.task_id = p_task_id and c.state in ('failed', 'canceled')
  returning c.* into v_end;
  if not found then
    return false;
  end if;
  insert into queues.past_end (task_id, ended_at, state, lease_id, attempt, duration_ms,
                               worker_pid, reason, retried_at, last_task_id)
    values (p_task_id, v_end.completed_at, v_end.state, v_end.lease_id, v_end.attempt,
            v_end.duration_ms, v_end.worker_pid, v_end.reason, v_now,
            pg_sequence_last_value('queues.task_id_seq'));
  -- The lease may still be open for others: for this task it is over.
  if v_end.lease_id is not null then
    insert into queues.attempt_end (task_id, lease_id, attempt, ended_at, outcome, reason)
      values (p_task_id, v_end.lease_id, v_end.attempt, v_end.completed_at, v_end.state::text,
              v_end.reason)
      on conflict do nothing;
  end if;
  perform queues.put_ready(v_task.queue_id, v_lane, v_task.priority,
                           greatest(v_task.scheduled_at, v_now), v_now,
                           array[p_task_id], v_task.parent_id,
                           least(v_end.attempt, 32766)::smallint,
                           p_keyed => queues.regain_key(p_task_id),
                           p_solo => exists (select from queues.attempt_end e
                                              where e.task_id = p_task_id
                                                and e.outcome = 'lost'));
  perform queues.wake(v_task.queue_id);
  return true;
end
$$;

comment on function worker.retry(bigint) is
  'puts a failed or canceled task back, with all its attempts anew; false for any other';

-- What a SQL handler calls to end its attempt otherwise than by success or a
-- plain failure. The SQLSTATEs are the interface; these are its short form.
create or replace function worker.give_up(p_reason text) returns void
language plpgsql
set search_path = pg_catalog, pg_temp
as $$
begin
  raise exception using errcode = 'PK001', message = coalesce(p_reason, 'given up');
end
$$;

comment on function worker.give_up(text) is
  'inside a handler: fails the task for good, whatever its max_attempts';

create or replace function worker.snooze(p_for interval, p_reason text default null)
returns void
language plpgsql
set search_path = pg_catalog, pg_temp
as $$
begin
  if p_for is null or p_for < '0' or p_for > '365 days' then
    raise exception 'a task is put off by at most a year, not by %', coalesce(p_for::text, 'null')
      using errcode = 'invalid_parameter_value';
  end if;
  raise exception using errcode = 'PK002', message = coalesce(p_reason, 'put off'),
    detail = extract(epoch from p_for)::text;
end
$$;

comment on function worker.snooze(interval, text) is
  'inside a handler: undoes this attempt and runs the task again later, not counted as a failure';
