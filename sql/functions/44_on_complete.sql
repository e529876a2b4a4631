-- on_complete: the command that follows when a task of another one has ended, in
-- the same commit.

-- The payload of the follower. What would make it too large is left out, and
-- "truncated" says so: the follower can read it in worker.tasks.
create or replace function queues.follower_payload(p_task queues.task,
                                                   p_end queues.task_completed)
returns jsonb
language plpgsql
as $$
declare
  c_most constant integer := least(900000, 0.9 *
    coalesce(nullif(current_setting('worker.max_payload_bytes', true), '')::integer, 1048576));
  v_result jsonb;
  v_context jsonb := p_task.context;
  v_payload jsonb;
begin
  v_result := case p_end.state
    when 'completed' then jsonb_build_object('kind', 'success', 'value', p_end.result)
    when 'failed' then jsonb_build_object('kind', 'failed', 'error', (
      select e.error_message from queues.error e
       where e.task_id = p_task.task_id and not coalesce(e.context ? 'hook', false)
       order by e.error_id desc limit 1))
    else jsonb_build_object('kind', 'canceled', 'reason', p_end.reason) end;
  for i in 1..3 loop
    v_payload := jsonb_build_object('task_id', p_task.task_id, 'command', p_task.task_type,
                                    'context', v_context, 'result', v_result);
    exit when octet_length(v_payload::text) <= c_most;
    v_result := jsonb_build_object('kind', v_result -> 'kind', 'truncated', true);
    if i = 2 then
      v_context := null;
    end if;
  end loop;
  return v_payload;
end
$$;

-- Enqueues the followers of tasks that have ended. That they cannot be enqueued
-- changes nothing of the tasks: it leaves a row in queues.error.
create or replace function queues.follow(p_ids bigint[]) returns void
language plpgsql
as $$
declare
  v_group record;
begin
  for v_group in
    select c.on_complete as command, array_agg(d.task_id order by d.task_id) as ids,
           array_agg(queues.follower_payload(t, d) order by d.task_id) as payloads
      from unnest(p_ids) u(task_id)
     cross join lateral (select * from queues.task_completed d
                          where d.task_id = u.task_id offset 0) d
     cross join lateral (select * from queues.task t where t.task_id = u.task_id offset 0) t
      join worker.command_registry c on c.command = t.task_type
     where c.on_complete is not null
     group by c.on_complete order by c.on_complete
  loop
    begin
      perform queues.add_tasks(v_group.command, v_group.payloads);
    exception when others then
      insert into queues.error (task_id, error_message, created_at, context)
        select u.id, format('on_complete "%s": %s', v_group.command, sqlerrm), worker.now(),
               jsonb_build_object('hook', 'on_complete', 'sqlstate', sqlstate)
          from unnest(v_group.ids) u(id);
    end;
  end loop;
end
$$;

-- A command that follows itself, directly or by way of others, would never end.
create or replace function worker.command_registry_follows() returns trigger
language plpgsql security definer
set search_path = pg_catalog, pg_temp
as $$
declare
  v_chain text[] := array[new.command];
  v_next text := new.on_complete;
begin
  while v_next is not null loop
    if v_next = any(v_chain) then
      raise exception 'on_complete of command "%" comes back to itself: %', new.command,
        array_to_string(v_chain || v_next, ' -> ')
        using errcode = 'invalid_parameter_value';
    end if;
    v_chain := v_chain || v_next;
    select c.on_complete into v_next from worker.command_registry c where c.command = v_next;
    exit when not found;
  end loop;
  return null;
end
$$;

create or replace trigger command_registry_follows
  after insert or update of on_complete, command on worker.command_registry
  for each row when (new.on_complete is not null)
  execute function worker.command_registry_follows();
