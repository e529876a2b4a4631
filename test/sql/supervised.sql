-- The supervisor kit: what it refuses, what it writes, and what the written
-- process does when things go wrong. The usual course is in example_email.sql.
\set VERBOSITY terse
\pset null '-'
set client_min_messages = warning;
set worker.fake_now = '2030-01-01 12:00:00+00';

-- By somebody who is no superuser: the result is his.
create role supervised_owner in role worker_admin;
create schema app authorization supervised_owner;
set role supervised_owner;
create table app.thing (thing_id bigint primary key, other text unique);
create function app.work(p jsonb) returns jsonb language sql as $$ select p $$;
create function app.many(p jsonb) returns setof jsonb language sql as $$ select p $$;
create function app.words(p jsonb) returns text language sql as $$ select 'x' $$;

-- Refused.
do $$
declare
  v_case text;
begin
  foreach v_case in array array[
    $c$'nowhere', 'foo', 'email', '{thing_id bigint}'$c$, $c$null, 'foo', 'email', '{thing_id bigint}'$c$,
    $c$'app', 'Foo', 'email', '{thing_id bigint}'$c$, $c$'app', 'foo; drop', 'email', '{thing_id bigint}'$c$,
    $c$'app', null, 'email', '{thing_id bigint}'$c$, $c$'app', repeat('a', 41), 'email', '{thing_id bigint}'$c$,
    $c$'app', 'foo', 'pigeon', '{thing_id bigint}'$c$, $c$'app', 'foo', null, '{thing_id bigint}'$c$,
    $c$'app', 'foo', 'email', '{}'$c$, $c$'app', 'foo', 'email', null$c$,
    $c$'app', 'foo', 'email', '{thing_id}'$c$, $c$'app', 'foo', 'email', '{thing_id nothing}'$c$,
    $c$'app', 'foo', 'email', '{thing_id int); drop table app.thing; --}'$c$,
    $c$'app', 'foo', 'email', '{Thing bigint}'$c$,
    $c$'app', 'foo', 'email', '{thing_id bigint references app.missing}'$c$,
    $c$'app', 'foo', 'email', '{thing_id bigint references app.thing (nothing)}'$c$,
    $c$'app', 'foo', 'email', '{thing_id bigint, thing_id bigint}'$c$,
    $c$'app', 'foo', 'email', '{payload jsonb}'$c$,
    $c$'app', 'foo', 'email', '{thing_id bigint}', p_key => '{other}'$c$,
    $c$'app', 'foo', 'email', '{thing_id bigint}', 'app.missing'$c$,
    $c$'app', 'foo', 'email', '{thing_id bigint}', 'app.words'$c$,
    $c$'app', 'foo', 'email', '{thing_id bigint}', 'app.many'$c$,
    $c$'app', 'foo', 'email', '{thing_id bigint}', 'work'$c$,
    $c$'app', 'foo', 'db_function', '{thing_id bigint}'$c$,
    $c$'app', 'foo', 'email', '{thing_id bigint}', p_on_success => 'app.missing'$c$,
    $c$'app', 'foo', 'email', '{thing_id bigint}', p_max_attempts => 0$c$,
    $c$'app', 'foo', 'email', '{thing_id bigint}', p_backoff_base => 'NaN'$c$,
    $c$'app', 'foo', 'email', '{thing_id bigint}', p_backoff_initial => '-1 s'$c$,
    $c$'app', 'foo', 'email', '{thing_id bigint}', p_max_runs => null$c$] loop
    begin
      execute format('select worker.create_supervised_process(%s)', v_case);
      raise warning 'not refused: %', v_case;
    exception when others then
      raise warning '%: %', v_case, sqlerrm;
    end;
  end loop;
end $$;
select count(*) from pg_class c where c.relnamespace = 'app'::regnamespace and c.relname like 'foo%';

-- With the payload in the root row, and a key of two columns.
select worker.create_supervised_process('app', 'foo', 'email',
  '{thing_id bigint references app.thing, kind text, other text references app.thing (other)}',
  p_max_attempts => 2, p_max_runs => 6, p_key => '{thing_id,kind}');
-- And one that the database itself does.
create table app.log (n int generated always as identity, what text);
create table app.broken (message text);
create function app.do_bar(p jsonb) returns jsonb language plpgsql as $$
begin
  insert into app.log (what) values ('did ' || (p ->> 'thing_id'));
  if exists (select from app.broken where message = 'raise') then
    raise exception 'bar is broken';
  end if;
  return coalesce((select message::jsonb from app.broken), '{"status": "succeeded"}');
end $$;
create function app.note(p jsonb) returns jsonb language sql as $$
  insert into app.log (what) values ('note: ' || (p ->> 'thing_id')) returning '{}'::jsonb $$;
select worker.create_supervised_process('app', 'bar', 'db_function', '{thing_id bigint}', 'app.do_bar',
  p_max_attempts => 2, p_backoff_initial => '10 s', p_on_success => 'app.note', p_on_stuck => 'app.note');
reset role;

-- All of it is his, nothing for PUBLIC, for the worker what it calls and no more;
-- every definer pins its search_path.
select p.proname, p.proowner::regrole, p.prosecdef as definer, p.proconfig,
       has_function_privilege('worker_service_user', p.oid, 'execute') as worker,
       exists (select from aclexplode(coalesce(p.proacl, acldefault('f', p.proowner))) a
                where a.grantee = 0) as public
  from pg_proc p where p.pronamespace = 'app'::regnamespace and p.proname ~ '(foo|bar)'
   and p.proname <> 'do_bar' order by 1;
select c.relname, c.relowner::regrole, c.relacl from pg_class c
 where c.relnamespace = 'app'::regnamespace and c.relkind = 'r' and c.relname ~ '(foo|bar)' order by 1;
select function_name from worker.allowed_function order by 1;

create procedure app.work_for(p_for interval, p_fails boolean) language plpgsql as $$
declare
  v_until timestamptz := worker.now() + p_for;
  v_task record;
begin
  while worker.now() < v_until loop
    set local role worker_service_user;
    perform worker.drain();
    for v_task in select * from queues.exchange('default', 10, p_lanes => '{2,3}') loop
      perform worker.channel_begin(v_task.lease_id, v_task.task_id),
              case when p_fails then worker.channel_failed(v_task.lease_id, v_task.task_id, 'no')
                   else worker.channel_succeeded(v_task.lease_id, v_task.task_id) end;
    end loop;
    reset role;
    perform set_config('worker.fake_now', (worker.now() + interval '10 s')::text, false);
  end loop;
end $$;

-- Kickoff validates, and says what is wrong instead of raising.
insert into app.thing values (1, 'one'), (2, 'two');
select app.kickoff_foo(null, 'k', 'one', '{}'), app.kickoff_foo(9, 'k', 'one', '{}'),
       app.kickoff_foo(1, null, 'one', '{}'), app.kickoff_foo(1, 'k', 'nine', '{}'),
       app.kickoff_foo(1, 'k', 'one', null);
select count(*) from app.foo_task, worker.tasks;

-- The payload is the provider's, with a message id of the process.
select app.kickoff_foo(1, 'k', 'one', '{"subject": "hello"}', worker.now() + interval '1 hour');
select scheduled_at from worker.tasks;
call app.work_for('61 minutes', false);
select worker.run_channel_handler(0, 'before_handler', payload, payload) from worker.tasks where command = 'email';
select worker.run_channel_handler(0, 'before_handler', payload, '{"foo_attempt_id": 99}') from worker.tasks
 where command = 'email';
-- Handlers that are called twice, and with nonsense.
select app.record_foo_success(p), app.record_foo_failure(p) from unnest(array[
  '{}', '{"original_payload": {}}', '{"original_payload": {"foo_attempt_id": 99}}',
  '{"original_payload": {"foo_attempt_id": 1}}']::jsonb[]) p;
delete from app.foo_attempt_failed;
call app.work_for('5 minutes', false);
select result from worker.tasks order by id desc limit 1;

-- A supervisor that is run again, as after a crash before its completion was
-- committed, makes no second attempt and no second chain.
select app.kickoff_foo(2, 'k', 'two', '{}');
select app.foo_supervisor(payload) ->> 'status', app.foo_supervisor(payload) ->> 'status'
  from worker.tasks order by id desc limit 1;
select count(*) filter (where command = 'email') as attempts,
       count(*) filter (where command = 'db_function') as supervisors
  from worker.tasks where state = 'pending';
select app.count_foo_attempts(foo_task_id) from app.foo_task where thing_id = 2;
-- Its attempt is canceled: nobody tells, the supervisor notices.
select worker.cancel(queue_task_id) from app.foo_attempt a join app.foo_task using (foo_task_id)
 where thing_id = 2;
call app.work_for('2 minutes', true);
select error_message from app.foo_attempt_failed order by foo_attempt_id;
call app.work_for('10 minutes', true);
select thing_id, error_message from app.foo_task_failed join app.foo_task using (foo_task_id);
select app.is_foo_stuck(2, 'k'), app.is_foo_stuck(1, 'k'), app.is_foo_stuck(3, 'k');

-- A supervisor that is lost, here canceled, is brought back by a kickoff.
select app.kickoff_foo(1, 'l', 'one', '{}');
select worker.cancel(max(id)) from worker.tasks;
select app.kickoff_foo(1, 'l', 'one', '{}');
call app.work_for('2 minutes', false);
select app.has_foo_succeeded_attempt(foo_task_id) from app.foo_task where kind = 'l';

-- The cap on runs: an attempt that nobody serves.
select app.kickoff_foo(1, 'm', 'one', '{}');
create procedure app.only_sql(p_minutes int) language plpgsql as $$
begin
  for i in 1..p_minutes loop
    set local role worker_service_user;
    perform worker.drain();
    reset role;
    perform set_config('worker.fake_now', (worker.now() + interval '1 minute')::text, false);
  end loop;
end $$;
call app.only_sql(12);
select error_message from app.foo_task_failed f join app.foo_task t using (foo_task_id) where t.kind = 'm';
select count(*) from worker.tasks where state = 'pending' and command = 'db_function';
select payload -> 'run_count' as run_count, result from worker.tasks where command = 'db_function'
 order by id desc limit 1;
select app.foo_supervisor('{}'), app.foo_supervisor('{"foo_task_id": 99}');

-- db_function: work and fact are one commit; a failed attempt leaves only the fact.
select app.kickoff_bar(1);
call app.work_for('1 minute', false);
select what from app.log order by n;
select app.has_bar_succeeded_attempt(1), app.run_bar(payload), app.run_bar('{}'), app.run_bar('{"bar_attempt_id": 99}')
  from worker.tasks where payload ->> 'db_function' = 'app.run_bar';
truncate app.log;
insert into app.broken values ('raise');
select app.kickoff_bar(2);
call app.work_for('5 s', false);
update app.broken set message = '{"success": false, "error": "said no"}';
call app.work_for('2 minutes', false);
select error_message from app.bar_attempt_failed order by bar_attempt_id;
select app.is_bar_stuck(2);
select what from app.log order by n;

-- The script alone makes nothing.
select worker.supervised_process_sql('app', 'baz', 'sms', '{n bigint}') ~ 'create table app.baz_task',
       to_regclass('app.baz_task');
-- An ordinary role makes none.
set role worker_service_user;
select worker.create_supervised_process('app', 'foo2', 'email', '{thing_id bigint}');
reset role;
drop schema app cascade;
drop role supervised_owner;
