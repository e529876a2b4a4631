-- What a claim took but may not begin.

-- A command that is given another kind leaves its pending tasks in a line where
-- those wait that can no longer run it.
create or replace function worker.command_registry_moved() returns trigger
language plpgsql
set search_path = pg_catalog, pg_temp
as $$
begin
  new.moved := old.moved or new.lane <> old.lane;
  return new;
end
$$;

-- After command_registry_number, which finds the lane: by name.
create or replace trigger command_registry_old_lane
  before update on worker.command_registry
  for each row execute function worker.command_registry_moved();

-- Of tasks that were just leased for a program outside, ends as canceled those
-- whose parent has ended or is asked to stop, and hands back those that belong
-- into another line by now. Returns them; null: none. Costs two probes when no
-- task has a parent and no command was moved.
create or replace function queues.refuse_claimed(
  p_lease_ids bigint[], p_task_ids bigint[], p_lanes integer[], p_now timestamptz)
returns bigint[]
language plpgsql
as $$
declare
  v_leases bigint[] := p_lease_ids[1:1];
  v_refused bigint[];
  v_group record;
begin
  if p_lease_ids[1] <> p_lease_ids[cardinality(p_lease_ids)] then
    v_leases := array(select distinct unnest(p_lease_ids));
  end if;
  if not (p_lanes is not null and exists (select from worker.command_registry c where c.moved))
     and not exists (
       select from queues.lease l cross join lateral unnest(l.parent_ids) p(id)
        where l.lease_id = any(v_leases)
          -- Not as EXISTS, which could be hashed: that would read the whole history.
          and coalesce((select true from queues.cancel_request r where r.task_id = p.id),
                       (select true from queues.task_completed c where c.task_id = p.id))) then
    return null;
  end if;
  for v_group in
    select s.lease_id, array_agg(s.task_id) as ids, array_agg(s.reason) as reasons,
           array_agg(case when s.reason is null then 'released' else 'canceled' end) as outcomes
      from (select u.lease_id, u.task_id, queues.stop_reason(u.task_id, t.parent_id) as reason,
                   c.lane + (t.parent_id is not null)::integer as lane
              from unnest(p_lease_ids, p_task_ids) u(lease_id, task_id)
             cross join lateral (select * from queues.task t
                                  where t.task_id = u.task_id offset 0) t
              left join worker.command_registry c on c.command = t.task_type) s
     where s.reason is not null or not s.lane = any(p_lanes)
     group by s.lease_id
  loop
    -- Waits for no parent: it holds rows that others may be waiting for.
    perform set_config('worker.kin_locked', 'on', true);
    perform queues.finish_tasks(v_group.lease_id, p_now, null, v_group.ids, v_group.outcomes,
                                v_group.reasons, null, null);
    v_refused := v_refused || v_group.ids;
  end loop;
  if v_refused is not null then
    perform queues.wake(t.queue_id) from queues.task t where t.task_id = p_task_ids[1];
  end if;
  return v_refused;
end
$$;
