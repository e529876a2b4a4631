-- Channels: what a worker asks for around a provider call (e-mail, text message,
-- file deletion).
--
--   channel_begin ──> call ──> [the provider, no transaction open] ─┬─> channel_succeeded
--        │                                                          └─> channel_failed
--        ├──> finish ──> channel_finish    called before; only its handler is due
--        ├──> ended                        nothing was to be sent: the task is over
--        └──> lost                         the lease is not in force
--
-- The handlers that the payload names run with the rights of the caller, by way
-- of internal.run_function, so the functions here that run them are plain and
-- qualify every name; what needs the queue's rights is a step with definer's
-- rights. A handler's effects and the end of the task are one commit. When a
-- success or error handler fails, the provider's answer is kept in
-- worker.channel_outcome and the handler is tried again, without calling the
-- provider a second time, until it holds.

-- How often a success or error handler is tried: four days, about.
create or replace function worker.handler_tries() returns integer
language sql immutable
set search_path = pg_catalog, pg_temp
as 'select 100';

-- The answer of a handler, in either envelope:
--   {"status": "succeeded", "payload": …}
--   {"success": true, "error": …, "validation_failure_message": …, "payload": …}
-- Returns {"kind": …, "payload": …, "error": …}; kinds: ok; refused, which trying
-- again would not change; failed; none, for what is no envelope.
create or replace function worker.read_envelope(p_answer jsonb) returns jsonb
language plpgsql immutable
set search_path = pg_catalog, pg_temp
as $$
declare
  v_refusal text := nullif(p_answer ->> 'validation_failure_message', '');
begin
  if jsonb_typeof(p_answer) = 'object' is not true
     or not (p_answer ?| '{success,status,validation_failure_message}') then
    return '{"kind": "none"}';
  elsif v_refusal is not null then
    return jsonb_build_object('kind', 'refused', 'error', v_refusal);
  elsif p_answer ? 'success' and p_answer ->> 'success' is distinct from 'true' then
    return jsonb_build_object('kind', 'failed', 'error', coalesce(nullif(p_answer ->> 'error', ''),
                                                                  'it did not say why'));
  elsif not p_answer ? 'success' and p_answer ->> 'status' is distinct from 'succeeded' then
    return jsonb_build_object('kind', 'refused', 'error', coalesce(
      nullif(p_answer ->> 'error', ''), p_answer ->> 'status', 'it gave no status'));
  end if;
  return jsonb_build_object('kind', 'ok', 'payload', p_answer -> 'payload');
end
$$;

-- What a worker must know of a task it holds, and the fence: the lease stays in
-- force up to the end of the transaction. No payload: it is not in force.
create or replace function worker.channel_open(
  p_lease_id bigint, p_task_id bigint, out payload jsonb, out canceled boolean,
  out may_retry boolean, out outcome text, out worker_payload jsonb, out error text)
language plpgsql security definer
set search_path = pg_catalog, pg_temp
set enable_seqscan = off
set jit = off
set enable_bitmapscan = off
set plan_cache_mode = force_generic_plan
as $$
declare
  v_lease queues.lease;
  v_task queues.task;
begin
  -- The lock that the end of the task takes: one that is weaker first would be a
  -- deadlock of two tasks of one lease.
  perform from queues.lease_open o where o.lease_id = p_lease_id for no key update;
  if not found then
    return;
  end if;
  select * into strict v_lease from queues.lease l where l.lease_id = p_lease_id;
  if not p_task_id = any(queues.unfinished(v_lease)) then
    return;
  end if;
  select * into strict v_task from queues.task t where t.task_id = p_task_id;
  payload := queues.effective_payload(v_task);
  canceled := exists (select from queues.cancel_request r where r.task_id = p_task_id);
  may_retry := not canceled and coalesce(
    v_lease.failures[array_position(v_lease.task_ids, p_task_id)] + 1, 1)
      < (select c.max_attempts from worker.command_registry c where c.command = v_task.task_type);
  select o.kind, o.worker_payload, o.error
    into channel_open.outcome, channel_open.worker_payload, channel_open.error
    from worker.channel_outcome o
   where o.task_id = p_task_id and o.kind in ('succeeded', 'failed', 'handled')
   order by o.outcome_id desc limit 1;
  if channel_open.outcome = 'handled' then
    channel_open.outcome := null;
  end if;
end
$$;

-- Ends a hand-out: completed, failed (tried again if it may), fatal (failed for
-- good), canceled, or snoozed (again after p_delay seconds). False: the lease is
-- not in force.
create or replace function worker.channel_end(
  p_lease_id bigint, p_task_id bigint, p_outcome text, p_error text default null,
  p_result jsonb default null, p_delay real default null, p_duration_ms real default null)
returns boolean
language plpgsql security definer
set search_path = pg_catalog, pg_temp
set enable_seqscan = off
set jit = off
set enable_bitmapscan = off
set plan_cache_mode = force_generic_plan
as $$
declare
  v_now timestamptz := worker.now();
  v_pid integer := (select w.pid from queues.lease_open o join worker.worker w using (worker_id)
                     where o.lease_id = p_lease_id);
begin
  return queues.finish_tasks(p_lease_id, v_now, v_pid, array[p_task_id], array[p_outcome],
                             array[p_error], array[p_result], array[p_duration_ms],
                             array[p_delay]) = '{}';
end
$$;

-- Notes what is known of a task whose lease the caller holds, and returns how
-- often its handler has failed. The error goes where people look for errors.
create or replace function worker.channel_note(
  p_lease_id bigint, p_task_id bigint, p_kind text, p_worker_payload jsonb, p_error text,
  p_context jsonb default null)
returns integer
language plpgsql security definer
set search_path = pg_catalog, pg_temp
as $$
begin
  if (worker.channel_open(p_lease_id, p_task_id)).payload is null then
    raise exception 'the lease of task % is not in force', p_task_id
      using errcode = 'object_not_in_prerequisite_state';
  end if;
  if p_kind <> 'noted' then
    insert into worker.channel_outcome (task_id, kind, worker_payload, error, recorded_at)
      values (p_task_id, p_kind, p_worker_payload, p_error, worker.now());
  end if;
  if p_context is not null then
    insert into queues.error (task_id, error_message, created_at, context)
      values (p_task_id, p_error, worker.now(), p_context);
  end if;
  -- One that was given up and is put back begins to count anew.
  return (select count(*) from worker.channel_outcome o
           where o.task_id = p_task_id and o.kind = 'handler_failed'
             and o.outcome_id > coalesce((
                   select max(g.outcome_id) from worker.channel_outcome g
                    where g.task_id = p_task_id and g.kind = 'given_up'), 0));
end
$$;

-- Runs one handler that a payload names. Records nothing; returns what
-- worker.read_envelope says of its answer, or failed with a context when it
-- raised. What it did is undone unless it is ok, refused or none.
create or replace function worker.run_channel_handler(
  p_task_id bigint, p_handler text, p_payload jsonb, p_argument jsonb)
returns jsonb
language plpgsql
as $$
declare
  v_set text := pg_catalog.set_config('worker.current_task', p_task_id::text, true);
  v_user text := session_user;
  v_role text := pg_catalog.current_setting('role');
  v_read jsonb;
  v_message text;
  v_where text;
  v_state text;
begin
  for v_try in 1..5 loop
    v_state := null;
    begin
      v_read := worker.read_envelope(internal.run_function(p_payload ->> p_handler, p_argument));
      if v_read ->> 'kind' operator(pg_catalog.=) 'failed' then
        raise exception '%', v_read ->> 'error';
      end if;
      -- What is deferred fails here, where it can be told which handler it was.
      set constraints all immediate;
      if session_user operator(pg_catalog.<>) v_user then
        execute pg_catalog.format('set session authorization %L', v_user);
      end if;
      if pg_catalog.current_setting('role') operator(pg_catalog.<>) v_role then
        v_set := pg_catalog.set_config('role', v_role, false);
      end if;
    exception when others or query_canceled or assert_failure then
      get stacked diagnostics v_message = message_text, v_where = pg_exception_context,
        v_state = returned_sqlstate;
      -- Not the handler's fault, and worth another try at once.
      continue when v_state in ('40P01', '40001');
    end;
    exit;
  end loop;
  v_set := pg_catalog.set_config('worker.current_task', '', true);
  if v_state is null then
    return v_read;
  end if;
  return pg_catalog.jsonb_build_object(
    'kind', 'failed', 'error', pg_catalog.format('%s: %s', p_handler, v_message),
    'context', pg_catalog.jsonb_build_object('handler', p_handler, 'sqlstate', v_state,
                                             'context', v_where));
end
$$;

-- Keeps what the provider said, because its handler failed, and puts the task
-- off, or gives it up when that has happened too often. p_known: it is kept
-- already. Returns again or ended.
create or replace function worker.channel_put_off(
  p_lease_id bigint, p_task_id bigint, p_succeeded boolean, p_worker_payload jsonb,
  p_error text, p_known boolean, p_problem text, p_context jsonb)
returns text
language plpgsql security definer
set search_path = pg_catalog, pg_temp
as $$
declare
  v_tries integer;
begin
  if not p_known then
    perform worker.channel_note(p_lease_id, p_task_id,
                                case when p_succeeded then 'succeeded' else 'failed' end,
                                p_worker_payload, p_error);
  end if;
  v_tries := worker.channel_note(p_lease_id, p_task_id, 'handler_failed', null, p_problem,
                                 p_context);
  if v_tries < worker.handler_tries() then
    perform worker.channel_end(p_lease_id, p_task_id, 'snoozed', p_problem,
      p_delay => (least(3600, 2 ^ least(v_tries - 1, 20)) * (0.5 + random()))::real);
    return 'again';
  end if;
  perform worker.channel_note(p_lease_id, p_task_id, 'given_up', null, p_problem);
  perform worker.channel_end(p_lease_id, p_task_id, 'fatal', format(
    '%s failed %s times and is given up; the provider %s',
    case when p_succeeded then 'success_handler' else 'error_handler' end, v_tries,
    case when p_succeeded then 'had accepted' else 'had failed: ' || p_error end));
  return 'ended';
end
$$;

-- Runs the handler that an answer of the provider is due to, and ends the task.
-- p_known: the answer is in worker.channel_outcome already. Returns ended, or
-- again when the handler failed.
create or replace function worker.channel_settle(
  p_lease_id bigint, p_task_id bigint, p_payload jsonb, p_succeeded boolean,
  p_worker_payload jsonb, p_error text, p_known boolean, p_duration_ms real)
returns text
language plpgsql
as $$
declare
  v_handler text := case when p_succeeded then 'success_handler' else 'error_handler' end;
  v_run jsonb := '{"kind": "none"}';
  v_done boolean;
begin
  if p_payload ->> v_handler is not null then
    v_run := worker.run_channel_handler(p_task_id, v_handler, p_payload,
      case when p_succeeded
        then pg_catalog.jsonb_build_object('original_payload', p_payload,
                                           'worker_payload', p_worker_payload)
        else pg_catalog.jsonb_build_object('original_payload', p_payload, 'error', p_error) end);
  end if;
  if v_run ->> 'kind' operator(pg_catalog.=) 'failed' then
    return worker.channel_put_off(p_lease_id, p_task_id, p_succeeded, p_worker_payload, p_error,
                                  p_known, v_run ->> 'error', v_run -> 'context');
  end if;
  if v_run ->> 'kind' operator(pg_catalog.=) 'refused' then
    perform worker.channel_note(p_lease_id, p_task_id, 'noted', null,
                                pg_catalog.format('%s: %s', v_handler, v_run ->> 'error'),
                                pg_catalog.jsonb_build_object('handler', v_handler));
  end if;
  if p_known then
    perform worker.channel_note(p_lease_id, p_task_id, 'handled', null, null);
  end if;
  v_done := worker.channel_end(p_lease_id, p_task_id,
                               case when p_succeeded then 'completed' else 'fatal' end,
                               p_error, p_worker_payload, p_duration_ms => p_duration_ms);
  return 'ended';
end
$$;

create or replace function worker.channel_succeeded(
  p_lease_id bigint, p_task_id bigint, p_worker_payload jsonb default '{}',
  p_duration_ms real default null)
returns text
language plpgsql
as $$
declare
  v_task record := worker.channel_open(p_lease_id, p_task_id);
begin
  if v_task.payload is null then
    return 'lost';
  end if;
  return worker.channel_settle(p_lease_id, p_task_id, v_task.payload, true, p_worker_payload,
                               null, false, p_duration_ms);
end
$$;

comment on function worker.channel_succeeded is
  'the provider has accepted: runs the success handler and completes the task in one commit; returns ended, again (the handler failed and is tried later) or lost';

-- The queue tries again first, as the command says; the error handler runs when
-- that was the last attempt, or p_final.
create or replace function worker.channel_failed(
  p_lease_id bigint, p_task_id bigint, p_error text, p_final boolean default false,
  p_duration_ms real default null)
returns text
language plpgsql
as $$
declare
  v_task record := worker.channel_open(p_lease_id, p_task_id);
  v_error text := pg_catalog.left(coalesce(p_error, 'failed'), 10000);
  v_done boolean;
begin
  if v_task.payload is null then
    return 'lost';
  elsif v_task.may_retry and not coalesce(p_final, false) then
    v_done := worker.channel_end(p_lease_id, p_task_id, 'failed', v_error,
                                 p_duration_ms => p_duration_ms);
    return 'retry';
  end if;
  return worker.channel_settle(p_lease_id, p_task_id, v_task.payload, false, null, v_error,
                               false, p_duration_ms);
end
$$;

comment on function worker.channel_failed is
  'the provider call failed: retries as the command says, else runs the error handler and ends the task as failed in one commit; returns ended, retry, again or lost';

create or replace function worker.channel_finish(p_lease_id bigint, p_task_id bigint) returns text
language plpgsql
as $$
declare
  v_task record := worker.channel_open(p_lease_id, p_task_id);
begin
  if v_task.payload is null then
    return 'lost';
  elsif v_task.outcome is null then
    raise exception 'nothing is known of the provider''s answer to task %', p_task_id
      using errcode = 'object_not_in_prerequisite_state';
  end if;
  return worker.channel_settle(p_lease_id, p_task_id, v_task.payload,
                               v_task.outcome operator(pg_catalog.=) 'succeeded',
                               v_task.worker_payload, v_task.error, true, null);
end
$$;

comment on function worker.channel_finish(bigint, bigint) is
  'runs the handler of a provider call that was made and recorded before';

-- The session was lost again and again while the handler ran: it may be the
-- handler that ends it. What the provider said is kept without running it; with
-- p_succeeded null, it is kept already.
create or replace function worker.channel_postpone(
  p_lease_id bigint, p_task_id bigint, p_succeeded boolean, p_worker_payload jsonb,
  p_error text)
returns text
language plpgsql security definer
set search_path = pg_catalog, pg_temp
as $$
declare
  v_task record := worker.channel_open(p_lease_id, p_task_id);
  v_succeeded boolean := coalesce(p_succeeded, v_task.outcome = 'succeeded');
begin
  if v_task.payload is null or v_succeeded is null then
    return 'lost';
  end if;
  return worker.channel_put_off(
    p_lease_id, p_task_id, v_succeeded, p_worker_payload, coalesce(p_error, v_task.error),
    v_task.outcome is not null, 'the session was lost while the handler ran',
    jsonb_build_object('handler', case when v_succeeded then 'success_handler'
                                       else 'error_handler' end));
end
$$;

comment on function worker.channel_postpone is
  'keeps what the provider said and leaves its handler for later; returns again, ended or lost';

-- Commits by itself, before the provider is called.
create or replace function worker.channel_begin(p_lease_id bigint, p_task_id bigint) returns jsonb
language plpgsql
as $$
declare
  v_task record := worker.channel_open(p_lease_id, p_task_id);
  v_handler text;
  v_problem text;
  v_run jsonb;
  v_done boolean;
begin
  if v_task.payload is null then
    return '{"do": "lost"}';
  elsif v_task.outcome is not null then
    return '{"do": "finish"}';
  elsif v_task.canceled then
    v_done := worker.channel_end(p_lease_id, p_task_id, 'canceled');
    return '{"do": "ended"}';
  end if;
  -- Before anything is sent: a handler that cannot run would be known too late.
  foreach v_handler in array '{before_handler,success_handler,error_handler}'::text[] loop
    continue when not v_task.payload operator(pg_catalog.?) v_handler;
    if pg_catalog.jsonb_typeof(v_task.payload -> v_handler) operator(pg_catalog.<>) 'string' then
      v_problem := 'its name is no text';
    else
      v_problem := internal.why_not_run(v_task.payload ->> v_handler);
    end if;
    if v_problem is not null then
      return worker.channel_refuse(p_lease_id, p_task_id, v_task.payload, v_handler, v_problem);
    end if;
  end loop;
  if not v_task.payload operator(pg_catalog.?) 'before_handler' then
    return pg_catalog.jsonb_build_object('do', 'call', 'payload', v_task.payload);
  end if;
  v_run := worker.run_channel_handler(p_task_id, 'before_handler', v_task.payload,
                                      v_task.payload);
  if v_run ->> 'kind' operator(pg_catalog.=) 'ok'
     and coalesce(pg_catalog.jsonb_typeof(v_run -> 'payload'), 'null') in ('object', 'null') then
    return pg_catalog.jsonb_build_object(
      'do', 'call', 'payload', coalesce(nullif(v_run -> 'payload', 'null'), '{}'));
  end if;
  perform worker.channel_failed(p_lease_id, p_task_id,
    case v_run ->> 'kind'
      when 'ok' then 'before_handler: its payload is no object'
      when 'none' then 'before_handler: its answer is no envelope'
      else v_run ->> 'error' end,
    v_run ->> 'kind' operator(pg_catalog.<>) 'failed');
  return '{"do": "ended"}';
end
$$;

comment on function worker.channel_begin(bigint, bigint) is
  'what to do about a task of a channel: call (with the payload for the provider), finish, ended or lost';

-- Ends a task of which a handler cannot run. Its error handler does, if it can.
create or replace function worker.channel_refuse(
  p_lease_id bigint, p_task_id bigint, p_payload jsonb, p_handler text, p_problem text)
returns jsonb
language plpgsql
as $$
declare
  v_error text := pg_catalog.format('%s: %s', p_handler, p_problem);
  v_done boolean;
begin
  if p_handler operator(pg_catalog.<>) 'error_handler'
     and pg_catalog.jsonb_typeof(p_payload -> 'error_handler') operator(pg_catalog.=) 'string'
     and internal.why_not_run(p_payload ->> 'error_handler') is null then
    perform worker.channel_failed(p_lease_id, p_task_id, v_error, true);
  else
    v_done := worker.channel_end(p_lease_id, p_task_id, 'fatal', v_error);
  end if;
  return '{"do": "ended"}';
end
$$;
