-- The supervisor kit: writes what a business process that is retried until done
-- needs, as plain tables and functions in the user's own schema. Nothing here
-- is needed any more once they exist; the templates are in 69_supervised.sql,
-- the same by hand is in docs/supervisors.md.

-- Has this task ended, however? True also when retention has removed it. For
-- supervisors: an attempt whose task is over and which left no fact never will.
create or replace function worker.has_ended(p_task_id bigint) returns boolean
language plpgsql stable security definer
set search_path = pg_catalog, pg_temp
as $$
begin
  return exists (select from queues.task_completed c where c.task_id = p_task_id)
      or not exists (select from queues.task t where t.task_id = p_task_id);
end
$$;

comment on function worker.has_ended(bigint) is
  'has this task ended, in whatever state? true also when retention has removed it';

-- A column of a root table: "name type" or "name type references table (column)".
create or replace function worker.read_root_column(
  p_column text, out name text, out type text, out reference text, out reference_column text)
language plpgsql stable
set search_path = pg_catalog, pg_temp
as $$
declare
  v_parts text[] := regexp_match(p_column,
    '^\s*([a-z_][a-z0-9_]*)\s+(.*?)(?:\s+references\s+(\S+?)\s*(?:\(\s*([a-z_][a-z0-9_]*)\s*\))?)?\s*$');
  v_table regclass;
begin
  name := v_parts[1];
  type := v_parts[2];
  begin
    if to_regtype(type) is null then
      name := null;
    end if;
  exception when syntax_error or invalid_parameter_value then
    name := null;
  end;
  if name is null then
    raise exception 'a root column is "name type" or "name type references table (column)", not "%"',
      p_column using errcode = 'invalid_parameter_value';
  end if;
  if v_parts[3] is null then
    return;
  end if;
  v_table := to_regclass(v_parts[3]);
  if v_table is null then
    raise exception 'there is no table %', v_parts[3] using errcode = 'undefined_table';
  end if;
  reference := v_table::text;
  reference_column := coalesce(v_parts[4], (
    select a.attname from pg_index i
      join pg_attribute a on a.attrelid = i.indrelid and a.attnum = i.indkey[0]
     where i.indrelid = v_table and i.indisprimary and i.indnkeyatts = 1));
  if reference_column is null
     or not exists (select from pg_attribute a where a.attrelid = v_table
                      and a.attname = reference_column and not a.attisdropped) then
    raise exception 'which column of % does % refer to?', reference, name
      using errcode = 'undefined_column',
            hint = format('%s %s references %s (column)', name, type, reference);
  end if;
end
$$;

-- A function(jsonb) returns jsonb that the user has written, as it is called.
create or replace function worker.read_user_function(p_name text, p_what text) returns text
language plpgsql stable
set search_path = pg_catalog, pg_temp
as $$
declare
  v_name text := internal.function_name(p_name);
begin
  if v_name is null or v_name ~ '[''$\\{}]' then
    raise exception '% is named as schema.function, not "%"', p_what, p_name
      using errcode = 'invalid_parameter_value';
  elsif not exists (select from pg_proc p where p.oid = to_regprocedure(v_name || '(jsonb)')
                      and p.prokind = 'f' and p.prorettype = 'jsonb'::regtype
                      and not p.proretset) then
    raise exception 'there is no function %(jsonb) that returns jsonb', v_name
      using errcode = 'undefined_function', hint = format('create %s first', p_what);
  end if;
  return v_name;
end
$$;

-- Takes a template and puts the values in: {key} for each key.
create or replace function worker.fill_template(p_template text, p_values jsonb) returns text
language plpgsql immutable
set search_path = pg_catalog, pg_temp
as $$
declare
  v_text text := p_template;
  v_key text;
  v_value text;
begin
  for v_key, v_value in select * from jsonb_each_text(p_values) loop
    v_text := replace(v_text, '{' || v_key || '}', v_value);
  end loop;
  return v_text;
end
$$;

-- The script, not run. Column types and names were read above, so that nothing
-- in it is free text but the names of the user's own functions, which exist.
create or replace function worker.supervised_process_sql(
  p_schema text, p_name text, p_channel text, p_root_columns text[],
  p_handler text default null, p_max_attempts integer default 5,
  p_backoff_initial interval default '1 minute', p_backoff_base double precision default 2,
  p_backoff_max interval default '1 day', p_max_runs integer default 1000,
  p_key text[] default null, p_on_success text default null, p_on_stuck text default null)
returns text
language plpgsql stable
set search_path = pg_catalog, pg_temp
as $$
declare
  v_columns jsonb;
  v_names text[];
  v_key text[];
  v_own_payload boolean := p_handler is null and p_channel <> 'db_function';
  v_runs_by text := case p_channel when 'db_function' then 'work' else 'handlers' end;
  v_values jsonb;
begin
  if p_schema ~ '[''$\\{}]' or not exists (select from pg_namespace n where n.nspname = p_schema) then
    raise exception 'there is no schema "%"', p_schema using errcode = 'invalid_schema_name';
  elsif p_name !~ '^[a-z_][a-z0-9_]{0,39}$' is not false then
    raise exception 'a process is named by at most 40 of a-z, 0-9 and _, not "%"', p_name
      using errcode = 'invalid_name';
  elsif p_channel not in ('email', 'sms', 'file_delete', 'db_function') is not false then
    raise exception 'a channel is email, sms, file_delete or db_function, not "%"', p_channel
      using errcode = 'invalid_parameter_value';
  elsif p_channel = 'db_function' and p_handler is null then
    raise exception 'a process of channel db_function needs the function that does the work'
      using errcode = 'null_value_not_allowed',
            hint = 'p_handler => ''schema.function'', a function(payload jsonb) returns jsonb';
  elsif coalesce(cardinality(p_root_columns), 0) = 0 then
    raise exception 'a process needs a root column: what is it about?'
      using errcode = 'null_value_not_allowed', hint = 'p_root_columns => ''{account_id bigint}''';
  elsif p_max_attempts between 1 and 10000 is not true or p_max_runs between 1 and 1000000 is not true
        or p_backoff_initial >= '0' is not true or p_backoff_max >= '0' is not true
        or p_backoff_base between 1 and 100 is not true then
    raise exception 'attempts are 1 to 10000, runs 1 to 1000000, the base 1 to 100, intervals not negative'
      using errcode = 'invalid_parameter_value';
  end if;
  select jsonb_agg(to_jsonb(c) order by u.i), array_agg(c.name order by u.i)
    into v_columns, v_names
    from unnest(p_root_columns) with ordinality u(spec, i)
   cross join lateral worker.read_root_column(u.spec) c;
  if v_own_payload then
    v_columns := v_columns || '[{"name": "payload", "type": "jsonb"}]';
    v_names := v_names || 'payload'::text;
  end if;
  v_key := coalesce(p_key, v_names[1:1]);
  if not v_key <@ v_names or cardinality(v_key) = 0
     or (select count(distinct n) from unnest(v_names) n) <> cardinality(v_names) then
    raise exception 'columns have names of their own, and the key is some of them'
      using errcode = 'invalid_parameter_value';
  end if;

  select jsonb_build_object(
    'schema', quote_ident(p_schema), 'name', p_name, 'channel', p_channel,
    'columns', string_agg(format(E'  %I %s not null%s,\n', c.name, c.type,
                 ' references ' || c.reference || ' (' || quote_ident(c.reference_column) || ')'),
                 '' order by i),
    'names', string_agg(quote_ident(c.name), ', ' order by i),
    'parameters', string_agg('_' || c.name || ' ' || c.type, ', ' order by i),
    'arguments', string_agg('_' || c.name, ', ' order by i),
    'key', (select string_agg(quote_ident(k), ', ') from unnest(v_key) k),
    'key_parameters', string_agg('_' || c.name || ' ' || c.type, ', ' order by i)
                        filter (where c.name = any(v_key)),
    'key_matches', string_agg(format('t.%I = _%s', c.name, c.name), ' and ' order by i)
                     filter (where c.name = any(v_key)),
    'validations', string_agg(worker.fill_template(
        worker.supervised_template(case when c.reference is null then 'validation'
                                        else 'validation_reference' end),
        jsonb_strip_nulls(jsonb_build_object(
          'column', c.name, 'reference', c.reference,
          'reference_column', quote_ident(c.reference_column)))), '' order by i),
    'max_attempts', p_max_attempts, 'max_runs', p_max_runs,
    'backoff_initial', quote_literal(p_backoff_initial), 'backoff_base', p_backoff_base,
    'backoff_max', quote_literal(p_backoff_max),
    'before_handler', case when p_channel = 'db_function' then ''
      when v_own_payload then format('%I.get_%s_payload', p_schema, p_name)
      else worker.read_user_function(p_handler, 'the before handler') end,
    'work', case when p_channel = 'db_function'
              then worker.read_user_function(p_handler, 'the function that does the work')
              else '' end,
    'on_success', case
      when p_on_success is not null then format(E'    perform %s(v_subject);\n',
        worker.read_user_function(p_on_success, 'on_success'))
      when p_channel = 'db_function' then ''
      else E'    null;  -- what else is to happen in the same commit\n' end,
    'on_stuck', case
      when p_on_stuck is not null then format(E'        perform %s(v_subject);\n',
        worker.read_user_function(p_on_stuck, 'on_stuck'))
      else E'        null;  -- what else is to happen in the same commit\n' end)
    into v_values
    from rows from (jsonb_to_recordset(v_columns)
                      as (name text, type text, reference text, reference_column text))
           with ordinality c(name, type, reference, reference_column, i);
  return worker.fill_template(
    worker.supervised_template('tables') || worker.supervised_template('facts')
      || case when v_own_payload then worker.supervised_template('payload') else '' end
      || worker.supervised_template(v_runs_by)
      || replace(worker.supervisor_template(), '{task}',
                 worker.supervised_template('task_' || v_runs_by))
      || worker.supervised_template('kickoff') || worker.supervised_template('grants')
      || worker.supervised_template('grants_' || v_runs_by),
    v_values);
end
$$;

comment on function worker.supervised_process_sql is
  'the script that worker.create_supervised_process() would run';

-- Invoker's rights: what it makes belongs to the caller.
create or replace function worker.create_supervised_process(
  p_schema text, p_name text, p_channel text, p_root_columns text[],
  p_handler text default null, p_max_attempts integer default 5,
  p_backoff_initial interval default '1 minute', p_backoff_base double precision default 2,
  p_backoff_max interval default '1 day', p_max_runs integer default 1000,
  p_key text[] default null, p_on_success text default null, p_on_stuck text default null)
returns void
language plpgsql
set search_path = pg_catalog, pg_temp
as $$
begin
  execute worker.supervised_process_sql(
    p_schema, p_name, p_channel, p_root_columns, p_handler, p_max_attempts, p_backoff_initial,
    p_backoff_base, p_backoff_max, p_max_runs, p_key, p_on_success, p_on_stuck);
end
$$;

comment on function worker.create_supervised_process is
  'makes the tables and functions of a process that is retried until done, in the caller''s schema';
