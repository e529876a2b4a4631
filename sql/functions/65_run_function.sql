-- Runs a function that a payload names. Security invoker: the caller's own
-- rights decide. No search_path is set, because it would be in force inside the
-- function that is called; every name here is qualified instead.
--
-- A role that was given nothing but this function is not asked whether the
-- function is in the registry (67_allowed.sql); those of pgkin always are.

create or replace function internal.run_function(function_name text, payload jsonb)
returns jsonb
language plpgsql
as $$
declare
  v_parts text[];
  v_kind "char";
  v_set boolean;
  v_result jsonb;
begin
  begin
    v_parts := pg_catalog.parse_ident(function_name);
  exception when invalid_parameter_value or null_value_not_allowed then
    v_parts := null;
  end;
  if v_parts is null or pg_catalog.cardinality(v_parts) operator(pg_catalog.<>) 2 then
    raise exception 'a function is named as schema.function, not "%"', function_name
      using errcode = 'invalid_parameter_value';
  end if;
  if v_parts[1] operator(pg_catalog.~) '^pg_'
     or v_parts[1] operator(pg_catalog.=) 'information_schema' then
    raise exception 'functions of schema % are not run', v_parts[1]
      using errcode = 'insufficient_privilege';
  end if;
  select p.prokind, p.proretset into v_kind, v_set
    from pg_catalog.pg_proc p join pg_catalog.pg_namespace n
      on n.oid operator(pg_catalog.=) p.pronamespace
   where n.nspname operator(pg_catalog.=) v_parts[1]
     and p.proname operator(pg_catalog.=) v_parts[2]
     and p.pronargs operator(pg_catalog.=) 1
     and p.proargtypes[0] operator(pg_catalog.=) 'pg_catalog.jsonb'::pg_catalog.regtype;
  if not found then
    raise exception 'there is no function %.%(jsonb)', pg_catalog.quote_ident(v_parts[1]),
      pg_catalog.quote_ident(v_parts[2])
      using errcode = 'undefined_function';
  elsif v_kind operator(pg_catalog.<>) 'f' or v_set then
    raise exception '%.% is not a function of one result', pg_catalog.quote_ident(v_parts[1]),
      pg_catalog.quote_ident(v_parts[2])
      using errcode = 'wrong_object_type';
  end if;
  if pg_catalog.has_function_privilege('internal.is_allowed(text)', 'execute') then
    if not internal.is_allowed(function_name) then
      raise exception 'function %.% is not in the registry of allowed functions',
        pg_catalog.quote_ident(v_parts[1]), pg_catalog.quote_ident(v_parts[2])
        using errcode = 'insufficient_privilege',
              hint = 'an administrator adds it with worker.allow_function()';
    end if;
  end if;
  execute pg_catalog.format('select pg_catalog.to_jsonb(%I.%I($1))', v_parts[1], v_parts[2])
    into v_result using payload;
  return v_result;
end
$$;

comment on function internal.run_function(text, jsonb) is
  'calls schema.function(payload) with the rights of the caller';

-- What command db_function calls. An answer that says it failed is recorded for
-- people to see; the task is done all the same, because what the function has
-- written, a failure fact perhaps, is to stay. To undo it, a function raises.
create or replace function worker.run_db_function(p_payload jsonb) returns jsonb
language plpgsql
as $$
declare
  v_answer jsonb := internal.run_function(p_payload ->> 'db_function', p_payload);
  v_read jsonb;
begin
  if v_answer operator(pg_catalog.?|) '{success,validation_failure_message}' then
    v_read := worker.read_envelope(v_answer);
    if v_read ->> 'kind' operator(pg_catalog.<>) 'ok' then
      perform queues.fail_task(worker.current_task_id(), v_read ->> 'error');
    end if;
  end if;
  return v_answer;
end
$$;
