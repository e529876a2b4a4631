-- What a claim took but may not begin.

-- Of tasks that were just handed out to a program outside, ends as canceled those
-- whose parent has ended or is asked to stop. Returns them; null: none.
create or replace function queues.refuse_claimed(p_got record, p_now timestamptz)
returns bigint[]
language plpgsql
as $$
declare
  v_refused bigint[];
  v_group record;
begin
  if p_got.parent_ids is null then
    return null;
  elsif not exists (
     select from unnest(p_got.parent_ids) p(id)
        -- Not as EXISTS, which could be hashed: that would read the whole history.
      where coalesce((select true from queues.cancel_request r where r.task_id = p.id),
                     (select true from queues.task_completed c where c.task_id = p.id))) then
    return null;
  end if;
  for v_group in
    select s.lease_id, array_agg(s.task_id) as ids, array_agg(s.reason) as reasons,
           array_agg('canceled'::text) as outcomes
      from (select u.lease_id, u.task_id, queues.stop_reason(u.task_id, t.parent_id) as reason
              from unnest(p_got.lease_ids, p_got.task_ids) u(lease_id, task_id)
             cross join lateral (select * from queues.task t
                                  where t.task_id = u.task_id offset 0) t) s
     where s.reason is not null
     group by s.lease_id
  loop
    -- Waits for no parent: it holds rows that others may be waiting for.
    perform set_config('worker.kin_locked', 'on', true);
    perform queues.finish_tasks(v_group.lease_id, p_now, null, v_group.ids, v_group.outcomes,
                                v_group.reasons, null, null);
    v_refused := v_refused || v_group.ids;
  end loop;
  if v_refused is not null then
    perform queues.wake(t.queue_id) from queues.task t where t.task_id = p_got.task_ids[1];
  end if;
  return v_refused;
end
$$;
