-- Handlers are named by text (an oid would stop pg_upgrade) and called by a
-- statement that is made once, when the command is registered, from checked and
-- quoted parts. No text of a payload ever gets into it.

-- The statement that calls a handler or hook, with the payload as $1. Raises
-- when there is no such routine, it does not fit, or the current role may not
-- execute it. p_what: 'handler' or 'hook'.
create or replace function worker.call_text(p_name text, p_what text) returns text
language plpgsql stable
set search_path = pg_catalog, pg_temp
as $$
declare
  v_parts text[];
  v_name text;
  v_proc record;
begin
  begin
    v_parts := parse_ident(p_name);
  exception when invalid_parameter_value then
    v_parts := '{}';
  end;
  if cardinality(v_parts) <> 2 then
    raise exception 'a % is named as schema.name, not "%"', p_what, p_name
      using errcode = 'invalid_parameter_value';
  end if;
  v_name := format('%I.%I', v_parts[1], v_parts[2]);
  if v_parts[1] ~ '^pg_' or v_parts[1] = 'information_schema' then
    raise exception '% % is in a system schema', p_what, v_name
      using errcode = 'insufficient_privilege';
  end if;
  -- The arguments as they are called: procedures list OUT ones there, too.
  select p.oid, p.prokind, p.proretset, p.prorettype, n.oid as schema,
         cardinality(coalesce(p.proallargtypes, p.proargtypes::oid[])) as args,
         coalesce(p.proargmodes, '{}') as modes
    into v_proc
    from pg_proc p join pg_namespace n on n.oid = p.pronamespace
   where n.nspname = v_parts[1] and p.proname = v_parts[2]
     and ((p.proallargtypes is null and p.pronargs = 1 and p.proargtypes[0] = 'jsonb'::regtype)
          or (p_what = 'handler' and p.prokind = 'p'
              and p.proallargtypes = array['jsonb', 'jsonb']::regtype[]::oid[]
              and p.proargmodes::text[] in ('{i,b}', '{i,o}'))
          or (p_what = 'hook' and p.proallargtypes is null and p.pronargs = 0))
   order by args desc limit 1;
  if not found then
    raise exception 'there is no % %', p_what, v_name
      using errcode = 'undefined_function',
            hint = case p_what when 'handler'
              then format('create procedure %s(payload jsonb), or with a second argument "inout result jsonb", or function %s(payload jsonb) returns jsonb', v_name, v_name)
              else format('create procedure %s() or %s(payload jsonb)', v_name, v_name) end;
  elsif not (has_schema_privilege(v_proc.schema, 'usage')
             and has_function_privilege(v_proc.oid, 'execute')) then
    raise exception 'role % may not execute % %', current_user, p_what, v_name
      using errcode = 'insufficient_privilege';
  elsif v_proc.prokind not in ('p', 'f') or v_proc.proretset
        or v_proc.prorettype in ('trigger'::regtype, 'event_trigger'::regtype)
        or (p_what = 'handler' and v_proc.prokind = 'f' and v_proc.prorettype <> 'jsonb'::regtype) then
    raise exception '% % is neither a procedure nor a function that returns %', p_what, v_name,
      case p_what when 'handler' then 'jsonb' else 'one value' end
      using errcode = 'wrong_object_type';
  end if;
  return format(case v_proc.prokind when 'p' then 'call %s(%s)' else 'select %s(%s)' end, v_name,
                case v_proc.args when 0 then '' when 1 then '$1'
                  else '$1, null::pg_catalog.jsonb' end);
end
$$;

-- Invoker's rights: it is the role that registers whose rights are checked.
create or replace function worker.command_registry_check() returns trigger
language plpgsql
set search_path = pg_catalog, pg_temp
as $$
begin
  -- A pause is no registration: it, and its end, need no rights on the handler.
  if tg_op = 'UPDATE' and to_jsonb(new) - '{paused,paused_until}'::text[]
                        = to_jsonb(old) - '{paused,paused_until}'::text[] then
    return new;
  end if;
  new.handler_call := case
    when new.kind = 'db_function' then 'select worker.run_db_function($1)'
    when new.kind = 'procedure' and new.handler_procedure is not null
      then worker.call_text(new.handler_procedure, 'handler') end;
  if new.kind = 'procedure' and new.handler_procedure is null then
    raise exception 'command "%" needs a handler', new.command
      using errcode = 'null_value_not_allowed',
            hint = 'name a procedure(payload jsonb) as schema.name, or another kind';
  end if;
  if new.kind = 'http' and new.url !~ '^https?://[^/\s]' is not false then
    raise exception 'command "%" needs a URL that begins with http:// or https://', new.command
      using errcode = 'invalid_parameter_value';
  elsif new.kind = 'exec' and new.program !~ '^/' is not false then
    raise exception 'command "%" needs a program with an absolute path', new.command
      using errcode = 'invalid_parameter_value';
  elsif new.signing_secret !~ '^secret:[A-Za-z0-9_.-]{1,128}$' then
    raise exception 'the signing secret of command "%" is named as secret:NAME', new.command
      using errcode = 'invalid_parameter_value',
            hint = 'the secret itself is in the credentials directory of the worker';
  end if;
  new.before_call := case when new.before_procedure is not null
                       then worker.call_text(new.before_procedure, 'hook') end;
  new.after_call := case when new.after_procedure is not null
                      then worker.call_text(new.after_procedure, 'hook') end;
  return new;
end
$$;

create or replace trigger command_registry_check
  before insert or update on worker.command_registry
  for each row execute function worker.command_registry_check();

create or replace function worker.command_registry_changed() returns trigger
language plpgsql security definer
set search_path = pg_catalog, pg_temp
as $$
declare
  v_live bigint;
begin
  if tg_op = 'DELETE' or (tg_op = 'UPDATE' and new.command <> old.command) then
    v_live := queues.count_live(old.command);
    if v_live > 0 then
      raise exception 'command "%" still has % unfinished task(s)', old.command, v_live
        using errcode = 'dependent_objects_still_exist',
              hint = 'let them end, or cancel them';
    end if;
  end if;
  perform pg_notify('worker_queue_change', coalesce(new.queue, old.queue));
  return null;
end
$$;

create or replace trigger command_registry_changed
  after insert or update or delete on worker.command_registry
  for each row execute function worker.command_registry_changed();

-- Unfinished tasks of a command.
create or replace function queues.count_live(p_command text) returns bigint
language plpgsql
as $$
begin
  return (select count(*) from (
    select unnest(r.task_ids) as task_id from queues.ready r
    union all select unnest(t.task_ids) from queues.timer t
    union all select w.task_id from queues.waiting w
    union all select f.task_id from queues.in_flight f) l
    join queues.task t on t.task_id = l.task_id where t.task_type = p_command);
end
$$;

create or replace function worker.register_command(
  p_command text, p_queue text default 'default', p_handler text default null,
  p_kind text default 'procedure', p_before_procedure text default null, p_after_procedure text default null,
  p_description text default null, p_priority bigint default null,
  p_max_attempts integer default null, p_backoff_initial interval default null,
  p_backoff_base double precision default null, p_backoff_max interval default null,
  p_timeout interval default null, p_max_leases integer default null,
  p_group_commit integer default null, p_allow_nested boolean default null,
  p_on_complete text default null, p_retain_completed interval default null,
  p_retain_failed interval default null,
  p_concurrency_limit integer default null,
  p_group_concurrency_limit integer default null,
  p_rate_limit integer default null,
  p_group_rate_limit integer default null,
  p_rate_period interval default null,
  p_window_start time default null,
  p_window_end time default null,
  p_window_zone text default null,
  p_order_blocks boolean default null,
  p_url text default null,
  p_http_headers jsonb default null,
  p_signing_secret text default null,
  p_allow_private text[] default null,
  p_max_redirects integer default null,
  p_max_response_bytes integer default null,
  p_program text default null,
  p_arguments text[] default null)
returns void
language plpgsql
set search_path = pg_catalog, pg_temp
as $$
begin
  if p_command is null or p_queue is null then
    raise exception 'a command needs a name and a queue' using errcode = 'null_value_not_allowed';
  end if;
  insert into worker.queue_registry (queue) values (p_queue) on conflict do nothing;
  if found then
    raise notice 'queue "%" is new: serial, one top-level task at a time', p_queue;
  end if;
  insert into worker.command_registry as c
      (command, queue, handler_procedure, kind, before_procedure, after_procedure, description,
       priority, max_attempts, backoff_initial, backoff_base, backoff_max, timeout, max_leases,
       group_commit, allow_nested, on_complete, retain_completed, retain_failed,
       concurrency_limit, group_concurrency_limit, rate_limit, group_rate_limit,
       rate_period, window_start, window_end, window_zone, order_blocks, url,
       http_headers, signing_secret, allow_private, max_redirects, max_response_bytes,
       program, arguments)
    values (p_command, p_queue, p_handler, p_kind, p_before_procedure, p_after_procedure, p_description,
       coalesce(p_priority, 0), coalesce(p_max_attempts, 1),
       coalesce(p_backoff_initial, '1 second'), coalesce(p_backoff_base, 2),
       coalesce(p_backoff_max, '1 hour'), p_timeout, coalesce(p_max_leases, 5),
       coalesce(p_group_commit, 1), coalesce(p_allow_nested, false), p_on_complete,
       coalesce(p_retain_completed, '7 days'), coalesce(p_retain_failed, '30 days'),
       p_concurrency_limit, p_group_concurrency_limit, p_rate_limit, p_group_rate_limit,
       coalesce(p_rate_period, '1 second'), p_window_start, p_window_end, p_window_zone,
       coalesce(p_order_blocks, false), p_url, p_http_headers, p_signing_secret,
       p_allow_private, coalesce(p_max_redirects, 0), coalesce(p_max_response_bytes,
       1048576), p_program, p_arguments)
    on conflict (command) do update set
       queue = excluded.queue, handler_procedure = excluded.handler_procedure,
       kind = excluded.kind, before_procedure = excluded.before_procedure,
       after_procedure = excluded.after_procedure, description = excluded.description,
       priority = excluded.priority, max_attempts = excluded.max_attempts,
       backoff_initial = excluded.backoff_initial, backoff_base = excluded.backoff_base,
       backoff_max = excluded.backoff_max, timeout = excluded.timeout,
       max_leases = excluded.max_leases, group_commit = excluded.group_commit,
       allow_nested = excluded.allow_nested, on_complete = excluded.on_complete,
       retain_completed = excluded.retain_completed, retain_failed = excluded.retain_failed,
       concurrency_limit = excluded.concurrency_limit,
       group_concurrency_limit = excluded.group_concurrency_limit,
       rate_limit = excluded.rate_limit,
       group_rate_limit = excluded.group_rate_limit,
       rate_period = excluded.rate_period,
       window_start = excluded.window_start,
       window_end = excluded.window_end,
       window_zone = excluded.window_zone,
       order_blocks = excluded.order_blocks,
       url = excluded.url,
       http_headers = excluded.http_headers,
       signing_secret = excluded.signing_secret,
       allow_private = excluded.allow_private,
       max_redirects = excluded.max_redirects,
       max_response_bytes = excluded.max_response_bytes,
       program = excluded.program,
       arguments = excluded.arguments;
end
$$;

comment on function worker.register_command is
  'adds or replaces a command: what runs it, in which queue, with which options';
