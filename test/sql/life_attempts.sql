-- Attempts: failed, given up, put off, interrupted; how long until the next, and what
-- is kept of each.
\set VERBOSITY terse
\pset null '-'
set client_min_messages = warning;
set worker.fake_now = '2030-01-01 12:00:00+00';
create schema app;
create table app.ran (task bigint, at timestamptz);
create procedure app.handle(payload jsonb) language plpgsql as $$
begin
  insert into app.ran values (worker.current_task_id(), worker.now());
  case payload ->> 'how'
    when 'give up' then perform worker.give_up('no such customer');
    when 'snooze' then
      if worker.now() < (payload ->> 'until')::timestamptz then
        perform worker.snooze('90 seconds', 'not open yet');
      end if;
    when 'raise' then
      if payload ? 'detail' then
        raise exception 'later' using errcode = 'PK002', detail = payload ->> 'detail';
      end if;
      raise exception 'later' using errcode = 'PK002';
    when 'fail' then raise exception 'failure number %', (select count(*) from queues.error where task_id = worker.current_task_id()) + 1;
    else null;
  end case;
end $$;
select worker.register_command('run', 'q', 'app.handle', p_max_attempts => 3, p_backoff_initial => '10 s', p_backoff_base => 2);
select worker.register_command('far', 'f', p_kind => 'http', p_url => 'http://127.0.0.1/', p_max_attempts => 2, p_backoff_initial => '1 hour');
update worker.queue_registry set top_concurrency = null where queue = 'f';
create view app.pending as
  select u as task, attempts, failures, crashes, run_at - worker.now() as due_in
    from (select task_ids, attempts, failures, crashes, run_at from queues.ready
          union all select task_ids, attempts, failures, crashes, run_at from queues.timer) p, unnest(task_ids) u order by 1;
create function app.end(p_outcome text, p_delay real default null, p_error text default null) returns table (lease bigint, task bigint, attempt int, refused bigint)
language plpgsql as $$
begin
  select x.lease_id, x.task_id, x.attempt into lease, task, attempt from queues.exchange('f', 1, p_lanes => '{2,3}') x;
  select x.task_id into refused from queues.exchange('f', 0, p_lease_ids => array[lease], p_task_ids => array[task], p_outcomes => array[p_outcome],
    p_errors => array[p_error], p_delays => array[p_delay]) x;
  return next;
end $$;

-- Outside the database. Failed, with the backoff of the command, or with the delay
-- that was asked for.
select worker.enqueue('far') as far \gset
select * from app.end('failed', p_error => 'first');
select task, attempts, failures, due_in between '30 min' and '90 min' as backoff from app.pending;
select worker.cancel(:far);
select worker.enqueue('far') as far \gset
select * from app.end('failed', 7.5, 'again in 7.5 s');
select * from app.pending;
set worker.fake_now = '2030-01-01 12:00:07.5+00';
-- a delay gives no further attempt
select * from app.end('failed', 7.5, 'enough');
select state, attempt, error from worker.tasks where id = :far;
select attempt, error_message from queues.error where task_id = :far order by error_id;
-- a delay of nothing, or less, is none
select worker.enqueue('far') as far \gset
select * from app.end('failed', -1);
select task, due_in between '30 min' and '90 min' as backoff from app.pending;
select worker.cancel(:far);
-- Not again.
select worker.enqueue('far') as far \gset
select * from app.end('fatal', 5, 'HTTP 410');
select state, attempt, error from worker.tasks where id = :far;
select * from app.pending;
-- Put off: any number of times, not a failure; the hand-outs are counted on.
select worker.enqueue('far') as far \gset
select * from app.end('snoozed', 30, 'HTTP 503');
select * from app.pending;
set worker.fake_now = '2030-01-01 12:00:37.5+00';
select * from app.end('snoozed');
select * from app.pending;
set worker.fake_now = '2030-01-01 12:01:37.5+00';
select * from app.end('snoozed', 0);
select * from app.end('failed', 1, 'a failure');
select * from app.pending;
set worker.fake_now = '2030-01-01 12:01:38.5+00';
select * from app.end('snoozed', 0);
select state, attempt, error from worker.tasks where id = :far;
select * from app.end('failed', null, 'the second failure');
select state, attempt, error from worker.tasks where id = :far;
select attempt, outcome, reason from queues.attempt_end where task_id = :far order by attempt;
select attempt, outcome from queues.task_lease where task_id = :far order by attempt;
select attempt, error_message from queues.error where task_id = :far order by error_id;
-- numbers that are no times
select worker.enqueue('far') as far \gset
select task, attempt from app.end('snoozed', 'Infinity');
select due_in from app.pending;
select worker.cancel(:far);
select worker.enqueue('far') as far \gset
select task, attempt from app.end('snoozed', 'NaN');
select due_in from app.pending;
select worker.cancel(:far);
-- More hand-outs than the number holds.
select worker.enqueue('far') as far \gset
update queues.ready set attempts = 32765;
select attempt from app.end('snoozed', 0);
select attempt from app.end('snoozed', 0);
select attempt from app.end('snoozed', 0);
select attempt from app.end('completed');
select state, attempt from worker.tasks where id = :far;

-- Interrupted: a worker that leaves hands back, and one that is lost:
-- no failure is counted.
select worker.register_worker('w') as w \gset
select worker.enqueue('far') as far \gset
select attempt from queues.exchange('f', 1, :w, p_lanes => '{2,3}');
select worker.stop_worker(:w);
select * from app.pending;
select worker.register_worker('w') as w \gset
select attempt from queues.exchange('f', 1, :w, p_lanes => '{2,3}');
select queues.recover_worker(:w, worker.now());
select * from app.pending;
select * from app.end('failed', 0.001);
select * from app.pending;
set worker.fake_now = '2030-01-01 12:01:38.6+00';
select * from app.end('failed');
select state, attempt from worker.tasks where id = :far;
select attempt, outcome from queues.attempt_end where task_id = :far order by lease_id;

-- The jitter is between half and half as much again, and spread over all of it.
with d as (
  select n, extract(epoch from queues.retry_at(c, n, worker.now()) - worker.now()) / (10 * 2 ^ (n - 1)) as factor
    from worker.command_registry c, generate_series(1, 2) n, generate_series(1, 2000) where c.command = 'run')
select n, bool_and(factor between 0.5 and 1.5) as bounded, min(factor) < 0.55 as short, max(factor) > 1.45 as long,
       avg(factor) between 0.95 and 1.05 as even from d group by n order by n;

-- In SQL: given up, with attempts left.
set worker.fake_now = '2030-01-01 13:00:00+00';
select worker.enqueue('run', '{"how": "give up"}') as run \gset
call worker.process_tasks(p_queue => 'q');
select state, attempt, split_part(error, e'\n', 1) as error from worker.tasks where id = :run;
select attempt, context ->> 'sqlstate' as sqlstate from queues.error where task_id = :run;
-- Put off: what the handler did is undone.
select worker.enqueue('run', '{"how": "snooze", "until": "2030-01-01 13:03:00+00"}') as run \gset
call worker.process_tasks(p_queue => 'q');
select state, attempt, error from worker.tasks where id = :run;
select due_in, failures from app.pending;
select worker.explain_task(:run);
set worker.fake_now = '2030-01-01 13:01:30+00';
call worker.process_tasks(p_queue => 'q');
set worker.fake_now = '2030-01-01 13:03:00+00';
call worker.process_tasks(p_queue => 'q');
select state, attempt, error from worker.tasks where id = :run;
select * from app.ran;
select attempt, ended_at, outcome, reason from queues.attempt_end where task_id = :run order by attempt;
select count(*) as errors from queues.error where task_id = :run;
-- with the bare SQLSTATE: seconds in DETAIL, else a minute
select worker.enqueue('run', '{"how": "raise", "detail": " 2.5 "}') is not null, worker.enqueue('run', '{"how": "raise", "detail": "soon"}') is not null,
       worker.enqueue('run', '{"how": "raise", "detail": "-5"}') is not null, worker.enqueue('run', '{"how": "raise"}') is not null,
       worker.enqueue('run', '{"how": "raise", "detail": "99999999999"}') is not null;
call worker.process_tasks(p_queue => 'q');
select array_agg(due_in order by task) from app.pending;
select worker.cancel_all('q');
select worker.snooze(null);
select worker.snooze('-1 s');
select worker.snooze('2 years');
-- Plain failures: three attempts, each with its error.
select worker.enqueue('run', '{"how": "fail"}') as run \gset
call worker.process_tasks(p_queue => 'q');
set worker.fake_now = '2030-01-01 13:04:00+00';
call worker.process_tasks(p_queue => 'q');
set worker.fake_now = '2030-01-01 13:05:00+00';
call worker.process_tasks(p_queue => 'q');
set worker.fake_now = '2030-01-01 13:06:00+00';
call worker.process_tasks(p_queue => 'q');
select state, attempt, split_part(error, e'\n', 1) as error from worker.tasks where id = :run;
select attempt, created_at, split_part(error_message, e'\n', 1) as error, context ->> 'sqlstate' as sqlstate from queues.error where task_id = :run order by error_id;

-- In a group, one that is put off takes nothing from the others.
update worker.command_registry set group_commit = 10 where command = 'run';
select count(worker.enqueue('run', case i when 3 then '{"how": "raise"}' when 4 then '{"how": "give up"}' else '{}' end::jsonb)) from generate_series(1, 5) i;
truncate app.ran;
call worker.process_tasks(p_queue => 'q');
select state, count(*) from worker.tasks where id > :run and command = 'run' group by 1 order by 1;
select count(*) from app.ran;

-- A parent elsewhere that is put off or fails: what it had spawned in that attempt and
-- nobody has begun is canceled; what it was given before stays. A child that failed in
-- an attempt that is over is no failure of the next.
select worker.register_command('kid', 'f', 'app.handle');
select worker.enqueue('far') as far \gset
select worker.spawn_task('kid', '{"of": "before"}', :far, 5) is not null as spawned;
create function app.spawn_and_end(p_outcome text) returns text language plpgsql as $$
declare v record;
begin
  select * into v from queues.exchange('f', 1, p_lanes => '{2,3}');
  perform worker.spawn_task('kid', '{"how": "fail"}', v.task_id);
  call worker.process_tasks(1, p_queue => 'f', p_mode => 'child', p_max_priority => 0);
  perform worker.spawn_task('kid', jsonb_build_object('of', p_outcome), v.task_id, 1);
  perform queues.exchange('f', 0, p_lease_ids => array[v.lease_id], p_task_ids => array[v.task_id], p_outcomes => array[p_outcome], p_delays => '{1}');
  return (select string_agg(payload::text || ' ' || state, ', ' order by id) from worker.tasks where parent_id = v.task_id);
end $$;
set worker.fake_now = '2030-01-01 13:07:00+00';
select app.spawn_and_end('snoozed');
set worker.fake_now = '2030-01-01 13:07:02+00';
select app.spawn_and_end('failed');
set worker.fake_now = '2030-01-01 13:07:04+00';
select task, attempt from app.end('completed');
select worker.drain('f');
select state, attempt from worker.tasks where id = :far;
-- What was given to the parent before is held against it whenever it fails.
set worker.fake_now = '2030-01-01 13:08:00+00';
select worker.enqueue('far') as far \gset
select worker.spawn_task('kid', '{"how": "fail"}', :far) is not null as spawned;
set worker.fake_now = '2030-01-01 13:08:01+00';
select task, attempt from app.end('failed', 1);
select worker.drain('f');
set worker.fake_now = '2030-01-01 13:08:02+00';
select task, attempt from app.end('completed');
select state, attempt, error from worker.tasks where id = :far;
