-- The steps of worker.process_tasks (74_process.sql) that need more rights than
-- its caller has: to lease tasks and to record how they ended.

-- Leases the next SQL tasks of a queue for this session, ready to run, as
-- parallel arrays; nulls when there is none. hooks: there are commands with an
-- after hook. p_alone: the caller commits right after this.
create or replace function worker.lease_sql_tasks(
  p_queue text, p_want integer, p_max_priority bigint, p_lanes integer[], p_alone boolean,
  out lease_ids bigint[], out task_ids bigint[], out parent_ids bigint[], out commands text[],
  out payloads jsonb[], out handler_calls text[], out before_calls text[],
  out group_commits integer[], out timeouts double precision[], out hooks boolean)
language plpgsql security definer
set search_path = pg_catalog, pg_temp
set enable_seqscan = off
set jit = off
set enable_bitmapscan = off
set plan_cache_mode = force_generic_plan
as $$
declare
  v_now timestamptz := worker.now();
  -- A worker whose connection this is says so, and then owns the lease as well.
  v_worker_id bigint := nullif(current_setting('worker.worker_id', true), '')::bigint;
  v_queue worker.queue_registry;
  v_got record;
  v_found integer;
begin
  select * into v_queue from worker.queue_registry q where q.queue = p_queue;
  if not found then
    raise exception 'unknown queue "%"', p_queue using errcode = 'undefined_object';
  end if;
  hooks := exists (select from worker.command_registry c where c.after_procedure is not null);
  perform queues.check_parents();
  v_got := queues.hand_out(v_queue, p_want, p_lanes, p_max_priority, v_worker_id,
                           pg_backend_pid(), null, v_now, p_alone, true);
  if v_got.task_ids is null then
    -- Look where no claim looks, then once more.
    v_found := queues.promote_timers(v_queue.queue_id, '-infinity', v_now, 1000);
    if p_alone then
      v_found := v_found + queues.settle(v_queue.queue_id);
    end if;
    if v_found = 0 then
      return;
    end if;
    v_got := queues.hand_out(v_queue, p_want, p_lanes, p_max_priority, v_worker_id,
                             pg_backend_pid(), null, v_now, false, true);
    if v_got.task_ids is null then
      return;
    end if;
  end if;
  select array_agg(c.lease_id order by c.i), array_agg(c.task_id order by c.i),
         array_agg(c.parent_id order by c.i), array_agg(c.task_type order by c.i),
         array_agg(c.payload order by c.i), array_agg(r.handler_call order by c.i),
         array_agg(r.before_call order by c.i),
         array_agg(coalesce(r.group_commit, 1) order by c.i),
         array_agg(extract(epoch from r.timeout)::double precision order by c.i)
    into lease_ids, task_ids, parent_ids, commands, payloads, handler_calls, before_calls,
         group_commits, timeouts
    from queues.claimed(v_got.lease_ids, v_got.task_ids, v_got.attempts)
           with ordinality c(event, lease_id, task_id, attempt, task_type, payload, headers,
                             parent_id, group_key, scheduled_at, i)
    left join worker.command_registry r on r.command = c.task_type
    -- Several leases: some of these were lost before, together with others, and
    -- are to run alone, so that only the one that kills its backend is charged.
   where c.lease_id = v_got.lease_ids[1];
  if cardinality(task_ids) < cardinality(v_got.task_ids) then
    perform worker.release_sql_tasks(s.lease_id, s.ids)
       from (select u.lease_id, array_agg(u.task_id) as ids
               from unnest(v_got.lease_ids, v_got.task_ids) u(lease_id, task_id)
              where u.lease_id <> lease_ids[1] group by u.lease_id) s;
  end if;
end
$$;

-- Looks whether leased tasks may still begin. Returns those that may not, with
-- the reason; all of them, with null, when the lease is not in force. Nothing is
-- locked: the fence is at the end.
create or replace function worker.refuse_sql_tasks(p_lease_id bigint, p_ids bigint[]) returns jsonb
language plpgsql security definer
set search_path = pg_catalog, pg_temp
set enable_hashjoin = off
set enable_mergejoin = off
set enable_seqscan = off
set jit = off
set enable_bitmapscan = off
set plan_cache_mode = force_generic_plan
as $$
begin
  if not exists (select from queues.lease_open o
                  where o.lease_id = p_lease_id and o.backend_pid = pg_backend_pid()) then
    return (select jsonb_object_agg(u.id, null) from unnest(p_ids) u(id));
  end if;
  return (
    select jsonb_object_agg(u.id, case when r.task_id is not null then coalesce(r.reason, '')
                                       when p.task_id is not null then 'the parent task was canceled'
                                       else 'the parent task has ended' end)
      from unnest(p_ids) u(id)
      join queues.task t on t.task_id = u.id
      left join queues.cancel_request r on r.task_id = t.task_id
      left join queues.cancel_request p on p.task_id = t.parent_id
      left join queues.task_completed c on c.task_id = t.parent_id
     where r.task_id is not null or p.task_id is not null or c.task_id is not null);
end
$$;

-- The end of SQL tasks of one lease. Their runs are what worker.run_handler
-- returned. p_last: these were the last of the lease. Raises when the lease is
-- not in force: then all that the caller did in this transaction is undone.
-- Returns the state of the last of them; 'pending' when it is tried again.
create or replace function worker.finish_sql_tasks(
  p_lease_id bigint, p_last boolean, p_ids bigint[], p_runs jsonb[], p_durations real[])
returns text
language plpgsql security definer
set search_path = pg_catalog, pg_temp
set enable_seqscan = off
set jit = off
set enable_bitmapscan = off
set plan_cache_mode = force_generic_plan
as $$
declare
  v_now timestamptz := worker.now();
  v_last bigint := p_ids[cardinality(p_ids)];
  v_first bigint := p_ids[1];
  v_lease queues.lease;
  v_open queues.lease_open;
  v_held record;
  v_state text := 'completed';
begin
  select l as lease, o as open into v_held
    from queues.lease_open o join queues.lease l using (lease_id)
   where o.lease_id = p_lease_id and o.backend_pid = pg_backend_pid()
     for no key update of o;
  v_lease := v_held.lease;
  v_open := v_held.open;
  if v_lease.lease_id is null or not p_ids <@ v_lease.task_ids
     or exists (select from queues.attempt_end e
                 where e.task_id = any(p_ids) and e.lease_id = p_lease_id) then
    raise exception 'the lease of task % is not in force', v_last
      using errcode = 'object_not_in_prerequisite_state';
  end if;

  if cardinality(p_ids) > 1 then
    select min(u.id) into v_first from unnest(p_ids) u(id);
  end if;
  if array_remove(p_runs, null) = '{}' and not queues.may_have_children(v_first) then
    -- The common case, in short.
    insert into queues.task_completed (task_id, completed_at, lease_id, queue_id, state,
                                       duration_ms, worker_pid, attempt)
      select u.id, v_now, p_lease_id, v_lease.queue_id, 'completed', u.duration,
             v_lease.backend_pid,
             coalesce(v_lease.attempts[array_position(v_lease.task_ids, u.id)], 0) + 1
        from unnest(p_ids, p_durations) u(id, duration);
    perform queues.note_ended(p_ids);
  else
    perform queues.end_tasks(v_lease, v_open.top, v_now, pg_backend_pid(), p_ids,
                             array_agg(coalesce(u.run ->> 'outcome', 'completed') order by u.i),
                             array_agg(u.run ->> 'error' order by u.i),
                             array_agg(u.run -> 'result' order by u.i), p_durations,
                             array_agg((u.run ->> 'delay')::real order by u.i))
       from unnest(p_runs) with ordinality u(run, i);
    update queues.error e set context = u.run -> 'context'
      from unnest(p_ids, p_runs) u(task_id, run)
     where e.task_id = u.task_id and e.created_at = v_now and e.context is null
       and u.run ? 'context';
    v_state := coalesce((select c.state::text from queues.task_completed c
                          where c.task_id = v_last), 'pending');
  end if;
  if p_last and queues.unfinished(v_lease) = '{}' then
    delete from queues.lease_open o where o.lease_id = p_lease_id;
    perform queues.count_lease(v_lease, v_now, p_ids);
  elsif not v_open.partial then
    update queues.lease_open o set partial = true where o.lease_id = p_lease_id;
  end if;
  if v_open.limited then
    perform queues.release_slots(v_open, p_ids, p_wake => false);  -- see worker.wake_others
  end if;
  if v_lease.parent_ids is not null then
    perform queues.settle_parents(array_agg(distinct t.parent_id))
       from queues.task t where t.task_id = any(p_ids);
  end if;
  if queues.may_have_children(v_last)
     and exists (select from queues.waiting w where w.task_id = v_last) then
    return 'waiting';
  end if;
  return v_state;
end
$$;

-- Those of the tasks, and of their ancestors, that have ended and whose after
-- hook is due.
create or replace function worker.after_hooks_due(p_ids bigint[]) returns bigint[]
language plpgsql security definer
set search_path = pg_catalog, pg_temp
set enable_seqscan = off
set jit = off
set enable_bitmapscan = off
set plan_cache_mode = force_generic_plan
as $$
begin
  return (
    with recursive up as (
      select u.id from unnest(p_ids) u(id)
      union
      select t.parent_id from up join queues.task t on t.task_id = up.id
       where t.parent_id is not null)
    select array_agg(up.id order by up.id desc)
      from up where exists (select from queues.after_due d where d.task_id = up.id));
end
$$;

-- Hands back tasks of a lease that were not begun. Nothing happens when the
-- lease is not in force.
create or replace function worker.release_sql_tasks(p_lease_id bigint, p_task_ids bigint[])
returns void
language plpgsql security definer
set search_path = pg_catalog, pg_temp
set enable_seqscan = off
set jit = off
set enable_bitmapscan = off
set plan_cache_mode = force_generic_plan
as $$
begin
  perform queues.finish_tasks(p_lease_id, worker.now(), null, p_task_ids,
                              array_fill('released'::text, array[cardinality(p_task_ids)]),
                              null, null, null);
end
$$;

-- Takes the after hook of an ended task off the list of what is due: that of
-- p_task_id, or, with null, the next of the queue. Null: there is none.
create or replace function worker.take_after_hook(
  p_queue text, p_task_id bigint, out task_id bigint, out payload jsonb, out after_call text)
language plpgsql security definer
set search_path = pg_catalog, pg_temp
set plan_cache_mode = force_custom_plan
as $$
#variable_conflict use_column
begin
  select d.task_id into task_id
    from queues.after_due d join worker.queue_registry q using (queue_id)
   where q.queue = p_queue and (p_task_id is null or d.task_id = p_task_id)
   order by d.task_id limit 1 for update of d skip locked;
  if not found then
    return;
  end if;
  delete from queues.after_due d where d.task_id = take_after_hook.task_id;
  select coalesce(m.payload, t.payload), c.after_call into payload, after_call
    from queues.task t
    left join worker.command_registry c on c.command = t.task_type
    left join queues.merged_payload m on m.task_id = t.task_id
   where t.task_id = take_after_hook.task_id;
end
$$;

create or replace function worker.record_hook_error(p_task_id bigint, p_hook text, p_error text,
                                                    p_context jsonb) returns void
language plpgsql security definer
set search_path = pg_catalog, pg_temp
as $$
begin
  insert into queues.error (task_id, error_message, created_at, context)
    values (p_task_id, p_error, worker.now(), p_context || jsonb_build_object('hook', p_hook));
end
$$;

-- The queues a call serves: the one that is named, or all.
create or replace function worker.queues_to_run(p_queue text) returns text[]
language plpgsql security definer
set search_path = pg_catalog, pg_temp
as $$
begin
  if p_queue is null then
    return array(select q.queue from worker.queue_registry q order by q.queue);
  elsif not exists (select from worker.queue_registry q where q.queue = p_queue) then
    raise exception 'unknown queue "%"', p_queue using errcode = 'undefined_object';
  end if;
  return array[p_queue];
end
$$;

create or replace function worker.largest_group(p_queue text) returns integer
language plpgsql security definer
set search_path = pg_catalog, pg_temp
as $$
begin
  return coalesce((select max(c.group_commit) from worker.command_registry c
                    where c.queue = p_queue), 1);
end
$$;

-- The caller has ended tasks and claims no more for now: there may be slots for those
-- who wait for some.
create or replace function worker.wake_others(p_queue text) returns void
language plpgsql security definer
set search_path = pg_catalog, pg_temp
as $$
begin
  perform queues.wake_for_slots(q.queue_id) from worker.queue_registry q
    where q.queue = p_queue
      and (q.concurrency_limit is not null
           or pg_sequence_last_value('queues.gated_used') is not null);
end
$$;

-- Parents that somebody could not decide about.
create or replace function worker.check_parents() returns integer
language plpgsql security definer
set search_path = pg_catalog, pg_temp
set enable_seqscan = off
set jit = off
set enable_bitmapscan = off
set plan_cache_mode = force_generic_plan
as $$
begin
  return queues.check_parents();
end
$$;

-- What an earlier call of this session left when it was interrupted. That can
-- only be the last that this session has leased: looked for by its number,
-- because the dead rows of all that it ever leased may be in the way otherwise.
create or replace function worker.drop_own_leases() returns void
language plpgsql security definer
set search_path = pg_catalog, pg_temp
set enable_seqscan = off
set jit = off
set enable_bitmapscan = off
set plan_cache_mode = force_generic_plan
as $$
declare
  v_last bigint;
  v_lease_id bigint;
begin
  begin
    v_last := currval('queues.lease_id_seq');
  exception when object_not_in_prerequisite_state then
    return;  -- it has leased nothing yet
  end;
  for v_lease_id in
    select o.lease_id from queues.lease_open o join queues.lease l using (lease_id)
     where o.lease_id between v_last - 200 and v_last
       and o.backend_pid = pg_backend_pid() and l.backend_start = worker.backend_start()
     order by o.lease_id for update of o
  loop
    perform queues.lose_lease(v_lease_id, worker.now());
  end loop;
end
$$;
