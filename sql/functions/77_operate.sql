-- What people do to queues and commands that run: pause and resume. And a short
-- answer to where a task is.

create or replace function queues.pause_until(p_for interval) returns timestamptz
language plpgsql
as $$
begin
  if p_for <= '0' then
    raise exception 'a pause lasts for more than nothing, not for %', p_for
      using errcode = 'invalid_parameter_value';
  end if;
  return worker.now() + p_for;
end
$$;

-- The registry is where the pause is kept, so it survives everybody; its trigger
-- tells the workers.
create or replace function worker.pause(p_queue text, p_for interval default null)
returns boolean
language plpgsql security definer
set search_path = pg_catalog, pg_temp
as $$
begin
  update worker.queue_registry q
     set paused = true, paused_until = queues.pause_until(p_for) where q.queue = p_queue;
  if not found then
    raise exception 'unknown queue "%"', p_queue using errcode = 'undefined_object';
  end if;
  return true;
end
$$;

comment on function worker.pause(text, interval) is
  'no task of this queue begins until worker.resume, or for this long; what runs goes on';

create or replace function worker.resume(p_queue text) returns boolean
language plpgsql security definer
set search_path = pg_catalog, pg_temp
as $$
declare
  v_queue worker.queue_registry;
begin
  select * into v_queue from worker.queue_registry q where q.queue = p_queue for update;
  if not found then
    raise exception 'unknown queue "%"', p_queue using errcode = 'undefined_object';
  elsif not v_queue.paused then
    return false;
  end if;
  update worker.queue_registry q set paused = false, paused_until = null
   where q.queue = p_queue;
  perform queues.wake(v_queue.queue_id);
  return v_queue.paused_until is null or v_queue.paused_until > worker.now();
end
$$;

comment on function worker.resume(text) is
  'ends the pause of a queue; false when it was not paused';

create or replace function worker.pause_command(p_command text, p_for interval default null)
returns boolean
language plpgsql security definer
set search_path = pg_catalog, pg_temp
as $$
begin
  update worker.command_registry c
     set paused = true, paused_until = queues.pause_until(p_for) where c.command = p_command;
  if not found then
    perform queues.refuse_command(p_command);
  end if;
  return true;
end
$$;

comment on function worker.pause_command(text, interval) is
  'no task of this command begins until worker.resume_command, or for this long';

create or replace function worker.resume_command(p_command text) returns boolean
language plpgsql security definer
set search_path = pg_catalog, pg_temp
as $$
declare
  v_command worker.command_registry;
begin
  select * into v_command from worker.command_registry c where c.command = p_command for update;
  if not found then
    perform queues.refuse_command(p_command);
  elsif not v_command.paused then
    return false;
  end if;
  update worker.command_registry c set paused = false, paused_until = null
   where c.command = p_command;
  perform queues.wake(v_command.queue_id);
  return v_command.paused_until is null or v_command.paused_until > worker.now();
end
$$;

comment on function worker.resume_command(text) is
  'ends the pause of a command; false when it was not paused';

-- Pauses whose time is over hold nobody up as it is; this wakes those who sleep,
-- and leaves the registry as it was before. Part of maintenance.
create or replace function queues.resume_due(p_now timestamptz) returns integer
language plpgsql
as $$
declare
  v_name text;
  v_resumed integer := 0;
begin
  for v_name in
    select q.queue from worker.queue_registry q
     where q.paused and q.paused_until <= p_now for update skip locked
  loop
    perform worker.resume(v_name);
    v_resumed := v_resumed + 1;
  end loop;
  for v_name in
    select c.command from worker.command_registry c
     where c.paused and c.paused_until <= p_now for update skip locked
  loop
    perform worker.resume_command(v_name);
    v_resumed := v_resumed + 1;
  end loop;
  return v_resumed;
end
$$;

-- Where a task is, in three words. A task that waits for its children runs; one
-- that waits for its next attempt is pending. previousAttempts: hand-outs before
-- this one, the next one or the last one.
create or replace function worker.status(p_task_id bigint) returns jsonb
language plpgsql stable security definer
set search_path = pg_catalog, pg_temp
as $$
declare
  v_task record;
begin
  select t.state, t.attempt into v_task from worker.tasks t where t.id = p_task_id;
  if not found then
    return null;
  end if;
  return jsonb_build_object(
    'state', case when v_task.state = 'pending' then 'pending'
                  when v_task.state in ('processing', 'waiting') then 'running'
                  else 'finished' end,
    'previousAttempts', greatest(v_task.attempt - (v_task.state <> 'pending')::integer, 0));
end
$$;

comment on function worker.status(bigint) is
  'the state of a task: pending, running or finished, and its attempts before; null: no such task';
