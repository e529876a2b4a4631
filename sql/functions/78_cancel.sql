-- Cancellation. A task that has not begun ends at once and for good: its row in
-- ready or timer is locked and taken away, so a claim either had it before or
-- never gets it. A task that runs is asked to stop and is never tried again.

-- Takes a pending task out of its bundle. False: it is not pending. Waits for a
-- claim that holds the bundle at this moment.
create or replace function queues.remove_pending(p_task queues.task) returns boolean
language plpgsql
as $$
declare
  v_place tid;
begin
  -- Where a task stands that was never retried or moved; else wherever it is.
  -- The lock is taken in its own statement, on the condition that the task is
  -- (still) in that row.
  select s.ctid into v_place
    from (select r.ctid, r.task_ids from queues.ready r
           where r.queue_id = p_task.queue_id
             and r.generation = any(queues.live_generations(p_task.queue_id))
             and r.lane = p_task.lane and r.priority = p_task.priority
             and r.run_at = p_task.scheduled_at and r.first_id <= p_task.task_id
           order by r.first_id desc limit 4) s
   where p_task.task_id = any(s.task_ids);
  select r.ctid into v_place from queues.ready r
   where r.ctid = v_place and p_task.task_id = any(r.task_ids) for update;
  if not found then
    select r.ctid into v_place from queues.ready r
     where r.queue_id = p_task.queue_id and p_task.task_id = any(r.task_ids) for update;
  end if;
  if found then
    update queues.ready r
       set task_ids = array_remove(r.task_ids, p_task.task_id),
           first_id = (array_remove(r.task_ids, p_task.task_id))[1]
     where r.ctid = v_place and cardinality(r.task_ids) > 1;
    if not found then
      delete from queues.ready r where r.ctid = v_place;
    end if;
    return true;
  end if;

  select t.ctid into v_place from queues.timer t
   where t.queue_id = p_task.queue_id and p_task.task_id = any(t.task_ids) for update;
  if not found then
    return false;
  end if;
  update queues.timer t
     set task_ids = array_remove(t.task_ids, p_task.task_id),
         first_id = (array_remove(t.task_ids, p_task.task_id))[1]
   where t.ctid = v_place and cardinality(t.task_ids) > 1;
  if not found then
    delete from queues.timer t where t.ctid = v_place;
  end if;
  return true;
end
$$;

create or replace function worker.cancel(p_task_id bigint, p_reason text default null)
returns boolean
language plpgsql security definer
set search_path = pg_catalog, pg_temp
set plan_cache_mode = force_generic_plan
as $$
declare
  v_now timestamptz := worker.now();
  v_task queues.task;
  v_pid integer;
begin
  select * into v_task from queues.task t where t.task_id = p_task_id;
  if not found or exists (select from queues.task_completed c where c.task_id = p_task_id) then
    return false;
  end if;
  -- Twice: between the first look and the second it may have been handed back.
  for i in 1..2 loop
    if queues.remove_pending(v_task) then
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
    exit when exists (select from queues.waiting w where w.task_id = p_task_id)
           or queues.lease_of(p_task_id) is not null;
  end loop;
  if exists (select from queues.task_completed c where c.task_id = p_task_id) then
    return false;
  end if;
  insert into queues.cancel_request (task_id, reason, requested_at)
    values (p_task_id, p_reason, v_now) on conflict do nothing;
  if not found then
    return false;
  end if;
  perform queues.cancel_children(p_task_id, v_now, 'the parent task was canceled');
  perform queues.settle_parents(array[p_task_id]);
  return true;
end
$$;

comment on function worker.cancel(bigint, text) is
  'ends a pending task as canceled, asks a running one to stop; false when there is nothing to do';
