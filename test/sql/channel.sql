-- What surrounds a provider call: worker.channel_begin, _succeeded, _failed and
-- _finish, as the daemon calls them and with no more rights than it has.
\set VERBOSITY terse
\pset null '-'
set client_min_messages = warning;
set worker.fake_now = '2030-01-01 12:00:00+00';
create schema app;
create table app.fact (n int primary key, what text, detail jsonb);
create table app.broken (what text);
create function app.before(p jsonb) returns jsonb language sql security definer as $$
  select coalesce(p -> 'answer', jsonb_build_object('status', 'succeeded', 'payload',
           jsonb_build_object('to_address', 'n' || (p ->> 'n') || '@example.org'))) $$;
create function app.before_raises(p jsonb) returns jsonb language plpgsql security definer as $$
begin
  insert into app.fact values (-1, 'must not remain');
  raise exception 'no database today';
end $$;
create function app.success(p jsonb) returns jsonb language plpgsql security definer as $$
begin
  insert into app.fact values ((p #>> '{original_payload,n}')::int, 'sent', p -> 'worker_payload');
  if exists (select from app.broken where what = 'success') then
    raise exception 'success handler is broken';
  end if;
  return coalesce(p #> '{original_payload,success_answer}', '{"status": "succeeded"}');
end $$;
create function app.failure(p jsonb) returns jsonb language plpgsql security definer as $$
begin
  insert into app.fact values ((p #>> '{original_payload,n}')::int, 'failed', p -> 'error');
  if exists (select from app.broken where what = 'error') then
    raise exception 'error handler is broken';
  end if;
  return '{"success": true}';
end $$;
create function app.secret(p jsonb) returns jsonb language sql as 'select p';
create function app.takes_role(p jsonb) returns jsonb language plpgsql as $$
begin
  perform set_config('role', 'none', false);
  return '{"status": "succeeded", "payload": {"who": "me"}}';
end $$;
revoke all on all functions in schema app from public;
grant usage on schema app to worker_service_user;
grant execute on function app.before, app.before_raises, app.success, app.failure, app.takes_role
  to worker_service_user;

-- enqueue(n, more): an e-mail with the usual handlers. hold(): the next of the
-- tasks that no SQL runs, as a worker takes it.
create function app.enqueue(n int, more jsonb default '{}') returns void language sql as $$
  select worker.enqueue('email', jsonb_strip_nulls(jsonb_build_object('n', n,
    'before_handler', 'app.before', 'success_handler', 'app.success',
    'error_handler', 'app.failure') || more)) $$;
grant execute on function app.enqueue to worker_service_user;
select set_config('app.lease', '', false), set_config('app.task', '', false) \g /dev/null
create function app.hold(i int default 0, out n int, out attempt int) language plpgsql as $$
declare
  v_got record;
begin
  select * into v_got from queues.exchange('default', 1, p_lanes => '{2,3}') where event = 'claimed';
  perform set_config('app.lease', coalesce(v_got.lease_id::text, '0'), false),
          set_config('app.task', coalesce(v_got.task_id::text, '0'), false);
  n := v_got.payload ->> 'n';
  attempt := v_got.attempt;
end $$;
create function app.lease() returns bigint language sql as $$ select current_setting('app.lease')::bigint $$;
create function app.task() returns bigint language sql as $$ select current_setting('app.task')::bigint $$;
create view app.last as
  select t.payload ->> 'n' as n, t.state, t.attempt, split_part(t.error, E'\n', 1) as error,
         t.result, f.what, f.detail
    from worker.tasks t left join app.fact f on f.n::text = t.payload ->> 'n'
   where t.command = 'email' order by t.id desc limit 1;
grant execute on function app.hold, app.lease, app.task to worker_service_user;

-- Before, provider, success.
select app.enqueue(1);
set role worker_service_user;
select * from app.hold();
select worker.channel_begin(app.lease(), app.task());
select worker.channel_succeeded(app.lease(), app.task(), '{"id": "abc"}', 12.5);
reset role;
select * from app.last;
select duration_ms from worker.tasks where payload ->> 'n' = '1';
-- The end is there once: a second answer, and one under another lease, is too late.
set role worker_service_user;
select worker.channel_succeeded(app.lease(), app.task(), '{}'),
       worker.channel_failed(app.lease(), app.task(), 'late'),
       worker.channel_begin(app.lease(), app.task()),
       worker.channel_finish(app.lease(), app.task()),
       worker.channel_begin(999, 999), worker.channel_begin(null, null);
reset role;
select * from app.last;

-- Without handlers the payload is the provider's, and only the task ends.
select worker.enqueue('email', '{"to_address": "a@example.org"}') > 0;
set role worker_service_user;
select * from app.hold();
select worker.channel_begin(app.lease(), app.task());
select worker.channel_failed(app.lease(), app.task(), 'connection refused');
reset role;
select * from app.last;

-- What a before handler may answer.
select app.enqueue(10 + i::int, jsonb_build_object('answer', a::jsonb)) from unnest(array[
  '{"success": true, "payload": {"a": 1}}',
  '{"success": true, "error": "", "validation_failure_message": "", "payload": {"b": 1}}',
  '{"success": true}',
  '{"success": false, "error": "out of paper"}',
  '{"success": false}',
  '{"success": false, "error": "x", "validation_failure_message": "no such address"}',
  '{"success": true, "validation_failure_message": "odd but final"}',
  '{"status": "attempt_not_found"}',
  '{"status": null}',
  '{"status": "succeeded", "payload": [1]}',
  '{"payload": {"c": 1}}', '[]', '"succeeded"', '7']) with ordinality u(a, i) \g /dev/null
set role worker_service_user;
select h.n, worker.channel_begin(app.lease(), app.task()), worker.channel_succeeded(app.lease(), app.task())
  from generate_series(1, 14) i, app.hold(i) h;
reset role;
select f.n, t.state, f.what, f.detail, t.error from app.fact f
  join worker.tasks t on t.payload ->> 'n' = f.n::text where f.n > 10 order by 1;

-- The queue tries again first; the error handler is for the last time.
update worker.command_registry set max_attempts = 3, backoff_initial = '10 s' where command = 'email';
select app.enqueue(30);
select app.enqueue(31, '{"before_handler": "app.before_raises"}');
set role worker_service_user;
select * from app.hold();
select worker.channel_begin(app.lease(), app.task()) -> 'do';
select worker.channel_failed(app.lease(), app.task(), '451 try later');
select * from app.hold();
select worker.channel_begin(app.lease(), app.task());
reset role;
select n, what from app.fact where n < 0 or n between 30 and 31;
set worker.fake_now = '2030-01-01 12:00:20+00';
set role worker_service_user;
select h.attempt, worker.channel_failed(app.lease(), app.task(), '451 again')
  from generate_series(1, 2) i, app.hold(i) h;
reset role;
set worker.fake_now = '2030-01-01 12:01:20+00';
set role worker_service_user;
select h.attempt, worker.channel_failed(app.lease(), app.task(), '451 for the last time')
  from generate_series(1, 2) i, app.hold(i) h;
select * from app.hold();
reset role;
select * from app.fact where n < 0 or n between 30 and 31 order by n;
select payload ->> 'n' as n, state, attempt, error from worker.tasks where payload ->> 'n' in ('30', '31')
 order by id;
-- Final is final.
select app.enqueue(32);
set role worker_service_user;
select h.*, worker.channel_failed(app.lease(), app.task(), '550 no such user', true)
  from app.hold() h;
reset role;
select * from app.last;
update worker.command_registry set max_attempts = 1 where command = 'email';

-- A success handler that fails: what the provider said is kept, the fact is not
-- lost, and the provider is not called again.
insert into app.broken values ('success');
select app.enqueue(40);
set role worker_service_user;
select * from app.hold();
select worker.channel_begin(app.lease(), app.task()) -> 'do';
select worker.channel_succeeded(app.lease(), app.task(), '{"id": "kept"}');
select worker.channel_succeeded(app.lease(), app.task(), '{"id": "kept"}');
reset role;
select * from app.last;
select kind, worker_payload, error from worker.channel_outcome where task_id = app.task() order by outcome_id;
select error_message, context ->> 'handler' as handler, context ->> 'sqlstate' as sqlstate
  from queues.error where task_id = app.task();
set worker.fake_now = '2030-01-01 12:02:00+00';
set role worker_service_user;
select * from app.hold();
select worker.channel_begin(app.lease(), app.task());
select worker.channel_finish(app.lease(), app.task());
reset role;
delete from app.broken;
set worker.fake_now = '2030-01-01 12:03:00+00';
set role worker_service_user;
select * from app.hold();
select worker.channel_begin(app.lease(), app.task());
select worker.channel_finish(app.lease(), app.task());
reset role;
select * from app.last;
select kind, worker_payload, error from worker.channel_outcome where task_id = app.task() order by outcome_id;
-- So with an error handler. It is tried for longer than max_attempts, but not for ever.
insert into app.broken values ('error');
select app.enqueue(41);
set role worker_service_user;
select * from app.hold();
select worker.channel_failed(app.lease(), app.task(), '550 no');
reset role;
create procedure app.hours(p_n int) language plpgsql as $$
begin
  for i in 1..p_n loop
    perform set_config('worker.fake_now', (worker.now() + interval '2 hours')::text, false);
    set local role worker_service_user;
    perform app.hold();
    exit when app.task() = 0;
    perform worker.channel_finish(app.lease(), app.task());
    reset role;
  end loop;
end $$;
call app.hours(98);
select * from app.last;
call app.hours(2);
select * from app.last;
select kind, count(*) from worker.channel_outcome where task_id = (select max(id) from worker.tasks)
 group by kind order by kind;
delete from app.broken;

-- A handler that ends the session each time is left for later, by who has noticed.
select app.enqueue(45);
set role worker_service_user;
select * from app.hold();
select worker.channel_postpone(app.lease(), app.task(), null, null, null);
select worker.channel_postpone(app.lease(), app.task(), true, '{"id": "kept"}', null);
select worker.channel_postpone(app.lease(), app.task(), true, '{"id": "kept"}', null);
reset role;
select * from app.last;
call app.hours(1);
select * from app.last;

-- A handler that says no is noted; there is nothing to be gained by trying again.
select app.enqueue(42, '{"success_answer": {"status": "attempt_not_found"}}');
select app.enqueue(43, '{"success_answer": {"success": false, "error": "not today"}}');
select app.enqueue(44, '{"success_answer": [1]}');
set role worker_service_user;
select h.n, worker.channel_succeeded(app.lease(), app.task()) from generate_series(1, 3) i, app.hold(i) h;
reset role;
select t.payload ->> 'n' as n, t.state, e.error_message from worker.tasks t
  left join queues.error e on e.task_id = t.id where t.payload ->> 'n' in ('42', '43', '44') order by t.id;
select worker.cancel(id) from worker.tasks where payload ->> 'n' = '43';

-- Handlers that cannot run are found before anything is sent.
select app.enqueue(50 + i::int, m::jsonb) from unnest(array[
  '{"before_handler": "app.missing"}', '{"success_handler": "app.secret"}',
  '{"success_handler": "drop table app.fact"}', '{"error_handler": "app.missing"}',
  '{"error_handler": 7}', '{"before_handler": {"a": 1}}', '{"success_handler": "pg_catalog.jsonb_typeof"}',
  '{"before_handler": "app.enqueue"}']) with ordinality u(m, i) \g /dev/null
set role worker_service_user;
select h.n, worker.channel_begin(app.lease(), app.task()) from generate_series(1, 8) i, app.hold(i) h;
reset role;
select t.payload ->> 'n' as n, t.state, t.error, f.detail from worker.tasks t
  left join app.fact f on f.n::text = t.payload ->> 'n'
 where (t.payload ->> 'n')::int between 51 and 58 order by t.id;

-- A canceled one is not sent. One that was sent is completed anyway.
select app.enqueue(60);
select app.enqueue(61);
select * from app.hold();
select worker.cancel(app.task(), 'changed my mind');
set role worker_service_user;
select worker.channel_begin(app.lease(), app.task());
select * from app.hold();
select worker.channel_begin(app.lease(), app.task()) -> 'do';
reset role;
select worker.cancel(app.task());
set role worker_service_user;
select worker.channel_succeeded(app.lease(), app.task());
reset role;
select payload ->> 'n' as n, state from worker.tasks where payload ->> 'n' in ('60', '61') order by id;

-- Tasks of one lease end one by one, and do not wait for each other.
select app.enqueue(70 + i) from generate_series(1, 3) i \g /dev/null
select lease_id as lease, min(task_id) as one from queues.exchange('default', 3, p_lanes => '{2,3}')
 group by lease_id \gset
select worker.channel_begin(:lease, :one + 1) -> 'do', worker.channel_succeeded(:lease, :one + 1),
       worker.channel_failed(:lease, :one, 'no'), worker.channel_begin(:lease, :one + 2) -> 'do';
select payload ->> 'n' as n, state from worker.tasks where (payload ->> 'n')::int > 70 order by id;
-- A lease that is over: nothing is recorded, nobody's handler runs.
set worker.fake_now = '2031-01-01 12:00:00+00';
select (queues.dequeue_next_available_task()).payload ->> 'n' as n;
select worker.channel_succeeded(:lease, :one + 2), worker.channel_begin(:lease, :one + 2);
select count(*) from app.fact where n = 73;

-- What a handler leaves in the session: not a role.
select app.enqueue(80, '{"before_handler": "app.takes_role"}');
set role worker_service_user;
select * from app.hold();
select worker.channel_begin(app.lease(), app.task()), current_user;
reset role;
-- The handler is told which task it is for, and only then.
create function app.which(p jsonb) returns jsonb language sql security definer as $$
  select jsonb_build_object('status', 'succeeded', 'payload',
           jsonb_build_object('same', worker.current_task_id() = app.task())) $$;
grant execute on function app.which to worker_service_user;
select app.enqueue(81, '{"before_handler": "app.which"}');
set role worker_service_user;
select * from app.hold();
select worker.channel_begin(app.lease(), app.task()), worker.current_task_id();
reset role;
-- Nobody else may.
set role worker_enqueuer;
select worker.channel_begin(1, 1);
reset role;

-- What was kept of an answer goes with its task.
set worker.fake_now = '2040-01-01 12:00:00+00';
select count(*) > 100 as kept from worker.channel_outcome;
select queues.remove_expired(10000) > 10 as removed;
select count(*) as kept from worker.channel_outcome;
