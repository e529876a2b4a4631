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
  p_task queues.task, p_anywhere boolean, out place tid, out kept_in text,
  out attempts smallint)
language plpgsql
as $$
begin
  place := queues.find_ready(p_task, p_anywhere);
  select r.ctid, r.attempts into place, attempts from queues.ready r
   where r.ctid = place and p_task.task_id = any(r.task_ids) for update;
  if found then
    kept_in := 'ready';
    return;
  end if;
  place := queues.find_timer(p_task, p_anywhere);
  select t.ctid, t.attempts into place, attempts from queues.timer t
   where t.ctid = place and p_task.task_id = any(t.task_ids) for update;
  if found then
    kept_in := 'timer';
  end if;
end
$$;

-- Takes a pending task out of its bundle. Returns how often it was handed out;
-- null: it was not found.
create or replace function queues.remove_pending(p_task queues.task, p_anywhere boolean)
returns smallint
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
  return v_at.attempts;
end
$$;

-- Frees the dedup keys of tasks that have ended before they were begun. What was
-- merged into them stays, for those who look and for worker.retry.
create or replace function queues.drop_keys(p_ids bigint[]) returns void
language plpgsql
as $$
begin
  with gone as (
    delete from queues.pending_key k where k.task_id = any(p_ids)
    returning k.task_id, k.payload)
  insert into queues.merged_payload (task_id, payload)
    select g.task_id, g.payload from gone g where g.payload is not null
    on conflict do nothing;
end
$$;

-- Interrupts the session that runs a task, when it can be told that it runs this
-- one: it is the only task of its lease, and the caller's lock on the lease
-- keeps it from ending. A task outside the database is the affair of its worker,
-- who is told to look.
create or replace function queues.interrupt_task(p_lease_id bigint) returns void
language plpgsql
as $$
declare
  v_lease queues.lease;
begin
  select * into v_lease from queues.lease l where l.lease_id = p_lease_id;
  if v_lease.backend_pid is null then
    perform pg_notify('worker_task_changed', 'cancel');
  elsif cardinality(v_lease.task_ids) = 1 and v_lease.backend_pid <> pg_backend_pid()
     and exists (select from pg_stat_get_activity(v_lease.backend_pid) a
                  where a.backend_start = v_lease.backend_start) then
    perform pg_cancel_backend(v_lease.backend_pid);
  end if;
exception when insufficient_privilege then
  null;  -- then it runs to its end, and is not tried again
end
$$;

-- Asks a task that runs or waits to stop, and its children. Null: it does
-- neither. p_wait: otherwise one that somebody holds at this moment is left
-- alone, because he may be waiting for the caller.
create or replace function queues.request_cancel(
  p_task_id bigint, p_reason text, p_now timestamptz, p_wait boolean default true)
returns boolean
language plpgsql
as $$
declare
  v_lease_id bigint := queues.lease_of(p_task_id);
  v_child bigint;
begin
  if v_lease_id is not null then
    -- Held in share mode, the lease cannot end before this request is seen.
    if p_wait then
      perform from queues.lease_open o where o.lease_id = v_lease_id for share;
    else
      perform from queues.lease_open o where o.lease_id = v_lease_id for share skip locked;
    end if;
    if not found or queues.lease_of(p_task_id) is distinct from v_lease_id then
      return null;
    end if;
  else
    if not p_wait or not exists (select from queues.waiting w where w.task_id = p_task_id) then
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
  for v_child in
    select f.task_id from queues.in_flight f
     where (select t.parent_id from queues.task t where t.task_id = f.task_id) = p_task_id
  loop
    perform queues.request_cancel(v_child, 'the parent task was canceled', p_now, false);
  end loop;
  insert into queues.parent_check (parent_id) values (p_task_id);
  perform queues.check_parents();
  return true;
end
$$;

-- Cancels one task. Without p_running only if it has not begun, or waits for its
-- next attempt; and then whether its parent may end is left to check_parents.
create or replace function queues.cancel_task(p_task queues.task, p_reason text,
                                              p_now timestamptz, p_running boolean)
returns boolean
language plpgsql
as $$
declare
  v_attempts smallint;
  v_asked boolean;
begin
  -- Merges hold the key before they touch the row, so this does too.
  perform from queues.pending_key k where k.task_id = p_task.task_id for update;
  -- Until it is found somewhere: it may move on while this looks.
  for i in 1..1000 loop
    if exists (select from queues.task_completed c where c.task_id = p_task.task_id) then
      return p_running and worker.unblock(p_task.task_id);
    end if;
    v_attempts := queues.remove_pending(p_task, i > 1);
    if v_attempts is not null then
      insert into queues.task_completed (task_id, completed_at, queue_id, state, attempt, reason)
        values (p_task.task_id, p_now, p_task.queue_id, 'canceled', v_attempts, p_reason);
      perform queues.drop_keys(array[p_task.task_id]);
      perform queues.cancel_children(p_task.task_id, p_now, 'the parent task was canceled');
      perform queues.note_ended(array[p_task.task_id]);
      perform queues.count_ends(p_task.queue_id, p_now, 0, p_canceled => 1);
      if p_task.parent_id is not null and p_running then
        perform queues.settle_parents(array[p_task.parent_id]);
      elsif p_task.parent_id is not null then
        insert into queues.parent_check (parent_id) values (p_task.parent_id);
      end if;
      return true;
    end if;
    if p_running then
      v_asked := queues.request_cancel(p_task.task_id, p_reason, p_now);
      if v_asked is not null then
        return v_asked;
      end if;
    elsif queues.lease_of(p_task.task_id) is not null
          or exists (select from queues.waiting w where w.task_id = p_task.task_id) then
      return false;
    end if;
  end loop;
  raise exception 'task % is neither pending nor running nor ended', p_task.task_id
    using errcode = 'internal_error';
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
  v_task queues.task;
begin
  select * into v_task from queues.task t where t.task_id = p_task_id;
  return found and queues.cancel_task(v_task, p_reason, worker.now(), true);
end
$$;

comment on function worker.cancel(bigint, text) is
  'ends a pending task as canceled, asks a running one to stop, takes a failed one out of the way of those behind it; false when there is nothing to do';

-- What a worker that runs tasks outside the database is to stop: those of its
-- tasks that were asked to, or whose parent was, or has ended. Looked at about
-- once a second, and after a notification worker_task_changed with 'cancel'.
create or replace function worker.cancel_requests(p_worker_id bigint)
returns table (lease_id bigint, task_id bigint, reason text)
language plpgsql security definer
set search_path = pg_catalog, pg_temp
set enable_seqscan = off
set jit = off
set enable_bitmapscan = off
set plan_cache_mode = force_generic_plan
as $$
#variable_conflict use_column
declare
  -- No lease of a worker is open below it: dead rows are not walked over. For
  -- that the worker is asked for in a way that its own index cannot serve.
  v_floor bigint := coalesce(pg_sequence_last_value('queues.lease_floor'), 0);
  v_own boolean := exists (select from queues.cancel_request);
begin
  return query
    select s.lease_id, s.task_id, nullif(s.reason, '')
      from (select o.lease_id, u.task_id, queues.stop_reason(u.task_id, t.parent_id) as reason
              from queues.lease_open o join queues.lease l using (lease_id)
             cross join lateral unnest(queues.unfinished(l)) u(task_id)
             cross join lateral (select k.parent_id from queues.task k
                                  where k.task_id = u.task_id offset 0) t
             where o.lease_id >= v_floor and o.worker_id + 0 = p_worker_id
               and o.backend_pid is null
               and ((v_own and exists (select from queues.cancel_request r
                                        where r.task_id = any(l.task_ids)))
                    -- Not as EXISTS, which could be hashed: that would read the whole
                    -- history.
                    or (l.parent_ids is not null and exists (
                          select from unnest(l.parent_ids) p(id)
                           where coalesce(
                             (select true from queues.cancel_request r where r.task_id = p.id),
                             (select true from queues.task_completed c where c.task_id = p.id)))))
             ) s
     where s.reason is not null
     order by s.lease_id, s.task_id;
end
$$;

comment on function worker.cancel_requests(bigint) is
  'the tasks that this worker holds and is asked to stop';
