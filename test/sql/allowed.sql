-- Which functions a payload may name: those that the worker's role may execute,
-- and, when the administrator asks for it, only those in the registry.
\set VERBOSITY terse
\pset null '-'
set client_min_messages = warning;
create schema app;
create table app.ran (what text);
create function app.listed(p jsonb) returns jsonb language sql security definer as
  $$ insert into app.ran values ('listed') returning '{"status": "succeeded"}'::jsonb $$;
create function app.unlisted(p jsonb) returns jsonb language sql security definer as
  $$ insert into app.ran values ('unlisted') returning '{"status": "succeeded"}'::jsonb $$;
create function app.secret(p jsonb) returns jsonb language sql security definer as
  $$ insert into app.ran values ('secret') returning '{"status": "succeeded"}'::jsonb $$;
create function app."Odd ""Name"(p jsonb) returns jsonb language sql as $$ select '{"status": "succeeded"}'::jsonb $$;
revoke all on all functions in schema app from public;
grant usage on schema app to worker_service_user;
grant execute on function app.listed, app.unlisted, app."Odd ""Name" to worker_service_user;
create view app.ended as
  select id, state, split_part(error, E'\n', 1) as error, payload ->> 'db_function' as named
    from worker.tasks order by id;

-- A grant is enough, and needed.
select worker.enqueue('db_function', jsonb_build_object('db_function', n))
  from unnest(array['app.listed', 'app.unlisted', 'app.secret']) n \g /dev/null
set role worker_service_user;
call worker.process_tasks();
reset role;
select * from app.ended;
select * from app.ran;

-- Strict: in the registry as well. A grant without an entry is not enough, and an
-- entry without a grant neither.
set role worker_admin;
select worker.allow_function('app.listed'), worker.allow_function(' APP . Listed '),
       worker.allow_function('app.secret'), worker.allow_function('app."Odd ""Name"'),
       worker.require_allowed(true);
select function_name, allowed_by = session_user as by_me from worker.allowed_function order by 1;
select worker.allow_function('app.missing');
select worker.allow_function('listed');
select worker.allow_function(null);
select worker.allow_function('app.listed(jsonb)');
insert into worker.allowed_function values ('app.unlisted', 'me', now());
reset role;
truncate app.ran;
select worker.enqueue('db_function', jsonb_build_object('db_function', n))
  from unnest(array['app.listed', 'app.unlisted', 'app.secret', 'APP.UNLISTED', 'app."Odd ""Name"']) n \g /dev/null
set role worker_service_user;
call worker.process_tasks();
select internal.run_function('app.unlisted', '{}');
select internal.why_not_run('app.unlisted'), internal.why_not_run('app.listed');
reset role;
select * from app.ended where id > 3;
select * from app.ran;

-- So for the handlers of channels, and before anything is sent.
select worker.enqueue('sms', jsonb_build_object(h, 'app.unlisted'))
  from unnest('{before_handler,success_handler,error_handler}'::text[]) h \g /dev/null
select worker.enqueue('sms', '{"before_handler": "app.listed", "error_handler": "app.listed"}') > 0;
set role worker_service_user;
select worker.channel_begin(lease_id, task_id) from queues.exchange('default', 10, p_lanes => '{2,3}');
reset role;
select state, error from worker.tasks where command = 'sms' order by id;

-- Taken out again, and no longer strict.
set role worker_admin;
select worker.disallow_function('app.listed'), worker.disallow_function('app.listed'),
       worker.disallow_function('nonsense');
set role worker_service_user;
select internal.run_function('app.listed', '{}');
reset role;
set role worker_admin;
select worker.require_allowed(false);
set role worker_service_user;
select internal.run_function('app.listed', '{}');
-- That is for administrators.
select worker.allow_function('app.secret');
select worker.disallow_function('app.secret');
select worker.require_allowed(false);
select * from worker.allowed_function;
reset role;
set role worker_enqueuer;
select worker.allow_function('app.secret');
reset role;

-- The answer of a db_function is its result. One that says it failed is recorded,
-- and what it wrote stays; one that raises fails, and nothing of it does.
create function app.answers(p jsonb) returns jsonb language plpgsql security definer as $$
begin
  insert into app.ran values ('answers ' || (p ->> 'n'));
  if p ? 'raise' then
    raise exception 'no';
  end if;
  return p -> 'answer';
end $$;
truncate app.ran;
select worker.enqueue('db_function', p::jsonb || '{"db_function": "app.answers"}') from unnest(array[
  '{"n": 1, "answer": {"status": "succeeded"}}', '{"n": 2, "answer": {"status": "max_attempts_reached"}}',
  '{"n": 3, "answer": {"success": true}}', '{"n": 4, "answer": {"success": false, "error": "out of luck"}}',
  '{"n": 5, "answer": {"success": true, "validation_failure_message": "wrong id"}}', '{"n": 6, "answer": 7}',
  '{"n": 7}', '{"n": 8, "raise": true}']) p \g /dev/null
select worker.drain();
select payload ->> 'n' as n, state, result, (select string_agg(split_part(e.error_message, E'\n', 1), ',')
         from queues.error e where e.task_id = id) as errors
  from worker.tasks where payload ->> 'db_function' = 'app.answers' order by id;
select * from app.ran;
