-- Reports and events: what is counted, when, and that it is right.
\set VERBOSITY terse
set timezone = 'UTC';
set client_min_messages = warning;
create schema app;
create procedure app.work(payload jsonb) language plpgsql as $$
begin
  if payload ? 'fail' then
    raise exception 'no luck';
  end if;
end $$;
create procedure app.fan(payload jsonb) language plpgsql as $$
begin
  call worker.spawn('work', payload);
  call worker.spawn('work');
end $$;
select worker.register_command('work', 'sql', 'app.work'), worker.register_command('fan', 'sql', 'app.fan'),
       worker.register_command('again', 'sql', 'app.work', p_max_attempts => 2, p_backoff_initial => '1 minute'),
       worker.register_command('out', 'elsewhere', p_kind => 'native'),
       worker.register_command('out_again', 'elsewhere', p_kind => 'native', p_max_attempts => 3);
update worker.queue_registry set top_concurrency = null;
set client_min_messages = notice;
set worker.fake_now = '2030-01-01 12:00:00+00';
-- What the report says in all, beside what the tables of the queue say.
create view app.truth as
  select q.queue, r.total_succeeded as s, r.total_failed as f, r.total_canceled as c,
         r.total_retries as retries, r.total_recovered as recovered,
         r.total_completed = ended.n and r.total_succeeded = ended.s and r.total_failed = ended.f
         and r.total_retries = tried.again and r.total_recovered = tried.lost as is_right
    from worker.queue_registry q join worker.report('1 day') r using (queue)
   cross join lateral (
     select count(*) as n, count(*) filter (where d.state = 'completed') as s,
            count(*) filter (where d.state = 'failed') as f
       from queues.task_completed d where d.queue_id = q.queue_id) ended
   cross join lateral (
     select count(*) filter (where e.outcome = 'failed') as again,
            count(*) filter (where e.outcome = 'lost') as lost
       from queues.attempt_end e join queues.task t using (task_id)
      where t.queue_id = q.queue_id) tried
   order by 1;

-- Before: what is there to be done.
select from worker.enqueue_many('work', array_fill('{}'::jsonb, '{30}')) \g /dev/null
select from worker.enqueue_many('work', array_fill('{"fail": 1}'::jsonb, '{5}')) \g /dev/null
select worker.enqueue('again', '{"fail": 1}'), worker.enqueue('fan'), worker.enqueue('fan', '{"fail": 1}') \g /dev/null
select worker.enqueue('work', p_scheduled_at => '2031-01-01') as later \gset
select queue, completed, failure_rate, running, waiting, backlog, scheduled, backlog_exact, total_completed from worker.report;

-- ---------------------------------------------------------------- run by SQL
call worker.process_tasks(p_queue => 'sql');
select queue, succeeded, failed, retries, waiting, backlog, scheduled from worker.report where queue = 'sql';
call worker.process_tasks(p_queue => 'sql');
call worker.process_tasks(p_queue => 'sql');
call worker.process_tasks(p_queue => 'sql');
select queue, completed, succeeded, failed, canceled, retries, round(failure_rate::numeric, 3) as failure_rate,
       waiting, backlog, scheduled from worker.report where queue = 'sql';
select * from app.truth where queue = 'sql';
select worker.cancel(:later);
-- One row per lease, not per task.
select count(*) < 20 as few from worker.stat_raw;
-- Undone with the rest.
begin;
select worker.enqueue('work') > 0;
select worker.drain('sql');
select s from app.truth where queue = 'sql';
rollback;
select * from app.truth where queue = 'sql';

-- ------------------------------------------------------------- run elsewhere
select from worker.enqueue_many('out', array_fill('{}'::jsonb, '{20}')) \g /dev/null
select worker.enqueue('out_again') from generate_series(1, 3) \g /dev/null
select worker.register_worker('w') as w \gset
select distinct lease_id as lease from queues.exchange('elsewhere', 10, :w) \gset
select queue, running, backlog from worker.report where queue = 'elsewhere';
-- A whole lease; of the next some tasks, and the rest with the worker lost.
select distinct lease_id as lease2 from queues.exchange('elsewhere', 13, :w, p_done => array[:lease]) \gset
select * from app.truth where queue = 'elsewhere';
select from queues.exchange('elsewhere', 0, :w, p_lease_ids => array_fill(:lease2, '{5}'),
  p_task_ids => (select task_ids[7:11] from queues.lease where lease_id = :lease2),
  p_outcomes => '{completed,failed,canceled,released,failed}') \g /dev/null
select queue, running, backlog, scheduled from worker.report where queue = 'elsewhere';
select * from app.truth where queue = 'elsewhere';
select worker.stop_worker(:w) - worker.stop_worker(:w) > 0 as handed_back;
select * from app.truth where queue = 'elsewhere';
set worker.fake_now = '2030-01-01 12:30:00+00';
select worker.register_worker('w2') as w \gset
select count(*) > 5 as got from queues.exchange('elsewhere', 100, :w);
set worker.fake_now = '2030-01-01 13:00:00+00';
select worker.recover_dead_workers() > 5 as recovered;
select * from app.truth where queue = 'elsewhere';

-- ------------------------------------------------- summed up, and over time
select * from app.truth;
select queues.maintain() is not null as rolled;
select count(*) as raw from worker.stat_raw;
select q.queue, s.minute, s.succeeded, s.failed, s.canceled, s.retries, s.recovered > 0 as recovered
  from worker.stat s join worker.queue_registry q using (queue_id) order by 1, 2;
select queue, is_right from app.truth;
-- The last half hour, and the whole day.
select queue, completed, recovered > 0 as recovered, total_completed from worker.report('30 minutes');
select queue, completed, total_completed from worker.report('1 day');
-- A second look adds nothing, and a late one is added to its minute.
select queues.maintain() is not null as rolled;
insert into worker.stat_raw select '2030-01-01 12:00:30+00', queue_id, 100, 0, 0, 0, 0 from worker.queue_registry where queue = 'sql';
select queues.maintain() is not null as rolled;
select s.minute, s.succeeded from worker.stat s join worker.queue_registry q using (queue_id) where q.queue = 'sql';
-- After a day, one row.
set worker.fake_now = '2030-01-02 15:00:00+00';
select worker.enqueue('work') as id \gset
call worker.process_tasks(p_queue => 'sql');
set worker.fake_now = '2030-01-02 15:01:00+00';
select queues.maintain() is not null as rolled;
select q.queue, s.minute, s.succeeded from worker.stat s join worker.queue_registry q using (queue_id) order by 1, 2;
select queue, completed, total_completed from worker.report('1 day');
select * from worker.report('2 days');
select * from worker.report('0');

-- --------------------------------------------------- a backlog beyond counting
set client_min_messages = warning;
select worker.register_command('many', 'many', p_kind => 'native');
set client_min_messages = notice;
select queues.enqueue('many', '{}') from generate_series(1, 1500) \g /dev/null
select backlog > 1000 as over_thousand, backlog_exact from worker.report where queue = 'many';
analyze queues.ready;
select backlog between 1400 and 1600 as near, backlog_exact from worker.report where queue = 'many';

-- --------------------------------------------------------------------- events
reset worker.fake_now;
set worker.fake_now = '2030-02-01 00:00:00+00';
select worker.enqueue('again', '{"fail": 1}') as id \gset
set worker.fake_now = '2030-02-01 00:00:05+00';
call worker.process_tasks(p_queue => 'sql');
set worker.fake_now = '2030-02-01 00:05:00+00';
call worker.process_tasks(p_queue => 'sql');
select task_id - :id as task, at, event, attempt, split_part(detail, e'\n', 1) as detail
  from worker.events where task_id = :id order by at, event desc;
select worker.enqueue('fan') as fan \gset
call worker.process_tasks(p_queue => 'sql');
set worker.fake_now = '2030-02-01 00:06:00+00';
call worker.process_tasks(p_queue => 'sql');
select task_id - :fan as task, at, event, attempt from worker.events where task_id between :fan and :fan + 2 order by task_id, at, event;
select worker.enqueue('work') as gone \gset
select worker.cancel(:gone, 'not needed');
select event, attempt, detail from worker.events where task_id = :gone order by event desc;
select count(*) > 5 as some, min(task_id) >= :gone - 3 as of_the_newest, (array_agg(event))[1] as last from worker.recent_events(4);
select count(*) = 0 as none from worker.recent_events(2) where task_id < :gone - 1;
