-- worker.process_tasks: runs tasks whose handlers are SQL, in this session.
--
-- Two transactions per task. The first leases a small batch and commits, so
-- that a task that kills its backend is remembered. The second checks the
-- lease, runs the handler and records the end: the handler's effects and the
-- completion are one commit. With group_commit, several tasks share the second
-- one, each in its own savepoint.
--
-- The procedure is plain (invoker's rights, no SET clause), because COMMIT is
-- refused in any other; claim and finish are functions with their own rights.
-- Being plain, it qualifies every name, and its operators too where a hostile
-- search_path could matter.

-- Leases the next SQL tasks of a queue for this session, ready to run.
create or replace function worker.lease_sql_tasks(
  p_queue text, p_want integer, p_max_priority bigint, p_lanes integer[])
returns table (lease_id bigint, task_id bigint, attempt integer, command text, payload jsonb,
               parent_id bigint, handler_call text, before_call text, group_commit integer)
language plpgsql security definer
set search_path = pg_catalog, pg_temp
set enable_seqscan = off
set enable_bitmapscan = off
set plan_cache_mode = force_generic_plan
as $$
#variable_conflict use_column
declare
  v_now timestamptz := worker.now();
  -- A worker whose connection this is says so, and then owns the lease as well.
  v_worker_id bigint := nullif(current_setting('worker.worker_id', true), '')::bigint;
  v_queue worker.queue_registry;
  v_got record;
begin
  select * into v_queue from worker.queue_registry q where q.queue = p_queue;
  if not found then
    raise exception 'unknown queue "%"', p_queue using errcode = 'undefined_object';
  end if;
  perform queues.check_parents();
  v_got := queues.hand_out(v_queue, p_want, p_lanes, p_max_priority, v_worker_id,
                           pg_backend_pid(), null, v_now, queues.alone(), true);
  if v_got.task_ids is null and queues.sweep(v_queue.queue_id, v_now) > 0 then
    v_got := queues.hand_out(v_queue, p_want, p_lanes, p_max_priority, v_worker_id,
                             pg_backend_pid(), null, v_now, false, true);
  end if;
  if v_got.task_ids is not null then
    return query
      select c.lease_id, c.task_id, c.attempt, c.task_type, c.payload, c.parent_id,
             r.handler_call, r.before_call, coalesce(r.group_commit, 1)
        from queues.claimed(v_got.lease_ids, v_got.task_ids, v_got.attempts)
               with ordinality c(event, lease_id, task_id, attempt, task_type, payload, headers,
                                 parent_id, group_key, scheduled_at, i)
        left join worker.command_registry r on r.command = c.task_type
       order by c.i;
  end if;
end
$$;

-- The fence at the start of an attempt. Holds the lease to the end of this
-- transaction; false: it is not in force, do not run.
create or replace function worker.hold_lease(p_lease_id bigint) returns boolean
language plpgsql security definer
set search_path = pg_catalog, pg_temp
as $$
begin
  perform from queues.lease_open o
    where o.lease_id = p_lease_id and o.backend_pid = pg_backend_pid() for key share;
  return found;
end
$$;

-- The end of a SQL task. Returns its state: 'completed', 'failed', 'waiting',
-- or 'pending' when it will be tried again.
create or replace function worker.finish_sql_task(
  p_lease_id bigint, p_task_id bigint, p_outcome text, p_result jsonb, p_error text,
  p_context jsonb, p_duration_ms double precision)
returns text
language plpgsql security definer
set search_path = pg_catalog, pg_temp
set enable_seqscan = off
set enable_bitmapscan = off
set plan_cache_mode = force_generic_plan
as $$
declare
  v_refused bigint[];
begin
  v_refused := queues.finish_tasks(p_lease_id, worker.now(), pg_backend_pid(), array[p_task_id],
                                   array[p_outcome], array[p_error], array[p_result],
                                   array[p_duration_ms::real]);
  if v_refused <> '{}' then
    raise exception 'the lease of task % is not in force', p_task_id
      using errcode = 'object_not_in_prerequisite_state';
  end if;
  if p_context is not null then
    update queues.error e set context = p_context
     where e.error_id = (select max(n.error_id) from queues.error n where n.task_id = p_task_id);
  end if;
  if p_outcome = 'completed' then
    return case when exists (select from queues.waiting w where w.task_id = p_task_id)
             then 'waiting' else 'completed' end;
  end if;
  return coalesce((select c.state::text from queues.task_completed c where c.task_id = p_task_id),
                  'pending');
end
$$;

-- Hands back tasks of a lease that were not begun.
create or replace function worker.release_sql_tasks(p_lease_ids bigint[], p_task_ids bigint[])
returns void
language plpgsql security definer
set search_path = pg_catalog, pg_temp
as $$
declare
  v_one record;
begin
  for v_one in
    select u.lease_id, array_agg(u.task_id) as ids, array_agg('released'::text) as outcomes
      from unnest(p_lease_ids, p_task_ids) u(lease_id, task_id) group by u.lease_id
  loop
    perform queues.finish_tasks(v_one.lease_id, worker.now(), null, v_one.ids, v_one.outcomes,
                                null, null, null);
  end loop;
end
$$;

-- The next ended task whose after hook is due, taken off the list; null: none.
create or replace function worker.take_after_hook(
  p_queue text, out task_id bigint, out payload jsonb, out after_call text)
language plpgsql security definer
set search_path = pg_catalog, pg_temp
as $$
#variable_conflict use_column
begin
  select d.task_id into task_id
    from queues.after_due d join worker.queue_registry q using (queue_id)
   where q.queue = p_queue order by d.task_id limit 1 for update of d skip locked;
  if not found then
    return;
  end if;
  delete from queues.after_due d where d.task_id = take_after_hook.task_id;
  select t.payload, c.after_call into payload, after_call
    from queues.task t left join worker.command_registry c on c.command = t.task_type
   where t.task_id = take_after_hook.task_id;
end
$$;

create or replace function worker.record_hook_error(p_task_id bigint, p_hook text, p_error text)
returns void
language plpgsql security definer
set search_path = pg_catalog, pg_temp
as $$
begin
  insert into queues.error (task_id, error_message, created_at, context)
    values (p_task_id, p_error, worker.now(), jsonb_build_object('hook', p_hook));
end
$$;

-- Session state that a handler left behind goes; what the caller of
-- process_tasks had set comes back. p_kept is what worker.session_state() gave.
create or replace function worker.session_state() returns jsonb
language plpgsql
as $$
begin
  return pg_catalog.jsonb_build_object(
    'role', pg_catalog.current_setting('role'),
    'settings', (select coalesce(pg_catalog.jsonb_object_agg(s.name, s.setting), '{}')
                   from pg_catalog.pg_settings s
                  where s.source operator(pg_catalog.=) 'session'
                    and s.name not in ('role', 'session_authorization', 'transaction_isolation',
                                       'transaction_read_only', 'transaction_deferrable')),
    'fake_now', pg_catalog.current_setting('worker.fake_now', true),
    'listens', exists (select from pg_catalog.pg_listening_channels()),
    'locks', exists (select from pg_catalog.pg_locks l
                      where l.locktype operator(pg_catalog.=) 'advisory'
                        and l.pid operator(pg_catalog.=) pg_catalog.pg_backend_pid()),
    'temp', (select pg_catalog.jsonb_agg(c.oid::bigint) from pg_catalog.pg_class c
              where c.relnamespace operator(pg_catalog.=) pg_catalog.pg_my_temp_schema()
                and c.relkind in ('r', 'p', 'v', 'S')));
end
$$;

create or replace function worker.reset_session(p_kept jsonb, p_commits boolean) returns void
language plpgsql
as $$
declare
  v_name text;
  v_value text;
begin
  if pg_catalog.current_setting('role') operator(pg_catalog.<>) (p_kept ->> 'role') then
    perform pg_catalog.set_config('role', p_kept ->> 'role', false);
  end if;
  execute 'reset all';
  for v_name, v_value in select * from pg_catalog.jsonb_each_text(p_kept -> 'settings') loop
    perform pg_catalog.set_config(v_name, v_value, false);
  end loop;
  perform pg_catalog.set_config('worker.fake_now', coalesce(p_kept ->> 'fake_now', ''), false);
  if not p_commits then
    return;  -- inside the caller's transaction the rest is the caller's own
  end if;
  if not (p_kept ->> 'locks')::boolean then
    perform pg_catalog.pg_advisory_unlock_all();
  end if;
  if not (p_kept ->> 'listens')::boolean and exists (select from pg_catalog.pg_listening_channels()) then
    execute 'unlisten *';
  end if;
  if pg_catalog.pg_my_temp_schema() operator(pg_catalog.<>) 0 then
    for v_name in
      select c.oid::pg_catalog.regclass::text from pg_catalog.pg_class c
       where c.relnamespace operator(pg_catalog.=) pg_catalog.pg_my_temp_schema()
         and c.relkind in ('r', 'p')
         and not coalesce(p_kept -> 'temp', '[]') operator(pg_catalog.@>) pg_catalog.to_jsonb(c.oid::bigint)
    loop
      execute 'drop table ' || v_name;
    end loop;
  end if;
end
$$;

-- Runs due hooks of ended tasks. A failing hook is recorded and warned of.
create or replace procedure worker.run_after_hooks(p_queue text)
language plpgsql
as $$
declare
  v_hook record;
  v_error text;
begin
  loop
    select * into v_hook from worker.take_after_hook(p_queue);
    exit when v_hook.task_id is null;
    continue when v_hook.after_call is null;
    begin
      perform pg_catalog.set_config('worker.current_task', v_hook.task_id::text, true);
      execute v_hook.after_call using v_hook.payload;
    exception when others or query_canceled or assert_failure then
      get stacked diagnostics v_error = message_text;
      perform worker.record_hook_error(v_hook.task_id, 'after', v_error);
      raise warning 'after hook of task % failed: %', v_hook.task_id, v_error;
    end;
  end loop;
  perform pg_catalog.set_config('worker.current_task', '', true);
end
$$;

-- Runs one leased task and records its end, in the current transaction.
-- Returns its state then; 'stale' when the lease was not in force.
create or replace function worker.run_task(p_task record) returns text
language plpgsql
as $$
declare
  v_begun timestamptz := pg_catalog.clock_timestamp();
  v_result jsonb;
  v_outcome text;
  v_state text;
  v_message text;
  v_detail text;
  v_hint text;
  v_where text;
  v_tries integer := 0;
begin
  if not worker.hold_lease(p_task.lease_id) then
    return 'stale';
  end if;
  loop
    begin
      v_outcome := 'completed';
      perform pg_catalog.set_config('worker.current_task', p_task.task_id::text, true);
      if p_task.handler_call like 'call %($1)' then
        execute p_task.handler_call using p_task.payload;
      else
        execute p_task.handler_call into v_result using p_task.payload;
      end if;
    exception when others or query_canceled or assert_failure then
      get stacked diagnostics v_message = message_text, v_detail = pg_exception_detail,
        v_hint = pg_exception_hint, v_where = pg_exception_context, v_state = returned_sqlstate;
      v_outcome := 'failed';
      v_tries := v_tries + 1;
      -- Not the task's fault, and worth another try at once.
      continue when v_state in ('40P01', '40001') and v_tries < 5;
      if v_state = '2D000' then
        v_hint := 'a handler runs inside the transaction that records its end; it must not commit or roll back';
      end if;
    end;
    exit;
  end loop;
  perform pg_catalog.set_config('worker.current_task', '', true);
  if v_outcome = 'failed' then
    return worker.finish_sql_task(
      p_task.lease_id, p_task.task_id, 'failed', null,
      pg_catalog.concat_ws(E'\n', v_message, 'DETAIL: ' || nullif(v_detail, ''),
                           'HINT: ' || nullif(v_hint, ''), 'CONTEXT: ' || nullif(v_where, '')),
      pg_catalog.jsonb_build_object('sqlstate', v_state, 'message', v_message, 'detail', v_detail,
                                    'hint', v_hint, 'context', v_where),
      extract(epoch from pg_catalog.clock_timestamp() - v_begun) * 1000);
  end if;
  return worker.finish_sql_task(p_task.lease_id, p_task.task_id, 'completed', v_result, null, null,
                                extract(epoch from pg_catalog.clock_timestamp() - v_begun) * 1000);
end
$$;

create or replace procedure worker.process_tasks(
  p_batch_size integer default null, p_max_runtime_ms integer default null,
  p_queue text default null, p_max_priority bigint default null, p_mode text default null)
language plpgsql
as $$
declare
  c_lease constant integer := 10;
  -- Inside a transaction block nothing is committed. The clock tells, mostly; a
  -- caller that knows says so by the setting.
  v_commits boolean := coalesce(
    nullif(pg_catalog.current_setting('worker.commit', true), '')::boolean,
    pg_catalog.now() = pg_catalog.statement_timestamp()
      and pg_catalog.pg_current_xact_id_if_assigned() is null);
  v_until timestamptz := pg_catalog.clock_timestamp()
    + pg_catalog.make_interval(secs => coalesce(p_max_runtime_ms, 2147483647) / 1000.0);
  v_kept jsonb := worker.session_state();
  v_queue text;
  v_queues text[];
  v_lanes integer[];
  v_ran integer := 0;
  v_ran_before integer;
  v_in_group integer;
  v_state text;
  v_waits boolean;
  v_error text;
  v_task record;
  v_batch record;
  v_n integer;
  v_want integer;
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
  perform worker.drop_own_leases();

  loop
    v_ran_before := v_ran;
    foreach v_queue in array v_queues loop
      <<queue>>
      loop
        v_want := least(greatest(c_lease, worker.largest_group(v_queue)),
                        coalesce(p_batch_size - v_ran, 2147483647));
        exit queue when v_want < 1 or pg_catalog.clock_timestamp() >= v_until;
        select pg_catalog.array_agg(t.lease_id) as lease_ids,
               pg_catalog.array_agg(t.task_id) as task_ids,
               pg_catalog.array_agg(pg_catalog.to_jsonb(t)) as tasks
          into v_batch
          from worker.lease_sql_tasks(v_queue, v_want, p_max_priority, v_lanes) t;
        v_n := coalesce(pg_catalog.cardinality(v_batch.task_ids), 0);
        if v_commits then
          commit;
        end if;
        exit queue when v_n = 0;

        v_waits := false;
        v_in_group := 0;
        for i in 1..v_n loop
          select * into v_task from pg_catalog.jsonb_to_record(v_batch.tasks[i])
            as t(lease_id bigint, task_id bigint, attempt integer, command text, payload jsonb,
                 parent_id bigint, handler_call text, before_call text, group_commit integer);
          if v_waits or pg_catalog.clock_timestamp() >= v_until or v_task.handler_call is null then
            -- Not now, or not by this procedure any more: somebody else's turn.
            perform worker.release_sql_tasks(v_batch.lease_ids[i:i], v_batch.task_ids[i:i]);
            continue;
          end if;
          if v_task.before_call is not null then
            if v_commits then
              commit;
              v_in_group := 0;
            end if;
            begin
              perform pg_catalog.set_config('worker.current_task', v_task.task_id::text, true);
              execute v_task.before_call using v_task.payload;
            exception when others or query_canceled or assert_failure then
              get stacked diagnostics v_error = message_text;
              perform worker.record_hook_error(v_task.task_id, 'before', v_error);
              raise warning 'before hook of task % failed: %', v_task.task_id, v_error;
            end;
            if v_commits then
              commit;
            end if;
          end if;
          v_state := worker.run_task(v_task);
          call worker.run_after_hooks(v_queue);
          perform worker.reset_session(v_kept, v_commits);
          v_ran := v_ran + 1;
          v_in_group := v_in_group + 1;
          if v_commits and v_in_group >= v_task.group_commit then
            commit;
            v_in_group := 0;
          end if;
          if v_state = 'stale' then
            raise warning 'the lease of task % is lost; what it did is undone', v_task.task_id;
          end if;
          v_waits := v_state = 'waiting' and v_task.parent_id is null;
        end loop;
        if v_commits then
          commit;
        end if;
        exit queue when v_waits;
      end loop;
      exit when v_waits;
    end loop;
    exit when v_waits or v_ran = v_ran_before or p_queue is not null;
  end loop;
  perform pg_catalog.set_config('worker.ran', v_ran::text, false);
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

-- What an earlier call of this session left when it was interrupted.
create or replace function worker.drop_own_leases() returns void
language plpgsql security definer
set search_path = pg_catalog, pg_temp
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
