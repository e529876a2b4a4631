-- Kin: parents wait for their children.
--
-- Whether a parent may end is decided under a lock on the parent, in a
-- statement that begins after the lock is held, by whoever ends last: the
-- parent itself or one of its children. Locks go from newer to older tasks, so
-- that a tree never deadlocks with itself.

-- The newest task that ever had a child tells, for one probe, that a whole
-- batch of newer tasks has none.
create or replace function queues.may_have_children(p_first_id bigint) returns boolean
language plpgsql
as $$
begin
  return exists (select from queues.task t where t.parent_id >= p_first_id);
end
$$;

create or replace function queues.parent_key(p_task_id bigint) returns bigint
language sql immutable
as $$ select 8101412779686100992 | p_task_id $$;

-- Locks those of the tasks that have children, newest first. Returns them.
create or replace function queues.lock_parents(p_ids bigint[]) returns bigint[]
language plpgsql
as $$
declare
  v_parents bigint[];
begin
  select array_agg(i.id order by i.id desc) into v_parents
    from unnest(p_ids) i(id)
   where exists (select from queues.task c where c.parent_id = i.id);
  for i in 1..coalesce(cardinality(v_parents), 0) loop
    perform pg_advisory_xact_lock(queues.parent_key(v_parents[i]));
  end loop;
  return v_parents;
end
$$;

-- Newest children first: they are the ones most likely to be unfinished.
create or replace function worker.has_pending_children(p_task_id bigint) returns boolean
language plpgsql security definer
set search_path = pg_catalog, pg_temp
set enable_seqscan = off
set enable_bitmapscan = off
set plan_cache_mode = force_generic_plan
set enable_hashjoin = off
set enable_mergejoin = off
as $$
declare
  v_child bigint;
begin
  for v_child in
    select c.task_id from queues.task c where c.parent_id = p_task_id order by c.task_id desc
  loop
    if not exists (select from queues.task_completed d where d.task_id = v_child) then
      return true;
    end if;
  end loop;
  return false;
end
$$;

-- Ends those of these parents that wait and have no unfinished child.
create or replace function queues.settle_parents(p_parent_ids bigint[]) returns integer
language plpgsql
as $$
declare
  v_parent bigint;
  v_ended integer := 0;
begin
  -- A snapshot from before the lock cannot tell who was last: leave it to a
  -- transaction that can.
  if current_setting('transaction_isolation') <> 'read committed' then
    insert into queues.parent_check (parent_id) select distinct unnest(p_parent_ids);
    return 0;
  end if;
  for v_parent in
    select distinct p.id from unnest(p_parent_ids) p(id) order by p.id desc
  loop
    -- More to do for it: somebody else will come by here after that.
    if exists (select from queues.ready r where r.parent_id = v_parent
                  and r.generation = any(queues.live_generations(r.queue_id)))
       or exists (select from queues.timer t where t.parent_id = v_parent) then
      continue;
    end if;
    if worker.complete_parent_if_ready(v_parent) then
      v_ended := v_ended + 1;
    end if;
  end loop;
  return v_ended;
end
$$;

create or replace function worker.complete_parent_if_ready(p_parent_id bigint) returns boolean
language plpgsql security definer
set search_path = pg_catalog, pg_temp
as $$
declare
  v_now timestamptz := worker.now();
  v_waiting queues.waiting;
  v_grandparent bigint;
  v_failed boolean;
begin
  perform pg_advisory_xact_lock(queues.parent_key(p_parent_id));
  select * into v_waiting from queues.waiting w where w.task_id = p_parent_id;
  if not found or worker.has_pending_children(p_parent_id) then
    return false;
  end if;
  v_failed := exists (
    select from queues.task c join queues.task_completed d using (task_id)
     where c.parent_id = p_parent_id and d.state = 'failed');
  delete from queues.waiting w where w.task_id = p_parent_id;
  if exists (select from queues.cancel_request r where r.task_id = p_parent_id) then
    perform queues.end_canceled(p_parent_id, null, v_waiting.queue_id, v_waiting.attempt, v_now,
                                v_waiting.duration_ms, v_waiting.worker_pid);
  elsif v_failed then
    perform queues.end_failed(p_parent_id, null, v_waiting.queue_id, v_waiting.attempt, v_now,
                              'One or more child tasks failed', null, v_waiting.duration_ms,
                              v_waiting.worker_pid);
  else
    insert into queues.task_completed (task_id, completed_at, queue_id, state, duration_ms,
                                       worker_pid, attempt, result)
      values (p_parent_id, v_now, v_waiting.queue_id, 'completed', v_waiting.duration_ms,
              v_waiting.worker_pid, v_waiting.attempt, v_waiting.result);
    perform queues.note_ended(array[p_parent_id]);
  end if;
  select t.parent_id into v_grandparent from queues.task t where t.task_id = p_parent_id;
  if v_grandparent is not null then
    perform queues.settle_parents(array[v_grandparent]);
  end if;
  return true;
end
$$;

-- Cancels what of a task's descendants has not begun: what a claim holds at
-- this moment is about to run, and finishes.
create or replace function queues.cancel_children(p_task_id bigint, p_now timestamptz,
                                                  p_reason text) returns integer
language plpgsql
as $$
declare
  v_ids bigint[];
  v_child bigint;
  v_canceled integer;
begin
  if not queues.may_have_children(p_task_id) then
    return 0;
  end if;
  with ready as (
    delete from queues.ready where ctid = any(array(
      select r.ctid from queues.ready r where r.parent_id = p_task_id for update skip locked))
    returning queue_id, attempts, task_ids),
  timer as (
    delete from queues.timer where ctid = any(array(
      select t.ctid from queues.timer t where t.parent_id = p_task_id for update skip locked))
    returning queue_id, attempts, task_ids),
  ended as (
    insert into queues.task_completed (task_id, completed_at, queue_id, state, attempt, reason)
      select unnest(s.task_ids), p_now, s.queue_id, 'canceled', s.attempts, p_reason
        from (select * from ready union all select * from timer) s
    returning task_id)
  select array_agg(task_id) into v_ids from ended;
  if v_ids is null then
    return 0;
  end if;
  delete from queues.pending_key k where k.task_id = any(v_ids);
  v_canceled := cardinality(v_ids);
  foreach v_child in array v_ids loop
    v_canceled := v_canceled + queues.cancel_children(v_child, p_now, p_reason);
  end loop;
  return v_canceled;
end
$$;

-- Parents that somebody could not decide about. Returns how many ended.
create or replace function queues.check_parents() returns integer
language plpgsql
as $$
declare
  v_checks bigint[];
  v_parents bigint[];
begin
  if current_setting('transaction_isolation') <> 'read committed' then
    return 0;
  end if;
  select array_agg(s.check_id), array_agg(s.parent_id) into v_checks, v_parents
    from (select c.check_id, c.parent_id from queues.parent_check c
           order by c.check_id limit 1000 for update skip locked) s;
  if v_checks is null then
    return 0;
  end if;
  delete from queues.parent_check c where c.check_id = any(v_checks);
  return queues.settle_parents(v_parents);
end
$$;

-- Tasks that have just ended: their after hooks are due, and who asked for it
-- is told. Costs a batch one probe when no command has a hook.
create or replace function queues.note_ended(p_ids bigint[]) returns void
language plpgsql
as $$
begin
  if exists (select from worker.command_registry c where c.after_procedure is not null) then
    insert into queues.after_due (task_id, queue_id)
      select t.task_id, t.queue_id
        from queues.task t join worker.command_registry c on c.command = t.task_type
       where t.task_id = any(p_ids) and c.after_procedure is not null
         and exists (select from queues.task_completed d where d.task_id = t.task_id)
      on conflict do nothing;
  end if;
  if coalesce(current_setting('worker.notify_changes', true), '') = 'on' then
    perform pg_notify('worker_task_changed', json_build_object('id', d.task_id, 'state', d.state)::text)
       from queues.task_completed d where d.task_id = any(p_ids);
  end if;
end
$$;
