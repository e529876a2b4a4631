-- Cancellation. A task that has not begun ends at once and for good: its row in
-- ready or timer is locked and taken away, so a claim either had it before or
-- never gets it. A task that runs is asked to stop and is never tried again.

-- Where in queues.ready a task stands, or null. A task that was never retried
-- or moved is found by what it was enqueued with; with p_anywhere, wherever it
-- is, which reads the whole queue.
create or replace function queues.find_ready(p_task queues.task, p_anywhere boolean) returns tid
language plpgsql
as $$
declare
  v_place tid;
begin
  select s.ctid into v_place
    from (select r.ctid, r.task_ids from queues.ready r
           where r.queue_id = p_task.queue_id
             and r.generation = any(queues.live_generations(p_task.queue_id))
             and r.lane = p_task.lane and r.priority = p_task.priority
             and r.run_at = p_task.scheduled_at and r.first_id <= p_task.task_id
           order by r.first_id desc limit 4) s
   where p_task.task_id = any(s.task_ids);
  if not found and p_anywhere then
    select r.ctid into v_place from queues.ready r
     where r.queue_id = p_task.queue_id and p_task.task_id = any(r.task_ids);
  end if;
  return v_place;
end
$$;

-- The same for queues.timer.
create or replace function queues.find_timer(p_task queues.task, p_anywhere boolean) returns tid
language plpgsql
as $$
declare
  v_place tid;
begin
  select s.ctid into v_place
    from (select t.ctid, t.task_ids from queues.timer t
           where t.queue_id = p_task.queue_id and t.run_at = p_task.scheduled_at
             and t.first_id <= p_task.task_id
           order by t.first_id desc limit 4) s
   where p_task.task_id = any(s.task_ids);
  if not found then
    select t.ctid into v_place from queues.timer t
     where t.queue_id = p_task.queue_id and t.run_at = queues.never()
       and t.first_id = p_task.task_id;
  end if;
  if not found and p_anywhere then
    select t.ctid into v_place from queues.timer t
     where t.queue_id = p_task.queue_id and p_task.task_id = any(t.task_ids);
  end if;
  return v_place;
end
$$;

-- Locks the row in which a pending task stands against claims, and says where
-- that is; nulls: it was not found. Waits for a claim that holds the row at this
-- moment: the lock is taken in its own statement, on the condition that the task
-- is (still) in that row. A row that moved meanwhile is not found.
create or replace function queues.lock_pending(
  p_task queues.task, p_anywhere boolean, out place tid, out kept_in text)
language plpgsql
as $$
begin
  place := queues.find_ready(p_task, p_anywhere);
  select r.ctid into place from queues.ready r
   where r.ctid = place and p_task.task_id = any(r.task_ids) for update;
  if found then
    kept_in := 'ready';
    return;
  end if;
  place := queues.find_timer(p_task, p_anywhere);
  select t.ctid into place from queues.timer t
   where t.ctid = place and p_task.task_id = any(t.task_ids) for update;
  if found then
    kept_in := 'timer';
  end if;
end
$$;

-- Takes a pending task out of its bundle. False: it was not found.
create or replace function queues.remove_pending(p_task queues.task, p_anywhere boolean)
returns boolean
language plpgsql
as $$
declare
  v_at record;
begin
  v_at := queues.lock_pending(p_task, p_anywhere);
  if v_at.kept_in = 'ready' then
    update queues.ready r
       set task_ids = array_remove(r.task_ids, p_task.task_id),
           first_id = (array_remove(r.task_ids, p_task.task_id))[1]
     where r.ctid = v_at.place and cardinality(r.task_ids) > 1;
    if not found then
      delete from queues.ready r where r.ctid = v_at.place;
    end if;
  elsif v_at.kept_in = 'timer' then
    update queues.timer t
       set task_ids = array_remove(t.task_ids, p_task.task_id),
           first_id = (array_remove(t.task_ids, p_task.task_id))[1]
     where t.ctid = v_at.place and cardinality(t.task_ids) > 1;
    if not found then
      delete from queues.timer t where t.ctid = v_at.place;
    end if;
  end if;
  -- Others may wait behind it for its key.
  if v_at.kept_in is not null and p_task.group_key is not null and p_task.lane > 3 then
    insert into queues.gate_check (gate) values (p_task.task_type || '/' || p_task.group_key);
  end if;
  return v_at.kept_in is not null;
end
$$;

-- Interrupts the session that runs a task, when it can be told that it runs this
-- one: it is the only task of its lease, and the caller's lock on the lease
-- keeps it from ending.
create or replace function queues.interrupt_task(p_lease_id bigint) returns void
language plpgsql
as $$
declare
  v_lease queues.lease;
begin
  select * into v_lease from queues.lease l where l.lease_id = p_lease_id;
  if cardinality(v_lease.task_ids) = 1 and v_lease.backend_pid <> pg_backend_pid()
     and exists (select from pg_stat_get_activity(v_lease.backend_pid) a
                  where a.backend_start = v_lease.backend_start) then
    perform pg_cancel_backend(v_lease.backend_pid);
  end if;
exception when insufficient_privilege then
  null;  -- then it runs to its end, and is not tried again
end
$$;

-- Asks a task that runs or waits to stop. Null: it does neither.
create or replace function queues.request_cancel(p_task_id bigint, p_reason text,
                                                 p_now timestamptz) returns boolean
language plpgsql
as $$
declare
  v_lease_id bigint := queues.lease_of(p_task_id);
begin
  if v_lease_id is not null then
    -- Held in share mode, the lease cannot end before this request is seen.
    perform from queues.lease_open o where o.lease_id = v_lease_id for share;
    if not found or queues.lease_of(p_task_id) is distinct from v_lease_id then
      return null;
    end if;
  else
    if not exists (select from queues.waiting w where w.task_id = p_task_id) then
      return null;
    end if;
    perform pg_advisory_xact_lock(queues.parent_key(p_task_id));
    perform set_config('worker.kin_locked', 'on', true);
    if not exists (select from queues.waiting w where w.task_id = p_task_id) then
      return null;
    end if;
  end if;
  insert into queues.cancel_request (task_id, reason, requested_at)
    values (p_task_id, p_reason, p_now) on conflict do nothing;
  if not found then
    return false;
  end if;
  if v_lease_id is not null then
    perform queues.interrupt_task(v_lease_id);
  end if;
  perform queues.cancel_children(p_task_id, p_now, 'the parent task was canceled');
  insert into queues.parent_check (parent_id) values (p_task_id);
  perform queues.check_parents();
  return true;
end
$$;

create or replace function worker.cancel(p_task_id bigint, p_reason text default null)
returns boolean
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
  v_asked boolean;
begin
  select * into v_task from queues.task t where t.task_id = p_task_id;
  if not found then
    return false;
  end if;
  -- Merges hold the key before they touch the row, so this does too.
  perform from queues.pending_key k where k.task_id = p_task_id for update;
  -- Until it is found somewhere: it may move on while this looks.
  for i in 1..1000 loop
    if exists (select from queues.task_completed c where c.task_id = p_task_id) then
      return worker.unblock(p_task_id);
    end if;
    if queues.remove_pending(v_task, i > 1) then
      insert into queues.task_completed (task_id, completed_at, queue_id, state, reason)
        values (p_task_id, v_now, v_task.queue_id, 'canceled', p_reason);
      delete from queues.pending_key k where k.task_id = p_task_id;
      perform queues.cancel_children(p_task_id, v_now, 'the parent task was canceled');
      perform queues.note_ended(array[p_task_id]);
      if v_task.parent_id is not null then
        perform queues.settle_parents(array[v_task.parent_id]);
      end if;
      return true;
    end if;
    v_asked := queues.request_cancel(p_task_id, p_reason, v_now);
    if v_asked is not null then
      return v_asked;
    end if;
  end loop;
  raise exception 'task % is neither pending nor running nor ended', p_task_id
    using errcode = 'internal_error';
end
$$;

comment on function worker.cancel(bigint, text) is
  'ends a pending task as canceled, asks a running one to stop, takes a failed one out of the way of those behind it; false when there is nothing to do';
