-- What a worker process asks for that is not a task.

-- Queues and commands as a worker needs them: one row per command, and one
-- without a command for a queue that has none. installation_id goes into
-- idempotency keys.
create or replace function worker.work_registry()
returns table (queue text, queue_id integer, default_concurrency integer,
               top_concurrency integer, command text, kind text, handler text, lane integer,
               timeout_ms bigint, url text, http_headers jsonb, signing_secret text,
               allow_private text[], max_redirects integer, max_response_bytes integer,
               program text, arguments text[], installation_id uuid)
language plpgsql stable security definer
set search_path = pg_catalog, pg_temp
as $$
#variable_conflict use_column
begin
  return query
    select q.queue, q.queue_id, q.default_concurrency, q.top_concurrency, c.command, c.kind,
           c.handler_procedure, c.lane, (extract(epoch from c.timeout) * 1000)::bigint, c.url,
           c.http_headers, c.signing_secret, c.allow_private, c.max_redirects,
           c.max_response_bytes, c.program, c.arguments, i.installation_id
      from worker.queue_registry q
      left join worker.command_registry c on c.queue = q.queue
     cross join worker.installation i
     order by q.queue, c.command;
end
$$;

comment on function worker.work_registry() is
  'queues and commands as a worker process needs them';

-- Where there is something to do: the lines that hold due tasks, and when the
-- next task that waits for its time comes due (zero or less: it is due). Takes
-- and locks nothing. For workers that have nothing to do.
create or replace function worker.look(p_queue_ids integer[])
returns table (queue_id integer, lanes integer[], due_in_ms bigint)
language plpgsql security definer
set search_path = pg_catalog, pg_temp
set enable_seqscan = off
set jit = off
set enable_bitmapscan = off
set plan_cache_mode = force_generic_plan
as $$
#variable_conflict use_column
declare
  v_lanes integer[] := queues.all_lanes();
  v_generations integer[];
  v_floor timestamptz;
  v_now timestamptz := worker.now();
begin
  foreach queue_id in array p_queue_ids loop
    begin
      v_generations := queues.live_generations(queue_id);
      v_floor := queues.timer_floor(queue_id);
    exception when undefined_table then
      continue;  -- the queue has just been removed
    end;
    lanes := array(
      select l.lane from unnest(v_lanes) l(lane)
       where exists (select from unnest(v_generations) g(generation)
                      cross join lateral (
                        select from queues.ready r
                         where r.queue_id = look.queue_id and r.generation = g.generation
                           and r.lane = l.lane limit 1) r));
    select (extract(epoch from t.run_at - v_now) * 1000)::bigint into due_in_ms
      from queues.timer t
     where t.queue_id = look.queue_id and t.run_at >= v_floor
     order by t.run_at limit 1;
    return next;
  end loop;
end
$$;

comment on function worker.look(integer[]) is
  'which lines of these queues hold due tasks, and when the next comes due';

-- The states of a worker's loop, as producers read them (see queues.wake):
-- 0 running, 1 idle, 2 scheduled, 3 saturated.
create or replace function worker.publish_loop(p_queue_id integer, p_state integer) returns void
language plpgsql security definer
set search_path = pg_catalog, pg_temp
as $$
begin
  if p_state not between 0 and 3 then
    raise exception 'there is no loop state %', p_state
      using errcode = 'invalid_parameter_value';
  end if;
  perform setval(queues.cell(p_queue_id, 'wake'), p_state);
exception when undefined_table then
  null;  -- the queue has just been removed
end
$$;

-- One call of a worker's fiber. Says in the session whose it is, for this call
-- only: the next may come to another session (pgbouncer). Returns how many tasks
-- were run, which lines hold something now, and whether there was more that a limit
-- held back.
create or replace procedure worker.run_fiber(
  p_worker_id bigint, p_queue text, p_mode text, p_max_runtime_ms integer,
  inout p_ran integer, inout p_lanes integer[], inout p_held_back boolean)
language plpgsql
as $$
begin
  perform pg_catalog.set_config('worker.worker_id', p_worker_id::text, false);
  perform pg_catalog.set_config('worker.commit', 'on', false);
  call worker.process_tasks(p_max_runtime_ms => p_max_runtime_ms, p_queue => p_queue,
                            p_mode => p_mode);
  p_ran := pg_catalog.current_setting('worker.ran')::integer;
  p_lanes := worker.look_at(p_queue);
  p_held_back := pg_catalog.current_setting('worker.held_back') = 'on';
  perform pg_catalog.set_config('worker.worker_id', '', false);
  perform pg_catalog.set_config('worker.commit', '', false);
end
$$;

create or replace function worker.look_at(p_queue text) returns integer[]
language plpgsql security definer
set search_path = pg_catalog, pg_temp
as $$
begin
  return (select l.lanes from worker.queue_registry q
           cross join lateral worker.look(array[q.queue_id]) l
           where q.queue = p_queue);
end
$$;

-- SQL handlers that run longer than their command allows are interrupted, in
-- whichever session: worker.run_handler says in application_name which task it
-- runs and until when, because that can be read while its transaction is open.
create or replace function worker.stop_overdue() returns integer
language plpgsql security definer
set search_path = pg_catalog, pg_temp
as $$
declare
  v_session record;
  v_stopped integer := 0;
begin
  for v_session in
    select o.lease_id, a.pid, a.backend_start, a.application_name
      from pg_stat_get_activity(null) a
      join queues.lease_open o on o.backend_pid = a.pid
     where substring(a.application_name, '^pgkin \d+ \S+ \d+ until (\d{1,15})')::bigint
           < extract(epoch from clock_timestamp()) * 1000
  loop
    -- The lease cannot end while this holds it: it is this task that is hit.
    perform from queues.lease_open o where o.lease_id = v_session.lease_id
        for share skip locked;
    if found and exists (select from pg_stat_get_activity(v_session.pid) a
                          where a.backend_start = v_session.backend_start
                            and a.application_name = v_session.application_name) then
      perform pg_cancel_backend(v_session.pid);
      v_stopped := v_stopped + 1;
    end if;
  end loop;
  return v_stopped;
exception when insufficient_privilege then
  raise warning 'a handler is over its time and cannot be interrupted'
    using hint = 'grant pg_signal_backend to the owner of the schema';
  return v_stopped;
end
$$;

comment on function worker.stop_overdue() is
  'interrupts SQL handlers that run longer than their timeout; returns how many';

-- A worker that lost its connection in the middle of a claim does not know what
-- it was handed. It names the leases it knows; the others, unless they are so
-- young that their answer may still be on its way, go back as if they had never
-- been handed out. Returns how many tasks.
create or replace function worker.release_unknown(p_worker_id bigint, p_known bigint[])
returns integer
language plpgsql security definer
set search_path = pg_catalog, pg_temp
set enable_hashjoin = off
set enable_mergejoin = off
set enable_seqscan = off
as $$
declare
  v_now timestamptz := worker.now();
  v_lease_id bigint;
  v_released integer := 0;
begin
  for v_lease_id in
    select o.lease_id from queues.lease_open o join queues.lease l using (lease_id)
     where o.worker_id = p_worker_id and o.backend_pid is null
       and not o.lease_id = any(p_known) and l.leased_at < v_now - interval '5 seconds'
     order by o.lease_id for update of o skip locked
  loop
    v_released := v_released + queues.lose_lease(v_lease_id, v_now, 'released');
  end loop;
  return v_released;
end
$$;

comment on function worker.release_unknown(bigint, bigint[]) is
  'hands back leases that a worker holds without knowing it; returns how many tasks';

-- As after a crash: the task is charged, so that it does not come back for ever.
create or replace function worker.lose_leases(p_worker_id bigint, p_leases bigint[])
returns integer
language plpgsql security definer
set search_path = pg_catalog, pg_temp
as $$
declare
  v_now timestamptz := worker.now();
  v_lease_id bigint;
  v_lost integer := 0;
begin
  for v_lease_id in
    select o.lease_id from queues.lease_open o
     where o.worker_id = p_worker_id and o.lease_id = any(p_leases)
     order by o.lease_id for update of o
  loop
    v_lost := v_lost + queues.lose_lease(v_lease_id, v_now);
  end loop;
  return v_lost;
end
$$;

comment on function worker.lose_leases(bigint, bigint[]) is
  'gives up leases of a worker whose ends could not be recorded; returns how many tasks';
