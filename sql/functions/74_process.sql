-- worker.process_tasks: runs tasks whose handlers are SQL, in this session.
--
-- Two kinds of transaction take turns. One leases a small batch and commits, so
-- that a task that kills its backend is remembered. The other checks the lease,
-- runs a handler and records the end: the handler's effects and the completion
-- are one commit. With group_commit, several tasks share the second kind, each
-- in its own savepoint.
--
--     lease ─┬─> [before hook] ──> fence, handler…, end, [after hook] ─┐
--       ^    └──────────────<─── next task or group <──────────────────┤
--       └───────────────────────<─── next batch <──────────────────────┘
--
-- The procedures are plain (invoker's rights, no SET clause), because COMMIT is
-- refused in any other, and because handlers run with the rights of the caller;
-- claim and finish are functions with their own rights. Being plain, they
-- qualify every name. Session state is in sql/functions/73_session.sql.

-- Leases the next SQL tasks of a queue for this session, ready to run, as
-- parallel arrays; nulls when there is none. hooks: there are commands with an
-- after hook. p_alone: the caller commits right after this.
create or replace function worker.lease_sql_tasks(
  p_queue text, p_want integer, p_max_priority bigint, p_lanes integer[], p_alone boolean,
  out lease_ids bigint[], out task_ids bigint[], out parent_ids bigint[], out commands text[],
  out payloads jsonb[], out handler_calls text[], out before_calls text[],
  out group_commits integer[], out hooks boolean)
language plpgsql security definer
set search_path = pg_catalog, pg_temp
set enable_seqscan = off
set jit = off
set enable_bitmapscan = off
set plan_cache_mode = force_generic_plan
as $$
declare
  v_now timestamptz := worker.now();
  -- A worker whose connection this is says so, and then owns the lease as well.
  v_worker_id bigint := nullif(current_setting('worker.worker_id', true), '')::bigint;
  v_queue worker.queue_registry;
  v_got record;
  v_found integer;
begin
  select * into v_queue from worker.queue_registry q where q.queue = p_queue;
  if not found then
    raise exception 'unknown queue "%"', p_queue using errcode = 'undefined_object';
  end if;
  hooks := exists (select from worker.command_registry c where c.after_procedure is not null);
  perform queues.check_parents();
  v_got := queues.hand_out(v_queue, p_want, p_lanes, p_max_priority, v_worker_id,
                           pg_backend_pid(), null, v_now, p_alone, true);
  if v_got.task_ids is null then
    -- Look where no claim looks, then once more.
    v_found := queues.promote_timers(v_queue.queue_id, '-infinity', v_now, 1000);
    if p_alone then
      v_found := v_found + queues.settle(v_queue.queue_id);
    end if;
    if v_found = 0 then
      return;
    end if;
    v_got := queues.hand_out(v_queue, p_want, p_lanes, p_max_priority, v_worker_id,
                             pg_backend_pid(), null, v_now, false, true);
    if v_got.task_ids is null then
      return;
    end if;
  end if;
  select array_agg(c.lease_id order by c.i), array_agg(c.task_id order by c.i),
         array_agg(c.parent_id order by c.i), array_agg(c.task_type order by c.i),
         array_agg(c.payload order by c.i), array_agg(r.handler_call order by c.i),
         array_agg(r.before_call order by c.i),
         array_agg(coalesce(r.group_commit, 1) order by c.i)
    into lease_ids, task_ids, parent_ids, commands, payloads, handler_calls, before_calls,
         group_commits
    from queues.claimed(v_got.lease_ids, v_got.task_ids, v_got.attempts)
           with ordinality c(event, lease_id, task_id, attempt, task_type, payload, headers,
                             parent_id, group_key, scheduled_at, i)
    left join worker.command_registry r on r.command = c.task_type
    -- Several leases: some of these were lost before, together with others, and
    -- are to run alone, so that only the one that kills its backend is charged.
   where c.lease_id = v_got.lease_ids[1];
  if cardinality(task_ids) < cardinality(v_got.task_ids) then
    perform worker.release_sql_tasks(s.lease_id, s.ids)
       from (select u.lease_id, array_agg(u.task_id) as ids
               from unnest(v_got.lease_ids, v_got.task_ids) u(lease_id, task_id)
              where u.lease_id <> lease_ids[1] group by u.lease_id) s;
  end if;
end
$$;

-- Looks whether leased tasks may still begin. Returns those that may not, with
-- the reason; all of them, with null, when the lease is not in force. Nothing is
-- locked: the fence is at the end.
create or replace function worker.refuse_sql_tasks(p_lease_id bigint, p_ids bigint[]) returns jsonb
language plpgsql security definer
set search_path = pg_catalog, pg_temp
set enable_hashjoin = off
set enable_mergejoin = off
set enable_seqscan = off
set jit = off
set enable_bitmapscan = off
set plan_cache_mode = force_generic_plan
as $$
begin
  if not exists (select from queues.lease_open o
                  where o.lease_id = p_lease_id and o.backend_pid = pg_backend_pid()) then
    return (select jsonb_object_agg(u.id, null) from unnest(p_ids) u(id));
  end if;
  return (
    select jsonb_object_agg(u.id, case when r.task_id is not null then coalesce(r.reason, '')
                                       when p.task_id is not null then 'the parent task was canceled'
                                       else 'the parent task has ended' end)
      from unnest(p_ids) u(id)
      join queues.task t on t.task_id = u.id
      left join queues.cancel_request r on r.task_id = t.task_id
      left join queues.cancel_request p on p.task_id = t.parent_id
      left join queues.task_completed c on c.task_id = t.parent_id
     where r.task_id is not null or p.task_id is not null or c.task_id is not null);
end
$$;

-- The end of SQL tasks of one lease. Their runs are what worker.run_handler
-- returned. p_last: these were the last of the lease. Raises when the lease is
-- not in force: then all that the caller did in this transaction is undone.
-- Returns the state of the last of them; 'pending' when it is tried again.
create or replace function worker.finish_sql_tasks(
  p_lease_id bigint, p_last boolean, p_ids bigint[], p_runs jsonb[], p_durations real[])
returns text
language plpgsql security definer
set search_path = pg_catalog, pg_temp
set enable_seqscan = off
set jit = off
set enable_bitmapscan = off
set plan_cache_mode = force_generic_plan
as $$
declare
  v_now timestamptz := worker.now();
  v_last bigint := p_ids[cardinality(p_ids)];
  v_first bigint := p_ids[1];
  v_lease queues.lease;
  v_top boolean;
  v_partial boolean;
  v_state text := 'completed';
begin
  select l.*, o.top, o.partial into v_lease.lease_id, v_lease.worker_id, v_lease.backend_pid,
         v_lease.backend_start, v_lease.queue_id, v_lease.leased_at, v_lease.expires_at,
         v_lease.task_ids, v_lease.attempts, v_lease.failures, v_lease.crashes,
         v_lease.parent_ids, v_top, v_partial
    from queues.lease_open o join queues.lease l using (lease_id)
   where o.lease_id = p_lease_id and o.backend_pid = pg_backend_pid()
     for no key update of o;
  if not found or not p_ids <@ v_lease.task_ids
     or exists (select from queues.attempt_end e
                 where e.task_id = any(p_ids) and e.lease_id = p_lease_id) then
    raise exception 'the lease of task % is not in force', v_last
      using errcode = 'object_not_in_prerequisite_state';
  end if;

  if cardinality(p_ids) > 1 then
    select min(u.id) into v_first from unnest(p_ids) u(id);
  end if;
  if array_remove(p_runs, null) = '{}' and not queues.may_have_children(v_first) then
    -- The common case, in short.
    insert into queues.task_completed (task_id, completed_at, lease_id, queue_id, state,
                                       duration_ms, worker_pid, attempt)
      select u.id, v_now, p_lease_id, v_lease.queue_id, 'completed', u.duration,
             v_lease.backend_pid,
             coalesce(v_lease.attempts[array_position(v_lease.task_ids, u.id)], 0) + 1
        from unnest(p_ids, p_durations) u(id, duration);
    perform queues.note_ended(p_ids);
  else
    perform queues.end_tasks(v_lease, v_top, v_now, pg_backend_pid(), p_ids,
                             array_agg(coalesce(u.run ->> 'outcome', 'completed') order by u.i),
                             array_agg(u.run ->> 'error' order by u.i),
                             array_agg(u.run -> 'result' order by u.i), p_durations)
       from unnest(p_runs) with ordinality u(run, i);
    update queues.error e set context = u.run -> 'context'
      from unnest(p_ids, p_runs) u(task_id, run)
     where e.task_id = u.task_id and e.created_at = v_now and u.run ? 'context';
    v_state := coalesce((select c.state::text from queues.task_completed c
                          where c.task_id = v_last), 'pending');
  end if;
  if p_last and queues.unfinished(v_lease) = '{}' then
    delete from queues.lease_open o where o.lease_id = p_lease_id;
  elsif not v_partial then
    update queues.lease_open o set partial = true where o.lease_id = p_lease_id;
  end if;
  if v_lease.parent_ids is not null then
    perform queues.settle_parents(v_lease.parent_ids);
  end if;
  if queues.may_have_children(v_last)
     and exists (select from queues.waiting w where w.task_id = v_last) then
    return 'waiting';
  end if;
  return v_state;
end
$$;

-- Those of the tasks, and of their ancestors, that have ended and whose after
-- hook is due.
create or replace function worker.after_hooks_due(p_ids bigint[]) returns bigint[]
language plpgsql security definer
set search_path = pg_catalog, pg_temp
set enable_seqscan = off
set jit = off
set enable_bitmapscan = off
set plan_cache_mode = force_generic_plan
as $$
begin
  return (
    with recursive up as (
      select u.id from unnest(p_ids) u(id)
      union
      select t.parent_id from up join queues.task t on t.task_id = up.id
       where t.parent_id is not null)
    select array_agg(up.id order by up.id desc)
      from up where exists (select from queues.after_due d where d.task_id = up.id));
end
$$;

-- Hands back tasks of a lease that were not begun. Nothing happens when the
-- lease is not in force.
create or replace function worker.release_sql_tasks(p_lease_id bigint, p_task_ids bigint[])
returns void
language plpgsql security definer
set search_path = pg_catalog, pg_temp
set enable_seqscan = off
set jit = off
set enable_bitmapscan = off
set plan_cache_mode = force_generic_plan
as $$
begin
  perform queues.finish_tasks(p_lease_id, worker.now(), null, p_task_ids,
                              array_fill('released'::text, array[cardinality(p_task_ids)]),
                              null, null, null);
end
$$;

-- Takes the after hook of an ended task off the list of what is due: that of
-- p_task_id, or, with null, the next of the queue. Null: there is none.
create or replace function worker.take_after_hook(
  p_queue text, p_task_id bigint, out task_id bigint, out payload jsonb, out after_call text)
language plpgsql security definer
set search_path = pg_catalog, pg_temp
set plan_cache_mode = force_custom_plan
as $$
#variable_conflict use_column
begin
  select d.task_id into task_id
    from queues.after_due d join worker.queue_registry q using (queue_id)
   where q.queue = p_queue and (p_task_id is null or d.task_id = p_task_id)
   order by d.task_id limit 1 for update of d skip locked;
  if not found then
    return;
  end if;
  delete from queues.after_due d where d.task_id = take_after_hook.task_id;
  select coalesce(m.payload, t.payload), c.after_call into payload, after_call
    from queues.task t
    left join worker.command_registry c on c.command = t.task_type
    left join queues.merged_payload m on m.task_id = t.task_id
   where t.task_id = take_after_hook.task_id;
end
$$;

create or replace function worker.record_hook_error(p_task_id bigint, p_hook text, p_error text,
                                                    p_context jsonb) returns void
language plpgsql security definer
set search_path = pg_catalog, pg_temp
as $$
begin
  insert into queues.error (task_id, error_message, created_at, context)
    values (p_task_id, p_error, worker.now(), p_context || jsonb_build_object('hook', p_hook));
end
$$;

-- Runs one hook. A failing hook is recorded and warned of; the task is not
-- affected.
create or replace function worker.run_hook(
  p_task_id bigint, p_hook text, p_call text, p_payload jsonb, p_kept jsonb) returns void
language plpgsql
as $$
declare
  v_set text := pg_catalog.set_config('worker.current_task', p_task_id::text, true);
  v_message text;
  v_state text;
  v_where text;
begin
  begin
    execute p_call using p_payload;
    -- The caller's role again, before anything of this schema is called.
    if session_user operator(pg_catalog.<>) (p_kept ->> 'user') then
      execute pg_catalog.format('set session authorization %L', p_kept ->> 'user');
    end if;
    if pg_catalog.current_setting('role') operator(pg_catalog.<>) (p_kept ->> 'role') then
      v_set := pg_catalog.set_config('role', p_kept ->> 'role', false);
    end if;
  exception when others or query_canceled or assert_failure then
    get stacked diagnostics v_message = message_text, v_state = returned_sqlstate,
      v_where = pg_exception_context;
    perform worker.record_hook_error(p_task_id, p_hook, v_message, pg_catalog.jsonb_build_object(
      'sqlstate', v_state, 'context', v_where));
    raise warning '% hook of task % failed: %', p_hook, p_task_id, v_message;
  end;
  v_set := pg_catalog.set_config('worker.current_task', '', true);
end
$$;

-- Runs one handler. Records nothing; returns how it went: null for success,
-- {"result":…} for success with a result, or {"outcome":"failed","error":…,
-- "context":{…}}. p_check: constraints that are deferred are checked now, so that
-- it is this task that fails of them and not the commit. p_again: an earlier
-- task of this transaction did that.
create or replace function worker.run_handler(
  p_task_id bigint, p_call text, p_payload jsonb, p_kept jsonb, p_check boolean, p_again boolean)
returns jsonb
language plpgsql
as $$
declare
  v_set text := pg_catalog.set_config('worker.current_task', p_task_id::text, true);
  v_result jsonb;
  v_failed boolean;
  v_message text;
  v_detail text;
  v_hint text;
  v_where text;
  v_state text;
begin
  for v_try in 1..5 loop
    begin
      v_failed := false;
      if p_again then
        set constraints all deferred;
      end if;
      if p_call like 'call %($1)' then
        execute p_call using p_payload;
      else
        execute p_call into v_result using p_payload;
      end if;
      if p_check then
        set constraints all immediate;
      end if;
      -- The caller's role again, before anything of this schema is called.
      if session_user operator(pg_catalog.<>) (p_kept ->> 'user') then
        execute pg_catalog.format('set session authorization %L', p_kept ->> 'user');
      end if;
      if pg_catalog.current_setting('role') operator(pg_catalog.<>) (p_kept ->> 'role') then
        v_set := pg_catalog.set_config('role', p_kept ->> 'role', false);
      end if;
    exception when others or query_canceled or assert_failure then
      get stacked diagnostics v_message = message_text, v_detail = pg_exception_detail,
        v_hint = pg_exception_hint, v_where = pg_exception_context, v_state = returned_sqlstate;
      v_where := pg_catalog.btrim(pg_catalog.split_part(
        v_where, 'PL/pgSQL function worker.run_handler(', 1), E'\n');  -- up to here, no further
      v_failed := true;
      -- Not the task's fault, and worth another try at once.
      continue when v_state in ('40P01', '40001');
    end;
    exit;
  end loop;
  v_set := pg_catalog.set_config('worker.current_task', '', true);
  if not v_failed then
    return case when v_result is not null then pg_catalog.jsonb_build_object('result', v_result) end;
  end if;
  if v_state = '2D000' then
    v_hint := 'a handler runs inside the transaction that records its end; it must not commit or roll back';
  end if;
  return pg_catalog.jsonb_build_object(
    'outcome', 'failed',
    'error', pg_catalog.concat_ws(E'\n', v_message, 'DETAIL: ' || nullif(v_detail, ''),
                                  'HINT: ' || nullif(v_hint, ''),
                                  'CONTEXT: ' || nullif(v_where, '')),
    'context', pg_catalog.jsonb_build_object('sqlstate', v_state, 'message', v_message,
                                             'detail', v_detail, 'hint', v_hint,
                                             'context', v_where));
end
$$;

-- Runs what a batch of one lease holds, up to p_until, or until a top-level task
-- waits for its children. Hands back the rest.
create or replace procedure worker.run_batch(
  p_queue text, p_batch record, p_commits boolean, p_until timestamptz, p_kept jsonb,
  inout p_ran integer, inout p_stop boolean)
language plpgsql
as $$
declare
  v_lease_id bigint := p_batch.lease_ids[1];
  v_ids bigint[] := p_batch.task_ids;
  v_commands text[] := p_batch.commands;
  v_payloads jsonb[] := p_batch.payloads;
  v_calls text[] := p_batch.handler_calls;
  v_befores text[] := p_batch.before_calls;
  v_groups integer[] := p_batch.group_commits;
  v_n integer := pg_catalog.cardinality(v_ids);
  v_i integer := 1;     -- the next task,
  v_from integer;       -- where its group begins,
  v_to integer;         -- and could go on to
  v_looked timestamptz;
  v_clock timestamptz := pg_catalog.clock_timestamp();
  v_refused jsonb;
  v_run jsonb;
  v_runs jsonb[];
  v_durations real[];
  v_state text;
  v_spawned boolean;
  v_done boolean;
begin
  while v_i <= v_n loop
    exit when p_stop or v_clock >= p_until;
    if v_looked is null or v_clock - v_looked > interval '10 ms' then
      v_looked := v_clock;
      v_refused := worker.refuse_sql_tasks(v_lease_id, v_ids[v_i:]);
    end if;
    if v_calls[v_i] is null or v_refused -> v_ids[v_i]::text = 'null' then
      -- Not by SQL any more, or not ours any more.
      perform worker.release_sql_tasks(v_lease_id, v_ids[v_i:v_i]);
      v_i := v_i + 1;
      continue;
    end if;
    if v_befores[v_i] is not null and not coalesce(v_refused ? v_ids[v_i]::text, false) then
      perform worker.run_hook(v_ids[v_i], 'before', v_befores[v_i], v_payloads[v_i], p_kept);
      if p_commits then
        commit;
      end if;
    end if;

    v_from := v_i;
    v_to := case when v_befores[v_i] is null then least(v_n, v_i + v_groups[v_i] - 1) else v_i end;
    v_runs := '{}';
    v_durations := '{}';
    loop
      if v_refused ? v_ids[v_i]::text then
        v_run := pg_catalog.jsonb_build_object('outcome', 'canceled', 'error',
                   nullif(v_refused ->> v_ids[v_i]::text, ''));
      else
        v_run := worker.run_handler(v_ids[v_i], v_calls[v_i], v_payloads[v_i], p_kept,
                                    p_commits, p_commits and v_i > v_from);
        v_spawned := pg_catalog.current_setting('worker.spawned', true) = 'on';
        v_done := worker.reset_session(p_kept, p_commits);
      end if;
      v_runs[v_i - v_from + 1] := v_run;
      v_durations[v_i - v_from + 1] :=
        extract(epoch from pg_catalog.clock_timestamp() - v_clock) * 1000;
      v_clock := pg_catalog.clock_timestamp();
      v_i := v_i + 1;
      exit when v_i > v_to or v_commands[v_i] <> v_commands[v_from] or v_run ? 'outcome'
             or v_clock >= p_until or v_spawned;
    end loop;
    v_state := worker.finish_sql_tasks(v_lease_id, v_i > v_n, v_ids[v_from:v_i - 1], v_runs,
                                       v_durations);
    if p_batch.hooks then
      call worker.run_after_hooks(p_queue, worker.after_hooks_due(v_ids[v_from:v_i - 1]), false,
                                  p_kept);
    end if;
    if p_commits then
      commit;
    else
      perform pg_catalog.set_config('worker.spawned', '', true);
    end if;
    p_ran := p_ran + v_i - v_from;
    -- A call that was canceled ends, unless it was only the task that was meant.
    p_stop := (v_state = 'waiting' and p_batch.parent_ids[v_i - 1] is null)
           or coalesce(v_run -> 'context' ->> 'sqlstate' = '57014' and v_state <> 'canceled', false);
  end loop;
  if v_i <= v_n then
    perform worker.release_sql_tasks(v_lease_id, v_ids[v_i:]);
  end if;
  if p_commits then
    commit;
  end if;
end
$$;

-- Runs after hooks: those of the tasks named, or else, each in a transaction of
-- its own when p_commits, all that are due in the queue and nobody's turn,
-- because their tasks ended elsewhere.
create or replace procedure worker.run_after_hooks(
  p_queue text, p_ids bigint[], p_commits boolean, p_kept jsonb)
language plpgsql
as $$
declare
  v_hook record;
  v_next integer := 1;
  v_done boolean;
begin
  loop
    exit when v_next > pg_catalog.cardinality(p_ids);
    v_hook := worker.take_after_hook(p_queue, p_ids[v_next]);
    exit when v_hook.task_id is null and p_ids is null;
    v_next := v_next + 1;
    continue when v_hook.after_call is null;
    perform worker.run_hook(v_hook.task_id, 'after', v_hook.after_call, v_hook.payload, p_kept);
    v_done := worker.reset_session(p_kept, p_commits);
    if p_commits then
      commit;
    end if;
  end loop;
end
$$;

create or replace procedure worker.process_tasks(
  p_batch_size integer default null, p_max_runtime_ms integer default null,
  p_queue text default null, p_max_priority bigint default null, p_mode text default null)
language plpgsql
as $$
declare
  -- A lease holds what takes about this long: a batch of quick tasks, or a
  -- single slow one, so that others can take those behind it.
  c_lease_ms constant double precision := 100;
  c_most constant integer := 20;
  v_commits boolean := coalesce(
    nullif(pg_catalog.current_setting('worker.commit', true), '')::boolean,
    not worker.in_transaction_block());
  v_begun timestamptz := pg_catalog.clock_timestamp();
  v_until timestamptz := v_begun
    + pg_catalog.make_interval(secs => coalesce(p_max_runtime_ms, 2147483647) / 1000.0);
  v_isolation text;
  v_kept jsonb;
  v_queues text[];
  v_queue text;
  v_lanes integer[];
  v_most integer;
  v_size integer;
  v_want integer;
  v_batch record;
  v_ran integer := 0;
  v_ran_before integer;
  v_stop boolean := false;
begin
  if p_mode is not null and p_mode not in ('top', 'child') then
    raise exception 'a mode is top or child, not "%"', p_mode
      using errcode = 'invalid_parameter_value';
  end if;
  v_lanes := case p_mode when 'top' then '{0}'::integer[] when 'child' then '{1}' else '{0,1}' end;
  if worker.current_task_id() is not null then
    raise exception 'a handler cannot run other tasks'
      using errcode = 'object_not_in_prerequisite_state',
            hint = 'spawn children, or enqueue: they run after this task';
  end if;
  v_queues := worker.queues_to_run(p_queue);
  if v_commits then
    -- Who was the last child cannot be told with an old snapshot.
    v_isolation := pg_catalog.current_setting('default_transaction_isolation');
    if v_isolation <> 'read committed' then
      perform pg_catalog.set_config('default_transaction_isolation', 'read committed', false);
    end if;
    commit;
  end if;
  perform worker.drop_own_leases();

  loop
    v_ran_before := v_ran;
    foreach v_queue in array v_queues loop
      v_most := greatest(c_most, worker.largest_group(v_queue));
      v_size := 1;
      loop
        v_want := least(v_size, coalesce(p_batch_size - v_ran, v_size));
        exit when v_want < 1 or pg_catalog.clock_timestamp() >= v_until;
        v_batch := worker.lease_sql_tasks(v_queue, v_want, p_max_priority, v_lanes, v_commits);
        if v_commits then
          -- A lease that is lost in a crash is one that nobody has used.
          perform pg_catalog.set_config('synchronous_commit', 'off', true);
          commit;
        end if;
        exit when v_batch.task_ids is null and not v_batch.hooks;
        v_kept := coalesce(v_kept, worker.session_state(v_commits));
        if v_batch.task_ids is null then
          call worker.run_after_hooks(v_queue, null, v_commits, v_kept);
          exit;
        end if;
        v_begun := pg_catalog.clock_timestamp();
        call worker.run_batch(v_queue, v_batch, v_commits, v_until, v_kept, v_ran, v_stop);
        exit when v_stop;
        v_size := greatest(1, least(v_most, v_size * 4, v_size * c_lease_ms
          / (extract(epoch from pg_catalog.clock_timestamp() - v_begun) * 1000 + 0.001)));
      end loop;
      exit when v_stop;
    end loop;
    exit when v_stop or v_ran = v_ran_before or p_queue is not null;
  end loop;

  if v_commits then
    perform worker.check_parents();
    if v_kept is not null then
      perform worker.reset_session(v_kept, true);
    end if;
    if v_isolation <> 'read committed' then
      perform pg_catalog.set_config('default_transaction_isolation', v_isolation, false);
    end if;
    commit;
  end if;
  perform pg_catalog.set_config('worker.ran', v_ran::text, true);
end
$$;

comment on procedure worker.process_tasks is
  'runs due tasks of SQL handlers until none is left or a top-level one waits for its children';

-- The queues a call serves: the one that is named, or all.
create or replace function worker.queues_to_run(p_queue text) returns text[]
language plpgsql security definer
set search_path = pg_catalog, pg_temp
as $$
begin
  if p_queue is null then
    return array(select q.queue from worker.queue_registry q order by q.queue);
  elsif not exists (select from worker.queue_registry q where q.queue = p_queue) then
    raise exception 'unknown queue "%"', p_queue using errcode = 'undefined_object';
  end if;
  return array[p_queue];
end
$$;

create or replace function worker.largest_group(p_queue text) returns integer
language plpgsql security definer
set search_path = pg_catalog, pg_temp
as $$
begin
  return coalesce((select max(c.group_commit) from worker.command_registry c
                    where c.queue = p_queue), 1);
end
$$;

-- Parents that somebody could not decide about.
create or replace function worker.check_parents() returns integer
language plpgsql security definer
set search_path = pg_catalog, pg_temp
set enable_seqscan = off
set jit = off
set enable_bitmapscan = off
set plan_cache_mode = force_generic_plan
as $$
begin
  return queues.check_parents();
end
$$;

-- What an earlier call of this session left when it was interrupted.
create or replace function worker.drop_own_leases() returns void
language plpgsql security definer
set search_path = pg_catalog, pg_temp
set enable_seqscan = off
set jit = off
set enable_bitmapscan = off
set plan_cache_mode = force_generic_plan
as $$
declare
  v_lease_id bigint;
begin
  for v_lease_id in
    select o.lease_id from queues.lease_open o join queues.lease l using (lease_id)
     where o.backend_pid = pg_backend_pid() and l.backend_start = worker.backend_start()
     order by o.lease_id for update of o
  loop
    perform queues.lose_lease(v_lease_id, worker.now());
  end loop;
end
$$;

-- Runs until nothing that is due is left, in the current transaction. For tests
-- and for psql. Returns how many tasks were run.
create or replace function worker.drain(p_queue text default null) returns integer
language plpgsql
as $$
declare
  v_ran integer;
  v_total integer := 0;
  v_commit text := pg_catalog.current_setting('worker.commit', true);
begin
  perform pg_catalog.set_config('worker.commit', 'off', true);
  loop
    call worker.process_tasks(p_queue => p_queue);
    v_ran := pg_catalog.current_setting('worker.ran')::integer;
    v_total := v_total + v_ran;
    exit when v_ran = 0;
  end loop;
  perform pg_catalog.set_config('worker.commit', coalesce(v_commit, ''), true);
  return v_total;
end
$$;

comment on function worker.drain(text) is
  'runs due tasks of SQL handlers in this transaction until none is left; returns how many';
