-- The registry of functions that a payload may name.
--
-- Without strictness, what the worker's role may execute may be named. With it
-- (worker.require_allowed(true)), a function must be in worker.allowed_function
-- besides. internal.run_function asks; everything that a payload names goes
-- through that: db_function, and the handlers of channels.

-- schema.name as it is kept: quoted where it must be. Null: not such a name.
create or replace function internal.function_name(p_name text) returns text
language plpgsql immutable
set search_path = pg_catalog, pg_temp
as $$
declare
  v_parts text[];
begin
  begin
    v_parts := parse_ident(p_name);
  exception when invalid_parameter_value or null_value_not_allowed then
    return null;
  end;
  if cardinality(v_parts) = 2 then
    return format('%I.%I', v_parts[1], v_parts[2]);
  end if;
  return null;
end
$$;

-- May a payload name this function? Says nothing of rights.
create or replace function internal.is_allowed(p_name text) returns boolean
language plpgsql stable security definer
set search_path = pg_catalog, pg_temp
as $$
begin
  return not exists (select from worker.policy p where p.name = 'require_allowed' and p.enabled)
      or exists (select from worker.allowed_function f
                  where f.function_name = internal.function_name(p_name));
end
$$;

comment on function internal.is_allowed(text) is
  'may a payload name this function? true for all unless worker.require_allowed(true)';

-- Why the caller may not run this function out of a payload; null when it may.
-- For looking before leaping: internal.run_function decides by itself.
create or replace function internal.why_not_run(p_name text) returns text
language plpgsql stable
set search_path = pg_catalog, pg_temp
as $$
declare
  v_name text := internal.function_name(p_name);
  v_parts text[];
  v_proc record;
begin
  if v_name is null then
    return format('a function is named as schema.function, not "%s"', p_name);
  end if;
  v_parts := parse_ident(v_name);
  if v_parts[1] ~ '^pg_' or v_parts[1] = 'information_schema' then
    return format('functions of schema %s are not run', v_parts[1]);
  end if;
  select p.oid, p.prokind, p.proretset, n.oid as schema into v_proc
    from pg_proc p join pg_namespace n on n.oid = p.pronamespace
   where n.nspname = v_parts[1] and p.proname = v_parts[2] and p.pronargs = 1
     and p.proargtypes[0] = 'jsonb'::regtype;
  if not found then
    return format('there is no function %s(jsonb)', v_name);
  elsif v_proc.prokind <> 'f' or v_proc.proretset then
    return format('%s is not a function of one result', v_name);
  elsif not (has_schema_privilege(v_proc.schema, 'usage')
             and has_function_privilege(v_proc.oid, 'execute')) then
    return format('role %s may not execute %s', current_user, v_name);
  elsif not internal.is_allowed(v_name) then
    return format('function %s is not in the registry of allowed functions', v_name);
  end if;
  return null;
end
$$;

-- The function must exist: an entry for a name that somebody may create later
-- would allow what nobody has looked at.
create or replace function worker.allow_function(p_function text) returns void
language plpgsql security definer
set search_path = pg_catalog, pg_temp
as $$
declare
  v_name text := internal.function_name(p_function);
begin
  if v_name is null then
    raise exception 'a function is named as schema.function, not "%"', p_function
      using errcode = 'invalid_parameter_value';
  elsif to_regprocedure(v_name || '(jsonb)') is null then
    raise exception 'there is no function %(jsonb)', v_name using errcode = 'undefined_function';
  end if;
  insert into worker.allowed_function (function_name, allowed_by, allowed_at)
    values (v_name, session_user, worker.now()) on conflict do nothing;
end
$$;

comment on function worker.allow_function(text) is
  'lets payloads name this function; rights to execute it are granted apart';

create or replace function worker.disallow_function(p_function text) returns boolean
language plpgsql security definer
set search_path = pg_catalog, pg_temp
as $$
begin
  delete from worker.allowed_function f
   where f.function_name = internal.function_name(p_function);
  return found;
end
$$;

comment on function worker.disallow_function(text) is
  'takes a function out of the registry; false when it was not in it';

create or replace function worker.require_allowed(p_on boolean) returns void
language plpgsql security definer
set search_path = pg_catalog, pg_temp
as $$
begin
  insert into worker.policy as p (name, enabled) values ('require_allowed', p_on)
    on conflict (name) do update set enabled = excluded.enabled
      where p.enabled <> excluded.enabled;
end
$$;

comment on function worker.require_allowed(boolean) is
  'on: payloads may name only functions that worker.allow_function() was called for';
