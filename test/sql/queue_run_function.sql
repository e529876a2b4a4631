-- internal.run_function: the name comes out of a payload, so it is hostile.
\set VERBOSITY terse
\pset null '-'
create schema app;
create schema "Odd; drop";
create table app.canary (n int);
create function app.echo(payload jsonb) returns jsonb language sql as 'select payload';
create function app.words(payload jsonb) returns text language sql as $$ select payload ->> 'w' $$;
create function app.nothing(payload jsonb) returns void language sql as 'select';
create function app.raises(payload jsonb) returns jsonb language plpgsql
  as $$ begin raise exception 'no %', payload ->> 'what'; end $$;
create function app.many(payload jsonb) returns setof jsonb language sql as 'select payload';
create procedure app.proc(payload jsonb) language sql as 'insert into app.canary values (1)';
create aggregate app.agg(jsonb) (sfunc = jsonb_concat, stype = jsonb);
create function app.two(payload jsonb, more int default 1) returns jsonb language sql as 'select payload';
create function app.over(payload text) returns text language sql as $$ select 'text' $$;
create function app.over(payload jsonb) returns text language sql as $$ select 'jsonb' $$;
create function app.over(payload json) returns text language sql as $$ select 'json' $$;
create function app.twice(payload jsonb) returns text language sql as $$ select 'one' $$;
create function app.twice(payload jsonb, more int default 1) returns text language sql as $$ select 'two' $$;
create function app.over(payload anyelement, more text) returns text language sql as $$ select 'any' $$;
create function app.only_text(payload text) returns text language sql as $$ select 'text' $$;
create function app."Quoted ""Name"""(payload jsonb) returns text language sql as $$ select 'quoted' $$;
create function "Odd; drop"."table app.canary; --"(payload jsonb) returns text language sql
  as $$ select 'odd' $$;
create function app.path(payload jsonb) returns text language sql
  as $$ select current_setting('search_path') $$;

select internal.run_function('app.echo', '{"a": [1, "x"]}');
select internal.run_function('app.echo', null);
select internal.run_function('APP.Echo', '{}');
select internal.run_function(' app . echo ', '{}');
select internal.run_function('app.words', '{"w": "a\"b"}');
select internal.run_function('app.nothing', '{}');
select internal.run_function('app.raises', '{"what": "way"}');
select internal.run_function('app.over', '{}');
select internal.run_function('app."Quoted ""Name"""', '{}');
select internal.run_function('"Odd; drop"."table app.canary; --"', '{}');
-- The caller's search_path stays in force inside the function.
set search_path = app, public;
select internal.run_function('app.path', '{}');
reset search_path;

-- What is refused, and with which sqlstate.
create function pg_temp.try(p_name text) returns text language plpgsql as $$
begin
  return 'RAN: ' || coalesce(internal.run_function(p_name, '{}')::text, 'null');
exception when others then
  return sqlstate || ' ' || sqlerrm;
end $$;
select n as name, pg_temp.try(n) as outcome from unnest(array[
  null, '', ' ', '.', 'app.', '.echo', 'echo', 'public.echo', 'app.missing', 'missing.echo',
  'app.echo.more', 'postgres.app.echo', 'app.echo()', 'app.echo(jsonb)', 'app.echo;',
  'app.echo; drop table app.canary', 'app.echo('''') ; drop table app.canary; --',
  'app.echo -- ', 'app.echo/**/', '/**/app.echo', 'app.echo''', 'app.echo"', '"app.echo"',
  '"app"."echo', 'app."echo"; truncate app.canary', 'app.ec%s', 'app.%I', '%s', 'app.$1',
  'app.echo,app.echo', 'app.echo union select', E'app\n.\nmissing', 'app."Echo"',
  'pg_catalog.jsonb_typeof', '"pg_catalog".jsonb_typeof', 'PG_CATALOG.jsonb_typeof',
  'pg_catalog.pg_sleep', 'pg_temp.try', 'information_schema._pg_expandarray', 'jsonb_typeof',
  'app.only_text', 'app.two', 'app.twice', 'app.many', 'app.proc', 'app.agg', 'internal.run_function',
  'app.' || repeat('e', 70)]) with ordinality u(n, i) order by i;
select count(*) from app.canary;

-- The rights are those of the caller, not of the owner of run_function.
create role queue_run_function_role;
grant usage on schema internal, app to queue_run_function_role;
grant execute on function internal.run_function to queue_run_function_role;
revoke execute on function app.echo from public;
create table app.secret (n int);
create function app.peek(payload jsonb) returns bigint language sql as 'select count(*) from app.secret';
create function app.who(payload jsonb) returns text language sql as 'select current_user::text';
set role queue_run_function_role;
select internal.run_function('app.who', '{}');
select internal.run_function('app.peek', '{}');
select internal.run_function('app.echo', '{}');
reset role;
grant execute on function app.echo to queue_run_function_role;
set role queue_run_function_role;
select internal.run_function('app.echo', '{}');
reset role;
-- And nobody has them by default.
select grantee, privilege_type from information_schema.role_routine_grants
 where specific_schema = 'internal' and routine_name = 'run_function' and grantee = 'PUBLIC';
select p.proname from pg_proc p, aclexplode(coalesce(p.proacl, acldefault('f', p.proowner))) a
 where p.pronamespace = 'queues'::regnamespace and a.grantee = 0;
drop owned by queue_run_function_role;
drop role queue_run_function_role;
