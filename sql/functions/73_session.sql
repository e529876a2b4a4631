-- The session that runs handlers: what of its state is the caller's and stays,
-- and what a handler left behind and goes.

-- May a procedure commit here? It may not inside a transaction block, and not
-- when the client sent several statements in one message, which is a transaction
-- too: the first two conditions do not show that, so the text of the message
-- has to. A caller that knows better says so with the setting worker.commit.
create or replace function worker.in_transaction_block() returns boolean
language plpgsql
set search_path = pg_catalog, pg_temp
as $$
declare
  v_text text := coalesce(current_query(), '');
begin
  if pg_current_xact_id_if_assigned() is not null or now() < statement_timestamp() then
    return true;
  end if;
  v_text := regexp_replace(v_text, '--[^\n]*', '', 'g');
  v_text := regexp_replace(v_text, '/\*.*?\*/', '', 'g');
  v_text := regexp_replace(v_text, '\$(\w*)\$.*?\$\1\$', '', 'g');
  v_text := regexp_replace(v_text, '''[^'']*''', '', 'g');
  return v_text !~* '^\s*(call|do)\M' or v_text ~ ';\s*\S';
end
$$;

-- What the caller of process_tasks has, to be kept. Settings of other
-- extensions' or applications' making (my.setting) cannot be listed; those of
-- the connection, role and database survive anyway.
create or replace function worker.session_state(p_commits boolean) returns jsonb
language plpgsql
set search_path = pg_catalog, pg_temp
as $$
declare
  v_settings jsonb;
begin
  select jsonb_object_agg(s.name, s.setting) into v_settings
    from pg_settings s
   where s.source = 'session'
     and s.name not in ('role', 'session_authorization', 'transaction_isolation',
                        'transaction_read_only', 'transaction_deferrable');
  if p_commits then
    select coalesce(v_settings, '{}') || coalesce(jsonb_object_agg(n, current_setting(n, true)), '{}')
      into v_settings
      from unnest('{worker.fake_now,worker.worker_id,worker.commit,worker.notify_changes,worker.max_payload_bytes}'::text[]) n
     where current_setting(n, true) <> '';
  end if;
  return jsonb_strip_nulls(jsonb_build_object(
    'role', current_setting('role'),
    'user', session_user,
    'settings', nullif(v_settings, '{}'),
    'listens', nullif(exists (select from pg_listening_channels()), false),
    'locks', nullif(exists (select from pg_locks l
                             where l.locktype = 'advisory' and l.pid = pg_backend_pid()), false),
    'prepared', (select jsonb_agg(p.name) from pg_prepared_statements p),
    'temp', (select jsonb_agg(c.oid::bigint) from pg_class c
              where c.relnamespace = pg_my_temp_schema())));
end
$$;

-- The caller's own role, without which the end could not be recorded.
create or replace function worker.restore_role(p_kept jsonb) returns void
language plpgsql
as $$
begin
  if session_user operator(pg_catalog.<>) (p_kept ->> 'user') then
    execute pg_catalog.format('set session authorization %L', p_kept ->> 'user');
  end if;
  if pg_catalog.current_setting('role') operator(pg_catalog.<>) (p_kept ->> 'role') then
    perform pg_catalog.set_config('role', p_kept ->> 'role', false);
  end if;
end
$$;

-- After each handler: its settings, temporary tables, advisory locks, channels
-- and prepared statements go, the caller's stay. Inside a transaction block only
-- the settings are put right; the rest is the caller's affair. No SET clause:
-- it would undo what this does. Returns true.
create or replace function worker.reset_session(p_kept jsonb, p_commits boolean) returns boolean
language plpgsql
as $$
declare
  v_name text;
  v_value text;
  v_free text;
begin
  if not p_commits then
    for v_name, v_value in
      select s.name, coalesce(p_kept -> 'settings' ->> s.name, s.reset_val)
        from pg_catalog.pg_settings s
       where s.source = 'session'
         and s.name not in ('role', 'session_authorization', 'transaction_isolation',
                            'transaction_read_only', 'transaction_deferrable')
         and s.setting is distinct from coalesce(p_kept -> 'settings' ->> s.name, s.reset_val)
    loop
      perform pg_catalog.set_config(v_name, v_value, false);
    end loop;
    return true;
  end if;

  reset all;
  if p_kept ? 'settings' then
    for v_name, v_value in select * from pg_catalog.jsonb_each_text(p_kept -> 'settings') loop
      perform pg_catalog.set_config(v_name, v_value, false);
    end loop;
  end if;
  if not p_kept ? 'locks' then
    v_free := pg_catalog.pg_advisory_unlock_all();
  end if;
  if pg_catalog.pg_my_temp_schema() operator(pg_catalog.<>) 0 then
    perform worker.drop_temporary(p_kept);
  end if;
  if exists (select from pg_catalog.pg_listening_channels())
     or exists (select from pg_catalog.pg_prepared_statement()) then
    for v_free in
      select 'unlisten *' from pg_catalog.pg_listening_channels() where not p_kept ? 'listens'
      union
      select pg_catalog.format('deallocate %I', p.name) from pg_catalog.pg_prepared_statement() p
       where not coalesce(p_kept -> 'prepared', '[]') ? p.name
    loop
      execute v_free;
    end loop;
  end if;
  return true;
end
$$;

create or replace function worker.drop_temporary(p_kept jsonb) returns void
language plpgsql
set search_path = pg_catalog, pg_temp
as $$
declare
  v_drop text;
begin
  if not p_kept ? 'temp' then
    if exists (select from pg_class c where c.relnamespace = pg_my_temp_schema()) then
      discard temp;
    end if;
    return;
  end if;
  for v_drop in
    select format('drop %s if exists %s cascade',
                  case c.relkind when 'v' then 'view' when 'S' then 'sequence' else 'table' end,
                  c.oid::regclass)
      from pg_class c
     where c.relnamespace = pg_my_temp_schema() and c.relkind in ('r', 'p', 'v', 'S')
       and not p_kept -> 'temp' @> to_jsonb(c.oid::bigint)
  loop
    execute v_drop;
  end loop;
end
$$;
