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
-- the steps that need more are functions in 75_process_steps.sql. Being plain,
-- the procedures qualify every name. Session state is in 73_session.sql.

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
-- {"result":…} for success with a result, {"outcome":"failed","error":…,
-- "context":{…}}, the same with "fatal" for SQLSTATE PK001 (not again), or
-- {"outcome":"snoozed","error":…,"delay":…} for PK002 (again later). p_check: constraints that are deferred are checked now, so that
-- it is this task that fails of them and not the commit. p_again: an earlier
-- task of this transaction did that. p_timeout: so many seconds it may take; how
-- that is kept, see worker.stop_overdue().
create or replace function worker.run_handler(
  p_task_id bigint, p_call text, p_payload jsonb, p_kept jsonb, p_check boolean, p_again boolean,
  p_timeout double precision)
returns jsonb
language plpgsql
as $$
declare
  v_set text := pg_catalog.set_config('worker.current_task', p_task_id::text, true);
  v_name text;
  v_until bigint;
  v_result jsonb;
  v_failed boolean;
  v_message text;
  v_detail text;
  v_hint text;
  v_where text;
  v_state text;
begin
  if p_timeout is not null then
    -- Where it can be read while this transaction is open: see 84_progress.sql.
    v_name := pg_catalog.current_setting('application_name');
    v_until := ((extract(epoch from pg_catalog.clock_timestamp()) + p_timeout) * 1000)::bigint;
    v_set := pg_catalog.set_config('worker.until', v_until::text, true);
    v_set := pg_catalog.set_config('application_name', pg_catalog.format('pgkin %s - %s until %s',
      p_task_id, (v_until / 1000 - p_timeout)::bigint, v_until), false);
  end if;
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
  if p_timeout is not null then
    v_set := pg_catalog.set_config('application_name', v_name, false);
    v_set := pg_catalog.set_config('worker.until', '', true);
    if v_state = '57014'
       and extract(epoch from pg_catalog.clock_timestamp()) * 1000 >= v_until then
      v_state := 'PK003';
      v_message := pg_catalog.format('timed out after %s s', p_timeout);
    end if;
  end if;
  if not v_failed then
    return case when v_result is not null then pg_catalog.jsonb_build_object('result', v_result) end;
  end if;
  if v_state = '2D000' then
    v_hint := 'a handler runs inside the transaction that records its end; it must not commit or roll back';
  end if;
  if v_state = 'PK002' then
    return pg_catalog.jsonb_build_object('outcome', 'snoozed', 'error', v_message,
      'delay', pg_catalog.substring(v_detail, '^\s*(\d{1,9}(\.\d+)?)\s*$')::real);
  end if;
  return pg_catalog.jsonb_build_object(
    'outcome', case v_state when 'PK001' then 'fatal' else 'failed' end,
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
  v_timeouts double precision[] := p_batch.timeouts;
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
    v_clock := pg_catalog.clock_timestamp();
    loop
      if v_refused ? v_ids[v_i]::text then
        v_run := pg_catalog.jsonb_build_object('outcome', 'canceled', 'error',
                   nullif(v_refused ->> v_ids[v_i]::text, ''));
      else
        v_run := worker.run_handler(v_ids[v_i], v_calls[v_i], v_payloads[v_i], p_kept,
                                    p_commits, p_commits and v_i > v_from, v_timeouts[v_i]);
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
  v_held_back boolean := false;
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
        v_held_back := pg_catalog.current_setting('worker.held_back', true) = 'on';
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
      if v_ran > v_ran_before then
        perform worker.wake_others(v_queue);
      end if;
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
  perform pg_catalog.set_config('worker.held_back', case when v_held_back then 'on' else '' end, true);
end
$$;

comment on procedure worker.process_tasks is
  'runs due tasks of SQL handlers until none is left or a top-level one waits for its children';

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
