-- What worker.explain_task says of limits.

-- Who holds a key, at most ten, in words.
create or replace function queues.holders(p_key text, out n bigint, out ids text)
language plpgsql
as $$
begin
  select count(*), string_agg(s.id::text, ', ' order by s.id) filter (where s.i <= 10)
    into n, ids
    from (select u.id, row_number() over (order by u.id) as i
            from queues.slot_holder h cross join lateral unnest(h.task_ids) u(id)
           where h.task_key = p_key) s;
  if n > 10 then
    ids := ids || ' …';
  end if;
end
$$;

-- Why a parked task waits behind its gate.
create or replace function queues.explain_gate(
  p_task queues.task, p_command worker.command_registry, p_gate text, p_now timestamptz)
returns text
language plpgsql
as $$
declare
  v_before bigint;
  v_held record;
begin
  if p_gate = p_task.task_type || '>' || p_task.order_key then
    select min(o.task_id) into v_before from queues.ordered o
     where o.task_type = p_task.task_type and o.order_key = p_task.order_key
       and o.task_id < p_task.task_id;
    if v_before is null then
      return null;
    end if;
    return format('It comes after task %s, which has the same order key "%s"%s.', v_before,
                  p_task.order_key,
                  case when exists (select from queues.task_completed d where d.task_id = v_before)
                    then ' and has failed: retry that one, or cancel it' else '' end);
  end if;
  v_held := queues.holders(p_gate);
  if v_held.n >= p_command.group_concurrency_limit then
    return format('Command "%s" runs %s task(s) of group key "%s" at a time, and these do: %s.',
                  p_command.command, p_command.group_concurrency_limit, p_task.group_key,
                  v_held.ids);
  elsif p_command.group_rate_limit is not null then
    return format('Command "%s" starts %s task(s) of group key "%s" in %s; the next may at %s.',
                  p_command.command, p_command.group_rate_limit, p_task.group_key,
                  p_command.rate_period,
                  greatest(p_now, (queues.rate_room(p_gate, p_command.group_rate_limit,
                                                    p_command.rate_period, p_now)).next_at));
  end if;
  return format('Others of group key "%s" are before it.', p_task.group_key);
end
$$;

-- The limits that keep a pending task from starting, in words.
create or replace function queues.explain_limits(
  p_task queues.task, p_queue worker.queue_registry, p_now timestamptz)
returns text[]
language plpgsql
as $$
declare
  v_command worker.command_registry;
  v_gate text;
  v_held record;
  v_room record;
  v_why text[] := '{}';
begin
  select * into v_command from worker.command_registry c where c.command = p_task.task_type;
  select t.gate into v_gate from queues.timer t
   where t.queue_id = p_task.queue_id and t.first_id = p_task.task_id and t.gate is not null;
  if found then
    v_why := v_why || queues.explain_gate(p_task, v_command, v_gate, p_now);
  end if;
  if v_command.paused and queues.opens_at(v_command, p_now) is not null then
    v_why := v_why || format('Command "%s" is paused%s.', v_command.command,
                             coalesce(' until ' || v_command.paused_until, ''));
  elsif queues.opens_at(v_command, p_now) is not null then
    v_why := v_why || format('Command "%s" starts from %s to %s (%s): next at %s.',
                             v_command.command, v_command.window_start, v_command.window_end,
                             coalesce(v_command.window_zone, 'UTC'),
                             queues.opens_at(v_command, p_now));
  end if;
  v_held := queues.holders(v_command.command);
  if v_held.n >= v_command.concurrency_limit then
    v_why := v_why || format('Command "%s" runs %s task(s) at a time%s.', v_command.command,
                             v_command.concurrency_limit,
                             coalesce(', and these do: ' || v_held.ids, ''));
  end if;
  if v_command.rate_limit is not null then
    v_room := queues.rate_room(v_command.command, v_command.rate_limit, v_command.rate_period,
                               p_now);
    if v_room.n = 0 then
      v_why := v_why || format('Command "%s" starts %s task(s) in %s; the next may at %s.',
                               v_command.command, v_command.rate_limit, v_command.rate_period,
                               v_room.next_at);
    end if;
  end if;
  v_held := queues.holders('queue:' || p_queue.queue);
  if v_held.n >= p_queue.concurrency_limit then
    v_why := v_why || format('Queue "%s" runs %s task(s) at a time%s.', p_queue.queue,
                             p_queue.concurrency_limit,
                             coalesce(', and these do: ' || v_held.ids, ''));
  end if;
  return array_remove(v_why, null);
end
$$;
