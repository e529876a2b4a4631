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
-- the connection, role and database survive anyway. No SET clause: it would be
-- taken for the caller's.
create or replace function worker.session_state(p_commits boolean) returns jsonb
language plpgsql
as $$
declare
  v_settings jsonb;
begin
  select pg_catalog.jsonb_object_agg(s.name, s.setting) into v_settings
    from pg_catalog.pg_settings s
   where s.source operator(pg_catalog.=) 'session'
     and s.name not in ('role', 'session_authorization', 'transaction_isolation',
                        'transaction_read_only', 'transaction_deferrable');
  if p_commits then
    select coalesce(v_settings, '{}') operator(pg_catalog.||) coalesce(
             pg_catalog.jsonb_object_agg(n, pg_catalog.current_setting(n, true)), '{}')
      into v_settings
      from pg_catalog.unnest('{worker.fake_now,worker.worker_id,worker.commit,worker.notify_changes,worker.max_payload_bytes}'::text[]) n
     where pg_catalog.current_setting(n, true) operator(pg_catalog.<>) '';
  end if;
  return pg_catalog.jsonb_strip_nulls(pg_catalog.jsonb_build_object(
    'role', pg_catalog.current_setting('role'),
    'user', session_user,
    'settings', nullif(v_settings, '{}'),
    'listens', (select pg_catalog.jsonb_agg(c) from pg_catalog.pg_listening_channels() c),
    'locks', nullif(exists (select from pg_catalog.pg_locks l
                             where l.locktype operator(pg_catalog.=) 'advisory'
                               and l.pid operator(pg_catalog.=) pg_catalog.pg_backend_pid()),
                    false),
    'prepared', (select pg_catalog.jsonb_agg(p.name) from pg_catalog.pg_prepared_statements p),
    'temp', (select pg_catalog.jsonb_agg(c.oid::bigint) from pg_catalog.pg_class c
              where c.relnamespace operator(pg_catalog.=) pg_catalog.pg_my_temp_schema())));
end
$$;

-- After each handler: its settings, temporary objects, prepared statements,
-- advisory locks and channels go, the caller's stay. Inside a transaction block
-- locks and channels are the caller's affair. No SET clause: it would undo what
-- this does. Returns true.
create or replace function worker.reset_session(p_kept jsonb, p_commits boolean) returns boolean
language plpgsql
as $$
declare
  v_name text;
  v_value text;
  v_drop text;
begin
  if p_commits then
    reset all;
    if p_kept ? 'settings' then
      for v_name, v_value in select * from pg_catalog.jsonb_each_text(p_kept -> 'settings') loop
        perform pg_catalog.set_config(v_name, v_value, false);
      end loop;
    end if;
    if not p_kept ? 'locks' then
      v_drop := pg_catalog.pg_advisory_unlock_all();
    end if;
    if not p_kept ? 'listens' then
      unlisten *;  -- a LISTEN of this transaction is not yet to be seen
    end if;
  else
    for v_name, v_value in select * from worker.changed_settings(p_kept -> 'settings') loop
      perform pg_catalog.set_config(v_name, v_value, false);
    end loop;
  end if;
  if pg_catalog.pg_my_temp_schema() operator(pg_catalog.<>) 0
     or exists (select from pg_catalog.pg_prepared_statement())
     or exists (select from pg_catalog.pg_listening_channels()) then
    for v_drop in select worker.left_behind(p_kept, p_commits) loop
      execute v_drop;
    end loop;
  end if;
  return true;
end
$$;

-- Settings that are not as they were when the transaction block's caller was
-- asked, and what they were.
create or replace function worker.changed_settings(
  p_settings jsonb, out name text, out setting text) returns setof record
language sql
as $$
  select s.name, coalesce(p_settings ->> s.name, s.reset_val)
    from pg_catalog.pg_settings s
   where s.source operator(pg_catalog.=) 'session'
     and s.name not in ('role', 'session_authorization', 'transaction_isolation',
                        'transaction_read_only', 'transaction_deferrable')
     and s.setting is distinct from coalesce(p_settings ->> s.name, s.reset_val)
$$;

-- The statements that remove what a handler left in the session.
create or replace function worker.left_behind(p_kept jsonb, p_commits boolean) returns setof text
language sql
set search_path = pg_catalog, pg_temp
as $$
  select format('unlisten %I', c) from pg_listening_channels() c
   where p_commits and not p_kept -> 'listens' ? c
  union all
  select format('deallocate %I', p.name) from pg_prepared_statement() p
   where not coalesce(p_kept -> 'prepared', '[]') ? p.name
  union all
  select 'discard temp' where not p_kept ? 'temp'
                          and exists (select from pg_class c
                                       where c.relnamespace = pg_my_temp_schema())
  union all
  select format('drop %s if exists %s cascade',
                case c.relkind when 'v' then 'view' when 'S' then 'sequence' else 'table' end,
                c.oid::regclass)
    from pg_class c
   where p_kept ? 'temp' and c.relnamespace = pg_my_temp_schema()
     and c.relkind in ('r', 'p', 'v', 'S') and not p_kept -> 'temp' @> to_jsonb(c.oid::bigint)
$$;
