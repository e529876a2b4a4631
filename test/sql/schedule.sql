-- Schedules: made, changed, fired, missed, overlapped. Time is worker.fake_now.
\set VERBOSITY terse
set timezone = 'UTC';
set client_min_messages = warning;
create schema app;
create procedure app.work(payload jsonb) language sql as '';
select worker.register_command('work', 'app', 'app.work');
update worker.queue_registry set top_concurrency = null where queue = 'app';
set client_min_messages = notice;
-- What was enqueued since the last look, and by which fire.
create temp table seen (id bigint);
create function pg_temp.made() returns table (n bigint, schedule text, fire_at text, scheduled_at text)
language sql as $$
  with new as (insert into seen select t.task_id from queues.task t
                where t.task_id not in (select id from seen) returning id)
  select row_number() over (order by t.task_id), t.context ->> 'schedule',
         to_char((t.context ->> 'fire_at')::timestamptz, 'DD HH24:MI:SS'),
         to_char(t.scheduled_at, 'DD HH24:MI:SS')
    from queues.task t join new on new.id = t.task_id order by 1
$$;
create function pg_temp.fires(text) returns table (revision int, fire_at timestamptz, outcome text, has_task boolean)
language sql as $$
  select f.revision, f.fire_at, f.outcome, f.task_id is not null
    from worker.schedule_fire f join worker.schedule_registry s using (schedule_id)
   where s.name = $1 order by 1, 2
$$;

-- Both forms; the second by name, too.
set worker.fake_now = '2030-01-01 12:00:30.5+00';
select worker.schedule('cron', '*/5 * * * *', 'work', '{"a": 1}');
select worker.schedule('interval', interval '90 seconds', 'work');
select name, cron, every, time_zone, command, payload, missed, missed_window, overlap, jitter, enabled, next_at
  from worker.schedules order by name;
select name, t from worker.schedules, unnest(next_times) t order by name, t;

-- Not before its time, then once, also when asked again.
select worker.fire_schedules();
set worker.fake_now = '2030-01-01 12:02:00+00';
select worker.fire_schedules(), worker.fire_schedules();
set worker.fake_now = '2030-01-01 12:05:00.2+00';
select queues.maintain() is not null;
select worker.fire_schedules();
select * from pg_temp.made();
select * from pg_temp.fires('interval');
select name, next_at, last_fire_at, last_outcome, last_task_id is not null as task from worker.schedules order by name;
-- The tasks run as any other.
call worker.process_tasks(p_queue => 'app');
select payload, state, context from worker.tasks where command = 'work' order by id;
select worker.unschedule('interval'), worker.unschedule('interval');

-- Sub-minute, on the second.
select worker.schedule('quick', interval '10 seconds', 'work');
set worker.fake_now = '2030-01-01 12:05:30.9+00';
select worker.fire_schedules();
select * from pg_temp.made();
select worker.unschedule('quick');

-- Days and months of the calendar, in the time zone.
set worker.fake_now = '2030-01-31 08:00:00-05';
select worker.schedule('month', interval '1 month', 'work', p_time_zone => 'America/New_York');
select t at time zone 'America/New_York' as local, t from worker.schedules, unnest(next_times) t where name = 'month';
select worker.schedule('two', interval '2 days', 'work', p_time_zone => 'America/New_York');
set worker.fake_now = '2030-03-08 08:00:00-05';
select t at time zone 'America/New_York' as local, t from worker.schedules, unnest(next_times) t where name = 'two';
set worker.fake_now = '2050-03-08 08:00:00-05';
select next_times[1] from worker.schedules where name = 'month';
select worker.unschedule('month'), worker.unschedule('two'), worker.unschedule('cron');

-- ---------------------------------------------------------------- missed times
set worker.fake_now = '2030-02-01 00:00:00+00';
select worker.schedule('skip', '@hourly', 'work', p_missed => 'skip'),
       worker.schedule('one', '@hourly', 'work', p_missed => 'one'),
       worker.schedule('all', '@hourly', 'work', p_missed => 'all', p_missed_window => '3 hours');
-- On time is up to a minute late.
set worker.fake_now = '2030-02-01 01:01:00+00';
select worker.fire_schedules();
select * from pg_temp.made();
-- Down for five hours.
set worker.fake_now = '2030-02-01 06:30:00+00';
select worker.fire_schedules(), worker.fire_schedules();
select * from pg_temp.made();
select * from pg_temp.fires('skip');
select * from pg_temp.fires('one');
select * from pg_temp.fires('all');
-- Back at the very time: that fire is the one.
set worker.fake_now = '2030-02-01 09:00:10+00';
select worker.fire_schedules();
select * from pg_temp.made();
-- Down for longer than the window: nothing to make up for.
select worker.schedule('one', '@hourly', 'work', p_missed => 'one', p_missed_window => '10 minutes');
set worker.fake_now = '2030-02-01 12:30:00+00';
select worker.fire_schedules();
select * from pg_temp.made();
select name, next_at, last_fire_at, last_outcome from worker.schedules order by 1;
select worker.unschedule('skip'), worker.unschedule('one'), worker.unschedule('all');
-- A year of every minute: found by halves, not one by one; and all of a window
-- in portions.
select worker.schedule('one', '* * * * *', 'work'),
       worker.schedule('all', '* * * * *', 'work', p_missed => 'all', p_missed_window => '5 hours');
set worker.fake_now = '2031-02-01 12:30:30+00';
select worker.fire_schedules(), worker.fire_schedules(), worker.fire_schedules(),
       worker.fire_schedules(), worker.fire_schedules();
select schedule, count(*), count(distinct fire_at), min(fire_at), max(fire_at) from pg_temp.made() group by 1 order by 1;
select worker.unschedule('one'), worker.unschedule('all');

-- -------------------------------------------------------------------- overlap
set worker.fake_now = '2030-03-01 00:00:00+00';
select worker.schedule('slow', '* * * * *', 'work', p_overlap => 'skip');
set worker.fake_now = '2030-03-01 00:01:00+00';
select worker.fire_schedules();
set worker.fake_now = '2030-03-01 00:02:00+00';
select worker.fire_schedules();
set worker.fake_now = '2030-03-01 00:03:00+00';
select worker.fire_schedules();
select * from pg_temp.made();
select worker.drain('app') > 0 as ran;
set worker.fake_now = '2030-03-01 00:04:00+00';
select worker.fire_schedules();
-- A new revision knows of the task of the old one.
select worker.schedule('slow', '*/2 * * * *', 'work', p_overlap => 'skip');
set worker.fake_now = '2030-03-01 00:06:00+00';
select worker.fire_schedules();
select * from pg_temp.made();
select * from pg_temp.fires('slow');
select worker.unschedule('slow');

-- --------------------------------------------------------------------- jitter
set worker.fake_now = '2030-04-01 00:00:00+00';
select worker.schedule('spread', '* * * * *', 'work', p_jitter => '1 hour', p_missed => 'all');
set worker.fake_now = '2030-04-01 01:00:00+00';
select worker.fire_schedules();
select count(*), count(distinct t.scheduled_at) > 50 as differ,
       bool_and(t.scheduled_at between (t.context ->> 'fire_at')::timestamptz
                and (t.context ->> 'fire_at')::timestamptz + interval '1 hour') as within,
       max(t.scheduled_at - (t.context ->> 'fire_at')::timestamptz) > interval '40 minutes' as wide
  from queues.task t where t.context ->> 'schedule' = 'spread';
-- The same for the same time, whoever makes it.
create temp table spread as select context ->> 'fire_at' as at, scheduled_at from queues.task where context ->> 'schedule' = 'spread';
select worker.unschedule('spread');
set worker.fake_now = '2030-04-01 00:00:00+00';
select worker.schedule('spread', '* * * * *', 'work', p_jitter => '1 hour', p_missed => 'all');
set worker.fake_now = '2030-04-01 01:00:00+00';
select worker.fire_schedules();
select count(*) as at_other_times from queues.task t join spread s on s.at = t.context ->> 'fire_at'
 where t.context ->> 'schedule' = 'spread' and t.scheduled_at <> s.scheduled_at;
select worker.unschedule('spread');
select count(*) > 0 as made from pg_temp.made();

-- ------------------------------------------------- change, disable, run now
set worker.fake_now = '2030-05-01 00:00:30+00';
select worker.schedule('n', interval '10 minutes', 'work', '{"v": 1}', p_priority => 7);
set worker.fake_now = '2030-05-01 00:05:30+00';
-- The same times: they stay, whatever else is new.
select worker.schedule('n', interval '10 minutes', 'work', '{"v": 2}', p_priority => 8);
-- Other times: from here on.
select worker.schedule('n', interval '20 minutes', 'work', '{"v": 2}', p_priority => 8);
select worker.disable_schedule('n'), worker.disable_schedule('n');
select enabled, next_at, next_times from worker.schedules;
set worker.fake_now = '2030-05-01 03:00:30+00';
select worker.fire_schedules();
-- A deployment does not enable it.
select worker.schedule('n', interval '30 minutes', 'work', '{"v": 3}', p_priority => 8);
select worker.run_schedule_now('n') is not null as id;
select worker.enable_schedule('n'), worker.enable_schedule('n');
select enabled, next_at from worker.schedules;
select worker.fire_schedules();
set worker.fake_now = '2030-05-01 03:30:30+00';
select worker.fire_schedules();
select * from pg_temp.made();
select payload, priority from queues.task order by task_id desc limit 2;
select revision from worker.schedule_registry;

-- A schedule that cannot be fired says so, and does not stop the others.
select worker.schedule('other', interval '30 minutes', 'work');
update worker.schedule_registry set payload = jsonb_build_object('x', repeat('x', 5000)) where name = 'n';
set worker.max_payload_bytes = 1000;
set worker.fake_now = '2030-05-01 04:00:31+00';
select worker.fire_schedules();
reset worker.max_payload_bytes;
select name, next_at, last_fire_at, last_outcome, last_error from worker.schedules order by name;
select * from pg_temp.made();
-- A command with schedules stays.
delete from worker.command_registry where command = 'work';
select worker.unschedule('n'), worker.unschedule('other');

-- -------------------------------------------------------------------- the floor
-- What is below it is never looked at, so it must never pass a due time: not
-- of a schedule that is made by an earlier clock.
set worker.fake_now = '2040-01-01 00:00:00+00';
select worker.schedule('late', '@hourly', 'work');
select worker.fire_schedules();
select to_timestamp(pg_sequence_last_value('worker.schedule_floor') / 1000.0) between '2039-12-31 23:59:59+00' and '2040-01-01 00:00+00' as raised;
set worker.fake_now = '2035-01-01 00:00:30+00';
select worker.schedule('early', '* * * * *', 'work');
set worker.fake_now = '2035-01-01 00:01:00+00';
select worker.fire_schedules();
select * from pg_temp.made();
-- In a transaction block it is not raised: the lock would stay.
begin;
select pg_sleep(0.003);
set local worker.fake_now = '2035-01-01 00:03:00+00';
select worker.fire_schedules();
select count(*) from pg_locks where locktype = 'advisory' and mode = 'ExclusiveLock' and pid = pg_backend_pid()
  and classid = worker.schedule_floor_key() >> 32;
rollback;
-- A snapshot that stays does not keep it from firing.
begin isolation level repeatable read;
select count(*) from worker.schedule_due;
set local worker.fake_now = '2035-01-01 00:05:00+00';
select worker.fire_schedules();
rollback;
-- The one probe when nothing is due has bounds.
set enable_seqscan = off;
set enable_bitmapscan = off;
explain (costs off) select d.schedule_id from worker.schedule_due d
 where d.due_at >= '2035-01-01' and d.due_at <= '2035-01-02' order by d.due_at limit 100;
reset enable_seqscan;
reset enable_bitmapscan;

-- Old fires go; the newest stays, which knows the last task.
set worker.fake_now = '2035-06-01 00:00:00+00';
select worker.prune_fires(s, worker.now()) from worker.schedule_registry s;
select * from pg_temp.fires('early');
insert into worker.schedule_fire select schedule_id, revision, '2035-05-31', worker.now(), 'missed', null, null, null
  from worker.schedule_registry where name = 'early';
select worker.prune_fires(s, worker.now()) from worker.schedule_registry s;
select * from pg_temp.fires('early');
reset worker.fake_now;

-- -------------------------------------------------------------------- refused
select worker.schedule('x', '5 minutes', 'work');
select worker.schedule('x', '* * * * *', 'nothing');
select worker.schedule('', '* * * * *', 'work');
select worker.schedule('x', null::text, 'work');
select worker.schedule('x', interval '0', 'work');
select worker.schedule('x', null::interval, 'work');
select worker.schedule('x', '* * * * *', 'work', '[]');
select worker.schedule('x', '* * * * *', 'work', p_time_zone => 'Nowhere');
select worker.schedule('x', '* * * * *', 'work', p_missed => 'some');
select worker.schedule('x', '* * * * *', 'work', p_overlap => 'maybe');
select worker.schedule('x', '* * * * *', 'work', p_jitter => '-1 s');
select worker.enable_schedule('x');
select worker.disable_schedule('x');
select worker.run_schedule_now('x');

-- ---------------------------------------------------------------- who may what
set worker.fake_now = '2035-06-01 00:00:00+00';
set role worker_monitor;
select name, next_times[1], last_outcome from worker.schedules order by name;
select worker.cron_times('@yearly', p_count => 1);
select count(*) > 0 as reported from worker.report;
select count(*) > 0 as events from worker.recent_events(10);
select count(*) as progress from worker.progress_of(1);
select worker.wait(1, '0') is not null as ended;
select worker.schedule('mine', '@daily', 'work');
select worker.unschedule('late');
select worker.fire_schedules();
set role worker_enqueuer;
select worker.schedule('mine', '@daily', 'work');
select worker.wait(1, '0') is not null as ended;
select count(*) from worker.schedules;
set role worker_service_user;
select worker.fire_schedules() > 0 as fired;
select worker.report_progress(1, 1, 0.5);
select worker.run_schedule_now('late');
set role worker_admin;
select worker.schedule('mine', '@daily', 'work'), worker.run_schedule_now('mine') > 0 as ran,
       worker.disable_schedule('mine'), worker.enable_schedule('mine'), worker.unschedule('mine');
insert into worker.schedule_registry (name) values ('by hand');
reset role;
