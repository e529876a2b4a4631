-- Rates, windows, pauses: limits of when a task may start.
\set VERBOSITY terse
\pset null '-'
set time zone 'UTC';
set worker.fake_now = '2030-01-01 12:00:00+00';
create schema app;
create procedure app.run(payload jsonb) language sql as '';
create function app.clock(p_by interval) returns timestamptz language sql as $$
  select set_config('worker.fake_now', (worker.now() + p_by)::text, false)::timestamptz
$$;

-- Ten in a second are one every 100 ms, over all who ask.
select worker.register_command('rated', p_kind => 'http', p_url => 'http://x/', p_rate_limit => 10);
select count(*) from worker.enqueue_many('rated', array_fill('{}'::jsonb, '{150}'));
select task_id from queues.exchange('default', 50);
select count(*) from queues.exchange('default', 50);
select worker.explain_task(2);
-- Who sleeps until the next timer wakes up in time.
select run_at, task_ids from queues.timer;
select app.clock('99 ms'), count(*) from queues.exchange('default', 50);
select app.clock('1 ms');
select task_id from queues.exchange('default', 50);
select count(*) from queues.timer;
-- A while without anybody is not made up for, but for a moment.
select app.clock('10 min');
select task_id from queues.exchange('default', 50);
create table app.starts (at timestamptz, task_id bigint);
do $$ begin
  for i in 1..250 loop
    perform set_config('worker.fake_now', (worker.now() + make_interval(secs => 0.02))::text, false);
    insert into app.starts select worker.now(), e.task_id from queues.exchange('default', 50) e;
  end loop;
end $$;
select count(*), max((select count(*) from app.starts n where n.at > s.at - interval '1 s' and n.at <= s.at)) as most_in_a_second
  from app.starts s;
-- What is not started costs nothing; a failed claim costs its starts only.
select app.clock('1 min');
begin;
select count(*) from queues.exchange('default', 50);
rollback;
select count(*) from queues.exchange('default', 50);
-- A clock that was far ahead is forgotten.
set worker.fake_now = '2025-01-01 12:00:00+00';
select count(*) from queues.exchange('default', 50, null, null), queues.promote_timers(1, '-infinity', '2031-01-01', 9);
update worker.command_registry set rate_limit = 1000 where command = 'rated';
select app.clock('1 min');
select count(*) from queues.exchange('default', 500);
update worker.command_registry set rate_limit = null where command = 'rated';
select count(*) > 0 as all_of_them from queues.exchange('default', 500);
select count(*) from queues.exchange('default', 0, p_done => array(select lease_id from queues.lease_open));

-- Per group key: each key has its own pace, and nobody waits for another's.
set worker.fake_now = '2030-01-02 12:00:00+00';
select worker.register_command('paced', p_kind => 'http', p_url => 'http://x/', p_group_rate_limit => 60, p_rate_period => '1 min');
select count(worker.enqueue('paced', p_group_key => k)) from unnest('{a,b,c}'::text[]) k, generate_series(1, 4) i;
select min(id) as first from worker.tasks where command = 'paced' \gset
select task_id - :first as task, group_key from queues.exchange('default', 50);
select count(*) from queues.exchange('default', 50);
select gate, count(*), count(*) filter (where run_at < queues.never()) as next, min(run_at) from queues.timer where gate is not null group by 1 order by 1;
select worker.explain_task(:first + 1);
truncate app.starts;
do $$ begin
  for i in 1..40 loop
    perform set_config('worker.fake_now', (worker.now() + interval '100 ms')::text, false);
    insert into app.starts select worker.now(), e.task_id from queues.exchange('default', 50) e;
  end loop;
end $$;
select t.group_key, string_agg(to_char(s.at, 'SS.MS'), ' ' order by s.at) from app.starts s join queues.task t using (task_id) group by 1 order by 1;
select count(*) from queues.timer where gate is not null;
select count(*) from queues.exchange('default', 0, p_done => array(select lease_id from queues.lease_open));

-- Hours. In the evening, over midnight, in a zone of its own.
select at, queues.in_window('22:00', '06:00', 'Europe/Berlin', at) as inside,
       queues.window_opens('22:00', '06:00', 'Europe/Berlin', at) as opens
  from unnest('{2030-01-01 20:59:59+00,2030-01-01 21:00:00+00,2030-01-02 04:59:59+00,2030-01-02 05:00:00+00,2030-07-01 19:59:59+00,2030-07-01 20:00:00+00}'::timestamptz[]) at;
-- The night on which 02:30 does not exist, and the one on which it comes twice.
select at, queues.in_window('02:30', '05:00', 'Europe/Berlin', at) as inside,
       queues.window_opens('02:30', '05:00', 'Europe/Berlin', at) as opens
  from unnest('{2030-03-30 22:00:00+00,2030-03-31 00:59:59+00,2030-03-31 01:00:00+00,2030-10-26 22:00:00+00,2030-10-27 00:29:59+00,2030-10-27 00:30:00+00,2030-10-27 01:10:00+00}'::timestamptz[]) at;
-- All hours of that night for a window within the missing hour: the next day.
select queues.window_opens('02:10', '02:50', 'Europe/Berlin', '2030-03-31 00:00:00+00');

set worker.fake_now = '2030-01-03 12:00:00+00';
select worker.register_command('nightly', p_kind => 'http', p_url => 'http://x/', p_window_start => '22:00', p_window_end => '06:00', p_window_zone => 'Mars/Olympus');
select worker.register_command('nightly', p_kind => 'http', p_url => 'http://x/', p_window_start => '22:00', p_window_end => '06:00', p_window_zone => 'Europe/Berlin');
select worker.enqueue('nightly') as night \gset
select worker.enqueue('email') as mail \gset
select task_type from queues.exchange('default', 10);
select worker.explain_task(:night);
select run_at, task_ids from queues.timer;
set worker.fake_now = '2030-01-03 21:00:00+00';
select task_type from queues.exchange('default', 10);
-- What has begun may end when it likes.
set worker.fake_now = '2030-01-04 09:00:00+00';
select count(*) from queues.exchange('default', 0, p_done => array(select lease_id from queues.lease_open));
update worker.command_registry set window_start = null, window_end = null where command = 'nightly';
select worker.enqueue('nightly') > 0;
select task_type from queues.exchange('default', 10);

-- A command that is paused, for good or for a time.
update worker.command_registry set paused = true where command = 'sms';
select worker.enqueue('sms') as sms \gset
select worker.enqueue('email') > 0;
select task_type from queues.exchange('default', 10);
select worker.explain_task(:sms);
update worker.command_registry set paused_until = '2030-01-04 10:00:00+00' where command = 'sms';
select count(*) from queues.exchange('default', 10);
select worker.explain_task(:sms);
select run_at, task_ids from queues.timer;
set worker.fake_now = '2030-01-04 10:00:00+00';
select task_type from queues.exchange('default', 10);
select worker.enqueue('sms') as sms \gset
update worker.command_registry set paused_until = null where command = 'sms';
select count(*) from queues.exchange('default', 10);
update worker.command_registry set paused = false where command = 'sms';
select task_type from queues.exchange('default', 10);
