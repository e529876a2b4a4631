-- Finishing: how hand-outs end. Every function here names the lease and does
-- nothing, visibly, when that lease is no longer in force.

-- The end of one task as failed, with its error. Internal.
create or replace function queues.end_failed(
  p_task_id bigint, p_lease_id bigint, p_queue_id integer, p_attempt smallint,
  p_now timestamptz, p_error text, p_context jsonb default null, p_duration real default null,
  p_pid integer default null)
returns void
language plpgsql
as $$
begin
  insert into queues.task_completed (task_id, completed_at, lease_id, queue_id, state,
                                     duration_ms, worker_pid, attempt)
    values (p_task_id, p_now, p_lease_id, p_queue_id, 'failed', p_duration, p_pid, p_attempt);
  insert into queues.error (task_id, error_message, created_at, attempt, context)
    values (p_task_id, p_error, p_now, p_attempt, p_context);
  perform queues.cancel_children(p_task_id, p_now, 'the parent task failed');
  perform queues.note_ended(array[p_task_id]);
end
$$;

-- The end of one task that was asked to stop, or must not go on for another
-- reason, and did not succeed. Internal.
create or replace function queues.end_canceled(
  p_task_id bigint, p_lease_id bigint, p_queue_id integer, p_attempt smallint,
  p_now timestamptz, p_duration real default null, p_pid integer default null,
  p_reason text default null)
returns void
language plpgsql
as $$
begin
  insert into queues.task_completed (task_id, completed_at, lease_id, queue_id, state,
                                     duration_ms, worker_pid, attempt, reason)
    values (p_task_id, p_now, p_lease_id, p_queue_id, 'canceled', p_duration, p_pid, p_attempt,
            coalesce((select r.reason from queues.cancel_request r where r.task_id = p_task_id),
                     nullif(p_reason, '')));
  delete from queues.cancel_request r where r.task_id = p_task_id;
  perform queues.cancel_children(p_task_id, p_now, 'the parent task was canceled');
  perform queues.note_ended(array[p_task_id]);
end
$$;

-- All tasks of a lease have succeeded and left nothing behind but that. The
-- common case of a batch: one delete, one insert. Null: the lease is not in force,
-- nothing was done. With p_keep, returns the slots that it held, see
-- queues.release_slots.
create or replace function queues.complete_lease(
  p_lease_id bigint, p_now timestamptz, p_pid integer default null,
  p_duration real default null, p_keep boolean default false)
returns queues.free_slots[]
language plpgsql
as $$
declare
  v_open queues.lease_open;
  v_lease queues.lease;
  v_ids bigint[];
  v_spare queues.free_slots[];
begin
  delete from queues.lease_open o where o.lease_id = p_lease_id returning o.* into v_open;
  if not found then
    return null;
  end if;
  select * into strict v_lease from queues.lease l where l.lease_id = p_lease_id;
  if not v_open.partial and not queues.may_have_children(v_lease.from_id) then
    if v_lease.attempts is null then
      insert into queues.task_completed (task_id, completed_at, lease_id, queue_id, state,
                                         duration_ms, worker_pid, attempt)
        select unnest(v_lease.task_ids), p_now, p_lease_id, v_lease.queue_id, 'completed',
               p_duration, p_pid, 1;
    else
      insert into queues.task_completed (task_id, completed_at, lease_id, queue_id, state,
                                         duration_ms, worker_pid, attempt)
        select u.task_id, p_now, p_lease_id, v_lease.queue_id, 'completed', p_duration, p_pid,
               u.attempts + 1
          from unnest(v_lease.task_ids, v_lease.attempts) u(task_id, attempts);
    end if;
    perform queues.note_ended(v_lease.task_ids, v_lease.from_id, v_lease.to_id);
    perform queues.count_ends(v_lease.queue_id, p_now, cardinality(v_lease.task_ids));
  else
    v_ids := queues.unfinished(v_lease);
    perform queues.end_tasks(v_lease, v_open.top, p_now, p_pid,
                             v_ids, null, null, null,
                             array_fill(p_duration, array[cardinality(v_ids)]));
    perform queues.count_lease(v_lease, p_now, v_ids);
  end if;
  if v_open.limited then
    v_spare := queues.release_slots(v_open, p_keep => p_keep);
  end if;
  if v_lease.parent_ids is not null then
    perform queues.settle_parents(v_lease.parent_ids);
  end if;
  return coalesce(v_spare, '{}');
end
$$;

-- The tasks of a lease that have not ended under it.
create or replace function queues.unfinished(p_lease queues.lease) returns bigint[]
language plpgsql
as $$
begin
  return array(
    select u.task_id from unnest(p_lease.task_ids) with ordinality u(task_id, i)
     -- Not as joins, which a planner that thinks them empty does without bounds.
     where (select true from queues.task_completed c where c.task_id = u.task_id) is null
       and (select true from queues.attempt_end e
             where e.task_id = u.task_id and e.lease_id = p_lease.lease_id) is null
     order by u.i);
end
$$;

-- Ends tasks of a lease that the caller has locked and whose ids it has
-- checked. Arrays are parallel to p_ids or null: all completed, no error, no
-- result. Outcomes:
--   completed  and if it has unfinished children, it waits for them
--   failed     tried again as its command says, or after the delay (seconds)
--   fatal      failed for good
--   snoozed    put off for the delay, 60 s without one; no failure
--   canceled   stopped because it was asked to
--   released   handed back as if it had not been handed out
create or replace function queues.end_tasks(
  p_lease queues.lease, p_top boolean, p_now timestamptz, p_pid integer, p_ids bigint[],
  p_outcomes text[], p_errors text[], p_results jsonb[], p_durations real[],
  p_delays real[] default null)
returns void
language plpgsql
as $$
declare
  v_parents bigint[];
  v_task record;
  v_run_at timestamptz;
  v_stop text;
begin
  -- Those with unfinished children wait. Locked first, looked at after: a child
  -- that ends at this moment either is seen, or sees the parent waiting.
  if queues.may_have_children(p_lease.from_id) then
    v_parents := queues.lock_parents(p_ids);
  end if;
  if v_parents is not null then
    insert into queues.waiting (task_id, queue_id, since, lease_id, worker_pid, duration_ms,
                                attempt, top, result)
      select u.task_id, p_lease.queue_id, p_now, p_lease.lease_id, p_pid, u.duration,
             coalesce(p_lease.attempts[array_position(p_lease.task_ids, u.task_id)], 0) + 1,
             p_top, u.result
        from unnest(p_ids, p_outcomes, p_results, p_durations) u(task_id, outcome, result, duration)
       where coalesce(u.outcome, 'completed') = 'completed'
         and u.task_id = any(v_parents)
         and (worker.has_pending_children(u.task_id) or queues.has_failed_child(u.task_id));
    -- What this snapshot cannot see is decided by a later one.
    if current_setting('transaction_isolation') <> 'read committed' then
      insert into queues.parent_check (parent_id) select unnest(v_parents);
    end if;
    insert into queues.attempt_end (task_id, lease_id, attempt, ended_at, outcome)
      select w.task_id, w.lease_id, w.attempt, p_now, 'waiting'
        from queues.waiting w where w.task_id = any(v_parents) and w.lease_id = p_lease.lease_id;
  end if;

  insert into queues.task_completed (task_id, completed_at, lease_id, queue_id, state,
                                     duration_ms, worker_pid, attempt, result, reason)
    select u.task_id, p_now, p_lease.lease_id, p_lease.queue_id,
           coalesce(u.outcome, 'completed')::queues.task_state, u.duration, p_pid,
           coalesce(p_lease.attempts[array_position(p_lease.task_ids, u.task_id)], 0) + 1,
           u.result, case when u.outcome = 'canceled' then
             coalesce((select r.reason from queues.cancel_request r where r.task_id = u.task_id),
                      nullif(u.error, '')) end
      from unnest(p_ids, p_outcomes, p_results, p_durations, p_errors)
             u(task_id, outcome, result, duration, error)
     where coalesce(u.outcome, 'completed') in ('completed', 'canceled')
       and (v_parents is null or not u.task_id = any(v_parents)
            or (select true from queues.waiting w where w.task_id = u.task_id) is null);
  perform queues.note_ended(p_ids, p_lease.from_id, p_lease.to_id);
  if v_parents is not null then
    perform queues.settle_parents(v_parents);  -- whose children have all ended before
  end if;

  if p_outcomes is null then
    return;
  end if;
  for v_task in
    select u.*, t.priority, t.scheduled_at, t.parent_id, t.task_type,
           coalesce((select c.lane from worker.command_registry c
                      where c.command = t.task_type) + (t.parent_id is not null)::integer,
                    t.lane) as lane,
           (coalesce(p_lease.attempts[p.i], 0) + 1)::smallint as attempts,
           coalesce(p_lease.failures[p.i], 0::smallint) as failures,
           coalesce(p_lease.crashes[p.i], 0::smallint) as crashes
      from unnest(p_ids, p_outcomes, p_errors, p_durations, p_delays)
             u(task_id, outcome, error, duration, delay)
     cross join lateral (select * from queues.task t
                          where t.task_id = u.task_id offset 0) t
     cross join lateral (select array_position(p_lease.task_ids, u.task_id) as i) p
     where u.outcome in ('failed', 'fatal', 'snoozed', 'released', 'canceled')
  loop
    if v_task.outcome = 'canceled' then
      perform queues.cancel_children(v_task.task_id, p_now, 'the parent task was canceled');
      continue;
    end if;
    v_stop := queues.stop_reason(v_task.task_id, v_task.parent_id);
    if v_stop is not null then
      perform queues.end_canceled(v_task.task_id, p_lease.lease_id, p_lease.queue_id,
                                  v_task.attempts, p_now, v_task.duration, p_pid, v_stop);
      continue;
    end if;
    v_task.failures := v_task.failures + (v_task.outcome = 'failed')::integer;
    v_run_at := case v_task.outcome
      when 'failed' then queues.retry_at((select c from worker.command_registry c
                                           where c.command = v_task.task_type),
                                         v_task.failures, p_now, v_task.delay)
      when 'snoozed' then p_now + queues.delay(coalesce(v_task.delay, 60))
      when 'released' then v_task.scheduled_at end;
    if v_run_at is null then
      perform queues.end_failed(v_task.task_id, p_lease.lease_id, p_lease.queue_id,
                                v_task.attempts, p_now, coalesce(v_task.error, 'failed'), null,
                                v_task.duration, p_pid);
      continue;
    end if;
    insert into queues.attempt_end (task_id, lease_id, attempt, ended_at, outcome, reason)
      values (v_task.task_id, p_lease.lease_id, v_task.attempts, p_now, v_task.outcome,
              case when v_task.outcome = 'snoozed' then v_task.error end);
    if v_task.outcome = 'failed' then
      insert into queues.error (task_id, error_message, created_at, attempt)
        values (v_task.task_id, coalesce(v_task.error, 'failed'), p_now, v_task.attempts);
    end if;
    if v_task.outcome = 'released' then
      v_task.attempts := v_task.attempts - 1;
    else
      -- The next attempt has children of its own.
      perform queues.cancel_children(v_task.task_id, p_now, 'the parent task is run again',
                                     p_lease.leased_at);
    end if;
    perform queues.put_ready(p_lease.queue_id, v_task.lane, v_task.priority, v_run_at, p_now,
                             array[v_task.task_id], v_task.parent_id,
                             least(v_task.attempts, 32766)::smallint,
                             v_task.failures, v_task.crashes, queues.regain_key(v_task.task_id),
                             p_solo => exists (select from queues.attempt_end e
                                                where e.task_id = v_task.task_id
                                                  and e.outcome = 'lost'));
  end loop;
end
$$;

-- Ends some tasks of one lease. Returns the ids that were refused: not in this
-- lease, or ended under it before. All of them when the lease is not in force.
create or replace function queues.finish_tasks(
  p_lease_id bigint, p_now timestamptz, p_pid integer, p_ids bigint[], p_outcomes text[],
  p_errors text[], p_results jsonb[], p_durations real[], p_delays real[] default null)
returns bigint[]
language plpgsql
as $$
declare
  v_open queues.lease_open;
  v_lease queues.lease;
  v_unfinished bigint[];
  v_good record;
begin
  -- Two finishes of one lease at once must not both see the other's tasks as
  -- unfinished, so the lock is the strong one; the key stays share-lockable.
  select o.* into v_open from queues.lease_open o
   where o.lease_id = p_lease_id for no key update;
  if not found then
    return p_ids;
  end if;
  select * into strict v_lease from queues.lease l where l.lease_id = p_lease_id;
  v_unfinished := queues.unfinished(v_lease);
  select array_agg(s.id order by s.i) as ids, array_agg(s.outcome order by s.i) as outcomes,
         array_agg(s.error order by s.i) as errors, array_agg(s.result order by s.i) as results,
         array_agg(s.duration order by s.i) as durations, array_agg(s.delay order by s.i) as delays
    into v_good
    from (select distinct on (u.id) u.*
            from unnest(p_ids, p_outcomes, p_errors, p_results, p_durations, p_delays)
                   with ordinality u(id, outcome, error, result, duration, delay, i)
           where u.id = any(v_unfinished)
           order by u.id, u.i) s;
  if v_good.ids is null then
    return p_ids;
  end if;
  perform queues.end_tasks(v_lease, v_open.top, p_now, p_pid, v_good.ids, v_good.outcomes,
                           v_good.errors, v_good.results, v_good.durations, v_good.delays);
  perform queues.count_lease(v_lease, p_now, v_good.ids,
                             cardinality(v_good.ids) = cardinality(v_unfinished));
  if cardinality(v_good.ids) = cardinality(v_unfinished) then
    delete from queues.lease_open o where o.lease_id = p_lease_id;
  elsif not v_open.partial then
    update queues.lease_open o set partial = true where o.lease_id = p_lease_id;
  end if;
  if v_open.limited then
    perform queues.release_slots(v_open, v_good.ids);
  end if;
  if v_lease.parent_ids is not null then
    perform queues.settle_parents(v_lease.parent_ids);
  end if;
  return array(select unnest(p_ids) except select unnest(v_good.ids));
end
$$;

-- The lease under which a task is held now, or null.
create or replace function queues.lease_of(p_task_id bigint) returns bigint
language plpgsql
as $$
declare
  v_lease_id bigint;
begin
  select o.lease_id into v_lease_id from queues.lease_open o where o.task_id = p_task_id;
  if not found then
    select o.lease_id into v_lease_id
      from queues.lease_open o join queues.lease l using (lease_id)
     where o.task_id is null and p_task_id = any(l.task_ids)
       and not exists (select from queues.attempt_end e
                        where e.task_id = p_task_id and e.lease_id = o.lease_id)
       and not exists (select from queues.task_completed c where c.task_id = p_task_id);
  end if;
  return v_lease_id;
end
$$;

create or replace function queues.complete_task(_task_id bigint, _task_lease_id bigint)
returns boolean
language plpgsql security definer
set search_path = pg_catalog, pg_temp
set enable_seqscan = off
set jit = off
set enable_bitmapscan = off
set plan_cache_mode = force_generic_plan
as $$
begin
  return queues.finish_tasks(_task_lease_id, worker.now(), pg_backend_pid(), array[_task_id],
                             null, null, null, null) = '{}';
end
$$;

comment on function queues.complete_task(bigint, bigint) is
  'ends a task as completed under this lease; false when the lease is not in force any more';

create or replace function queues.complete_task(_task_id bigint) returns void
language plpgsql security definer
set search_path = pg_catalog, pg_temp
set enable_seqscan = off
set jit = off
set enable_bitmapscan = off
set plan_cache_mode = force_generic_plan
as $$
declare
  v_lease_id bigint := queues.lease_of(_task_id);
begin
  -- Only a lease that expires belongs to a caller of this kind: the leases of
  -- workers are theirs to end.
  if (select o.expires_at from queues.lease_open o
       where o.lease_id = v_lease_id) is not null then
    perform queues.finish_tasks(v_lease_id, worker.now(), pg_backend_pid(), array[_task_id],
                                null, null, null, null);
  elsif not exists (select from queues.task t where t.task_id = _task_id) then
    raise exception 'there is no task %', _task_id using errcode = 'no_data_found';
  end if;
end
$$;

comment on function queues.complete_task(bigint) is
  'ends a task that was dequeued; does nothing when it is not held';

create or replace function queues.fail_task(_task_id bigint, _error_message text) returns void
language plpgsql security definer
set search_path = pg_catalog, pg_temp
as $$
begin
  if not exists (select from queues.task t where t.task_id = _task_id) then
    raise exception 'there is no task %', _task_id using errcode = 'no_data_found';
  end if;
  insert into queues.error (task_id, error_message, created_at)
    values (_task_id, coalesce(_error_message, 'failed'), worker.now());
end
$$;

comment on function queues.fail_task(bigint, text) is
  'records an error of a task; does not end it';

-- One round trip of a worker: ends what it has finished, hands out the next. Is
-- to be a transaction of its own: it does maintenance on the way.
--   p_done       leases all of whose tasks have simply succeeded, with the mean
--                of their durations
--   p_lease_ids… parallel arrays: single tasks with their outcome (null: all
--                completed), see queues.end_tasks; delays in seconds, for
--                failed and snoozed ones
--   p_lanes      the lines the caller can serve; null: all
-- Returns 'claimed' rows in the order to run, and a 'refused' row for each task
-- (or, with task_id null, whole lease) that was no longer the caller's to end.
create or replace function queues.exchange(
  p_queue text, p_want integer, p_worker_id bigint default null, p_pid integer default null,
  p_done bigint[] default null, p_lease_ids bigint[] default null,
  p_task_ids bigint[] default null, p_outcomes text[] default null,
  p_errors text[] default null, p_results jsonb[] default null,
  p_durations real[] default null, p_lanes integer[] default null,
  p_delays real[] default null, p_done_durations real[] default null)
returns table (event text, lease_id bigint, task_id bigint, attempt integer, task_type text,
               payload jsonb, headers jsonb, parent_id bigint, group_key text,
               scheduled_at timestamptz)
language plpgsql security definer
set search_path = pg_catalog, pg_temp
set enable_seqscan = off
set jit = off
set enable_bitmapscan = off
set plan_cache_mode = force_generic_plan
as $$
#variable_conflict use_column
declare
  v_now timestamptz := worker.now();
  v_for record;
  v_group record;
  v_got record;
  v_refused bigint[];
  v_n integer;
  v_kept queues.free_slots[];
  v_spare queues.free_slots[];
begin
  if p_lease_ids is not null
     and (cardinality(p_lease_ids) is distinct from cardinality(p_task_ids)
          or cardinality(p_lease_ids) <> cardinality(p_outcomes)
          or exists (select from unnest(p_outcomes) o where o is null
                        or o not in ('completed', 'failed', 'fatal', 'snoozed', 'canceled',
                                     'released'))) then
    raise exception 'each task has a lease and an outcome: completed, failed, fatal, snoozed, canceled or released'
      using errcode = 'invalid_parameter_value';
  end if;
  if p_done is not null then
    for v_i in 1..cardinality(p_done) loop
      v_kept := queues.complete_lease(p_done[v_i], v_now, p_pid, p_done_durations[v_i],
                                      coalesce(p_want > 0, false));
      if v_kept <> '{}' then
        v_spare := v_spare || v_kept;
      elsif v_kept is null then
        return query select 'refused', p_done[v_i], null::bigint, null::integer, null::text,
                            null::jsonb, null::jsonb, null::bigint, null::text,
                            null::timestamptz;
      end if;
    end loop;
  end if;
  if p_lease_ids is not null then
    for v_group in
      select u.lease_id, array_agg(u.task_id order by u.i) as ids,
             array_agg(u.outcome order by u.i) as outcomes,
             array_agg(u.error order by u.i) as errors,
             array_agg(u.result order by u.i) as results,
             array_agg(u.duration order by u.i) as durations,
             array_agg(u.delay order by u.i) as delays
        from unnest(p_lease_ids, p_task_ids, p_outcomes, p_errors, p_results, p_durations,
                    p_delays)
               with ordinality u(lease_id, task_id, outcome, error, result, duration, delay, i)
       group by u.lease_id order by u.lease_id
    loop
      return query
        select 'refused', v_group.lease_id, r.id, null::integer, null::text, null::jsonb,
               null::jsonb, null::bigint, null::text, null::timestamptz
          from unnest(queues.finish_tasks(v_group.lease_id, v_now, p_pid, v_group.ids,
                                          v_group.outcomes, v_group.errors, v_group.results,
                                          v_group.durations, v_group.delays)) r(id);
    end loop;
  end if;
  if p_want > 0 then
    select q as queue,
           p_worker_id is null
             or exists (select from worker.worker w
                         where w.worker_id = p_worker_id and w.stopped_at is null) as alive
      into v_for
      from worker.queue_registry q where q.queue = p_queue;
    if not found then
      raise exception 'unknown queue "%"', p_queue using errcode = 'undefined_object';
    end if;
    -- One that was given up gets nothing: nobody would look after its leases.
    if not v_for.alive then
      if v_spare is not null then
        perform queues.release_spare(v_spare, (v_for.queue).queue_id);
      end if;
      return;
    end if;
    for i in 1..10 loop
      v_got := queues.hand_out(v_for.queue, p_want, coalesce(p_lanes, queues.all_lanes()), null,
                               p_worker_id, null,
                               case when p_worker_id is null then v_now + interval '5 minutes' end,
                               v_now, true, false, v_spare);
      if v_spare is not null then
        if v_got.reused is not true then
          perform queues.release_spare(v_spare, (v_for.queue).queue_id);
        end if;
        v_spare := null;
      end if;
      if v_got.task_ids is null then
        -- A parent that somebody could not decide about may hold a place.
        exit when i > 1 or queues.check_parents(false) = 0;
        continue;
      end if;
      v_refused := queues.refuse_claimed(v_got, v_now);
      v_n := cardinality(v_got.task_ids);
      if v_refused is null and v_got.stretches is not null
         and v_got.lease_ids[1] = v_got.lease_ids[v_n] then
        -- Tasks that were enqueued together lie together: one walk over their stretch of
        -- the table is cheaper than a look-up of each. In place, because a function in
        -- between would copy every row once more.
        for v_i in 1..cardinality(v_got.stretches) by 2 loop
          return query
            select 'claimed', v_got.lease_ids[1], t.task_id, 1, t.task_type,
                   case when t.dedup_key is null then t.payload
                        else queues.effective_payload(t) end,
                   t.headers, t.parent_id, t.group_key, t.scheduled_at
              from queues.task t
             where t.task_id between v_got.stretches[v_i] and v_got.stretches[v_i + 1]
             order by t.task_id;
        end loop;
        exit;
      elsif v_refused is null then
        return query select * from queues.claimed(v_got.lease_ids, v_got.task_ids, v_got.attempts);
        exit;
      elsif cardinality(v_refused) < cardinality(v_got.task_ids) then
        return query
          select c.* from queues.claimed(v_got.lease_ids, v_got.task_ids, v_got.attempts) c
           where not c.task_id = any(v_refused);
        exit;
      end if;
    end loop;
  end if;
end
$$;

comment on function queues.exchange is
  'ends finished tasks and claims the next in one round trip and one commit';
