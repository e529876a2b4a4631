-- What a handler does to its session does not reach the next one, and what the caller
-- has stays.
\set VERBOSITY terse
\pset null '-'
set client_min_messages = warning;
create schema app;
create table app.seen (i serial, tag text, was jsonb);
create role worker_session_role;
create function app.state() returns jsonb language sql as $$
  select jsonb_build_object(
    'role', current_user, 'work_mem', current_setting('work_mem'), 'path', current_setting('search_path'),
    'mine', nullif(current_setting('app.mine', true), ''), 'isolation', current_setting('transaction_isolation'),
    'timezone', current_setting('timezone'),
    'temp', (select count(*) from pg_class where relnamespace = pg_my_temp_schema() and relkind in ('r', 'v', 'S')),
    'locks', (select count(*) from pg_locks where locktype = 'advisory' and pid = pg_backend_pid() and objid between 4710 and 4719),
    'listens', (select string_agg(c, ',' order by c) from pg_listening_channels() c),
    'prepared', (select string_agg(name, ',' order by name) from pg_prepared_statements),
    'task', worker.current_task_id() is not null)
$$;
create procedure app.mess(payload jsonb) language plpgsql as $$
begin
  insert into app.seen (tag, was) values (payload ->> 'tag', app.state());
  set work_mem = '1234kB';
  set search_path = 'nowhere';
  perform set_config('app.mine', 'changed', false);
  set timezone = 'Asia/Tokyo';
  perform pg_advisory_lock(4711);
  listen a_channel;
  execute 'prepare a_statement as select 1';
  create temporary table scratch (n int);
  create temporary view peek as select * from pg_temp.scratch;
  create temporary sequence counting;
  set worker.current_task = '99999';
  set worker.fake_now = '1999-01-01';
  set role worker_session_role;
end $$;
select worker.register_command('mess', 'q', 'app.mess');

-- Handler to handler, from a session that has nothing of its own.
select count(worker.enqueue('mess', jsonb_build_object('tag', i))) from generate_series(1, 2) i;
call worker.process_tasks(p_queue => 'q');
select state, count(*) from worker.tasks group by 1;
select was from app.seen order by i;
select app.state();
truncate app.seen;

-- The same in groups.
update worker.command_registry set group_commit = 10;
select count(worker.enqueue('mess', jsonb_build_object('tag', i))) from generate_series(1, 30) i;
call worker.process_tasks(p_queue => 'q');
select count(distinct was), count(*) from app.seen;
select was from app.seen order by i desc limit 1;
update worker.command_registry set group_commit = 1;
truncate app.seen;

-- From a session with a state of its own.
grant worker_session_role to current_user;
set work_mem = '7MB';
set search_path = app, public;
set timezone = 'Europe/Berlin';
select pg_advisory_lock(4712);
listen my_channel;
prepare mine as select 'mine';
create temporary table mine (n int);
insert into mine values (42);
set worker.fake_now = '2030-01-01 12:00:00+00';
select count(worker.enqueue('mess', jsonb_build_object('tag', i))) from generate_series(1, 3) i;
call worker.process_tasks(p_queue => 'q');
select distinct was - 'locks' as was from app.seen;
select app.state() - 'locks' as state, worker.now();
select n from mine;
execute mine;
select count(*) as my_lock from pg_locks where locktype = 'advisory' and objid = 4712 and pid = pg_backend_pid();
select pg_advisory_unlock_all();
unlisten *;
deallocate mine;
drop table mine;
truncate app.seen;

-- As another role than that of the session, with no more than the rights to run.
reset search_path;
create role worker_session_runner;
grant usage on schema worker, app to worker_session_runner;
grant insert, select on app.seen to worker_session_runner;
grant usage on sequence app.seen_i_seq to worker_session_runner;
grant execute on all routines in schema worker to worker_session_runner;
grant worker_session_role to worker_session_runner;
select worker.enqueue('mess', '{"tag": "runner"}') is not null;
set role worker_session_runner;
call worker.process_tasks(p_queue => 'q');
select current_user;
reset role;
select was ->> 'role' as role from app.seen;
select state, error from worker.tasks order by id desc limit 1;
truncate app.seen;
reset all;

-- A handler that fails leaves nothing either.
create procedure app.mess_and_fail(payload jsonb) language plpgsql as $$
begin
  call app.mess(payload);
  raise exception 'failed';
end $$;
select worker.register_command('mess_and_fail', 'q', 'app.mess_and_fail');
select count(worker.enqueue('mess_and_fail', jsonb_build_object('tag', i))) from generate_series(1, 2) i;
select worker.enqueue('mess', '{"tag": 3}') is not null;
call worker.process_tasks(p_queue => 'q');
select was - 'timezone' as was from app.seen;
truncate app.seen;

-- Inside a transaction block settings and role are put right; the rest is undone by
-- the rollback.
set work_mem = '5MB';
begin;
set local app.mine = 'test';
set local timezone = 'Europe/Oslo';
select count(worker.enqueue('mess', jsonb_build_object('tag', i))) from generate_series(1, 1) i;
call worker.process_tasks(p_queue => 'q');
select was -> 'mine' as mine, was -> 'timezone' as timezone, was -> 'work_mem' as work_mem from app.seen;
select current_user = session_user as own_role, current_setting('work_mem') as work_mem,
       current_setting('timezone') as timezone, worker.current_task_id() as task;
rollback;
select app.state();

drop owned by worker_session_role, worker_session_runner;
drop role worker_session_role, worker_session_runner;
