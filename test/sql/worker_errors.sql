-- How handlers fail, and what is left of it.
\set VERBOSITY terse
\pset null '-'
set client_min_messages = warning;
create schema app;
create table app.ran (i serial, tag text);
create table app.parent (id int primary key);
create table app.deferred (id int references app.parent deferrable initially deferred);
create sequence app.tries;
create procedure app.fail(payload jsonb) language plpgsql as $$
begin
  insert into app.ran (tag) values ('undone');
  perform worker.spawn_task('ok');
  perform worker.enqueue('ok');
  case payload ->> 'how'
  when 'raise' then
    raise exception 'out of paper' using errcode = 'XX123', detail = 'tray 2', hint = 'fill it';
  when 'divide' then
    perform 1 / (payload ->> 'by')::int;
  when 'assert' then
    assert false, 'never so';
  when 'commit' then
    commit;
  when 'rollback' then
    rollback;
  when 'caught commit' then
    begin commit; exception when others then rollback; end;
  when 'deferred' then
    insert into app.deferred values (1);
  when 'serialize' then
    if nextval('app.tries') < (payload ->> 'until')::int then
      raise exception 'try again' using errcode = payload ->> 'code';
    end if;
  when 'slow' then
    perform pg_sleep(60);
  end case;
end $$;
create procedure app.ok(payload jsonb) language plpgsql as $$
begin
  insert into app.ran (tag) values (coalesce(payload ->> 'tag', 'ok'));
end $$;
select worker.register_command('fail', 'q', 'app.fail'), worker.register_command('ok', 'q', 'app.ok'),
       worker.register_command('twice', 'q', 'app.fail', p_max_attempts => 2, p_backoff_initial => '10 s');

-- Message, detail, hint, context and SQLSTATE; nothing of what was done, spawned or
-- enqueued is left, and the next task runs.
select worker.enqueue('fail', '{"how": "raise"}') as id, worker.enqueue('ok', '{"tag": "next"}') is not null as another;
call worker.process_tasks(p_queue => 'q');
select id, state, attempt, duration_ms >= 0 as timed, worker_pid = pg_backend_pid() as here, result, error
  from worker.tasks order by id;
select task_id, attempt, context from queues.error;
select tag from app.ran;

select worker.enqueue('fail', '{"how": "divide", "by": 0}') is not null, worker.enqueue('fail', '{"how": "assert"}') is not null,
       worker.enqueue('fail', '{"how": "none"}') is not null;
call worker.process_tasks(p_queue => 'q');
select e.context ->> 'sqlstate' as sqlstate, e.error_message from queues.error e where task_id > 3 order by 1;

-- A handler must not end the transaction, however it tries.
select worker.enqueue('fail', '{"how": "commit"}') is not null, worker.enqueue('fail', '{"how": "rollback"}') is not null,
       worker.enqueue('fail', '{"how": "caught commit"}') is not null;
call worker.process_tasks(p_queue => 'q');
select payload ->> 'how' as how, state, split_part(error, E'\n', 1) as error, substring(error from 'HINT: ([^\n]*)') as hint
  from worker.tasks where payload ->> 'how' ~ 'commit|rollback' order by id;

-- A deferred constraint fails its own task and not the commit.
select worker.enqueue('fail', '{"how": "deferred"}') is not null, worker.enqueue('ok', '{"tag": "after deferred"}') is not null;
call worker.process_tasks(p_queue => 'q');
select state, split_part(error, E'\n', 1) as error from worker.tasks where payload ->> 'how' = 'deferred';
select tag from app.ran order by i;
-- also in a group, of which the other tasks stay
update worker.command_registry set group_commit = 10 where command = 'fail';
create view app.how as select id, state, split_part(error, E'\n', 1) as error from worker.tasks where payload ? 'g' order by id;
select worker.enqueue('fail', '{"how": "divide", "by": 1, "g": 0}') is not null;
call worker.process_tasks(p_queue => 'q', p_mode => 'top');
do $$ declare v record; begin
  perform worker.enqueue('fail', '{"how": "divide", "by": 1, "g": 1}');
end $$;
call worker.process_tasks(p_queue => 'q');
call worker.process_tasks(p_queue => 'q');
select error, state from app.how;
create procedure app.deferring(payload jsonb) language plpgsql as $$
begin
  insert into app.ran (tag) values ('g' || (payload ->> 'g'));
  -- in a group as alone, what is deferred may be put right later in the task
  insert into app.deferred values ((payload ->> 'g')::int);
  if not payload ? 'fail' then
    insert into app.parent values ((payload ->> 'g')::int);
  end if;
end $$;
select worker.register_command('deferring', 'q', 'app.deferring', p_group_commit => 10);
select count(worker.enqueue('deferring', jsonb_build_object('g', i) || case when i % 3 = 0 then '{"fail": 1}'::jsonb else '{}' end))
  from generate_series(10, 30) i;
call worker.process_tasks(p_queue => 'q');
select state, count(*), array_agg(payload ->> 'g' order by id) as g from worker.tasks where command = 'deferring' group by 1 order by 1;
select count(*) as left_behind from app.ran where tag ~ '^g';
update worker.command_registry set group_commit = 1 where command = 'fail';

-- Deadlocks and serialization failures are tried again in place, a few times, and do
-- not count as attempts.
select worker.enqueue('fail', '{"how": "serialize", "code": "40001", "until": 4}') is not null;
call worker.process_tasks(p_queue => 'q');
select last_value as tries from app.tries;
select worker.enqueue('fail', '{"how": "serialize", "code": "40P01", "until": 8}') is not null;
call worker.process_tasks(p_queue => 'q');
select last_value as tries from app.tries;
select worker.enqueue('fail', '{"how": "serialize", "code": "40P01", "until": 100}') is not null;
call worker.process_tasks(p_queue => 'q');
select last_value as tries from app.tries;
select payload ->> 'until' as until, state, attempt, split_part(error, E'\n', 1) as error
  from worker.tasks where payload ->> 'how' = 'serialize' order by id;
-- what those that succeeded had spawned ran once
select count(*) as children, count(*) filter (where state = 'completed') as completed
  from worker.tasks where parent_id is not null;

-- A statement timeout ends the task, and with it the call; the rest is handed back.
select worker.enqueue('fail', '{"how": "slow"}') as slow, worker.enqueue('ok', '{"tag": "behind"}') is not null;
set statement_timeout = '300ms';
call worker.process_tasks(p_queue => 'q');
reset statement_timeout;
select payload, state, attempt, split_part(error, E'\n', 1) as error from worker.tasks
 where payload ->> 'how' = 'slow' or payload ->> 'tag' = 'behind' order by id;
select context ->> 'sqlstate' as sqlstate from queues.error order by error_id desc limit 1;
select count(*) as open from queues.lease_open;
begin;
select worker.enqueue('fail', '{"how": "slow", "in": "block"}') is not null;
set local statement_timeout = '300ms';
call worker.process_tasks(2, p_queue => 'q');
set local statement_timeout = 0;
select payload, state from worker.tasks where payload ? 'in' or payload ->> 'tag' = 'behind' order by id;
rollback;

-- More than one attempt: pending with the error of the last one, then failed.
set worker.fake_now = '2030-01-01 12:00:00+00';
select worker.enqueue('twice', '{"how": "divide", "by": 0}') as twice;
call worker.process_tasks(p_queue => 'q');
select state, attempt, split_part(error, E'\n', 1) as error from worker.tasks where command = 'twice';
set worker.fake_now = '2030-01-01 12:00:04+00';
call worker.process_tasks(p_queue => 'q');
select state, attempt from worker.tasks where command = 'twice';
set worker.fake_now = '2030-01-01 12:00:20+00';
call worker.process_tasks(p_queue => 'q');
select state, attempt, completed_at from worker.tasks where command = 'twice';
select e.attempt, e.context ->> 'sqlstate' as sqlstate from queues.error e join queues.task using (task_id)
 where task_type = 'twice' order by error_id;
reset worker.fake_now;

-- db_function: both envelopes are results; raising fails.
create function app.sup(payload jsonb) returns jsonb language plpgsql as $$
begin
  if payload ? 'fail' then raise exception 'supervisor fell'; end if;
  perform worker.enqueue('ok', '{"tag": "from supervisor"}');
  return payload -> 'answer';
end $$;
select worker.enqueue('db_function', '{"db_function": "app.sup", "answer": {"status": "succeeded", "payload": {"n": 1}}}') is not null,
       worker.enqueue('db_function', '{"db_function": "app.sup", "answer": {"status": "max_attempts_reached"}}') is not null,
       worker.enqueue('db_function', '{"db_function": "app.sup", "answer": {"success": true, "payload": {}}}') is not null,
       worker.enqueue('db_function', '{"db_function": "app.sup", "answer": {"success": false, "validation_failure_message": "no such"}}') is not null,
       worker.enqueue('db_function', '{"db_function": "app.sup", "fail": true}') is not null,
       worker.enqueue('db_function', '{"db_function": "app.missing"}') is not null,
       worker.enqueue('db_function', '{}') is not null;
call worker.process_tasks(p_queue => 'default');
select state, result, split_part(error, E'\n', 1) as error from worker.tasks where command = 'db_function' order by id;
select worker.drain();
select tag, count(*) from app.ran where tag ~ 'super' group by 1;
select count(*) as rescued from worker.rescue;
