-- worker.explain_task: a sentence for every place a task can be in.
\set VERBOSITY terse
\pset null '-'
\pset format unaligned
\pset tuples_only on
set client_min_messages = warning;
set timezone = 'UTC';
set worker.fake_now = '2030-01-01 12:00:00+00';
create schema app;
create procedure app.run(payload jsonb) language plpgsql as $$
begin
  for i in 1..coalesce((payload ->> 'children')::int, 0) loop
    call worker.spawn('run');
  end loop;
  if payload ? 'fail' then
    raise exception 'out of paper' using detail = 'tray 2';
  end if;
end $$;
select worker.register_command('run', 'q', 'app.run'), worker.register_command('again', 'q', 'app.run', p_max_attempts => 2, p_backoff_initial => '10 min'),
       worker.register_command('wide', 'wide', 'app.run');
update worker.queue_registry set top_concurrency = null where queue = 'wide';

-- nothing there
select worker.explain_task(4711);
-- ready, and nobody to take it
select worker.explain_task(worker.enqueue('run'));
-- a worker that is heard of
select worker.register_worker('w', 'host', 1);
select worker.explain_task(1);
-- scheduled
select worker.explain_task(worker.enqueue('run', p_scheduled_at => '2030-01-01 12:04:00+00'));
-- behind others, counted one by one, also within a bundle
select count(*) from worker.enqueue_many('wide', array_fill('{}'::jsonb, array[250]));
select worker.explain_task(3), worker.explain_task(4), worker.explain_task(252);
select worker.explain_task(worker.enqueue('wide', p_priority => -1));
-- paused, for good and for a time
update worker.queue_registry set paused = true where queue = 'wide';
select worker.explain_task(252);
update worker.queue_registry set paused_until = '2030-01-01 12:30:00+00' where queue = 'wide';
select worker.explain_task(3);
update worker.queue_registry set paused_until = '2030-01-01 11:30:00+00' where queue = 'wide';
select worker.explain_task(253);
-- held by a session
select task_ids from worker.lease_sql_tasks('q', 1, null, '{0}', false);
select regexp_replace(worker.explain_task(1), 'pid \d+', 'pid N');
-- the place is taken
select worker.enqueue('run') as behind \gset
select worker.explain_task(:behind);
-- asked to stop
select worker.cancel(1, 'not needed');
select regexp_replace(worker.explain_task(1), 'pid \d+', 'pid N');
select worker.drop_own_leases();
select worker.explain_task(1);
-- held by a worker, by a plain caller
select count(*) from queues.exchange('wide', 1, 1);
select worker.explain_task(253);
select queues.enqueue('email', '{}');
select task_id from queues.dequeue_next_available_task() \gset
select worker.explain_task(:task_id);
-- completed
select worker.drain('q');
select worker.explain_task(:behind);
-- failed, with the first line of the error
select worker.enqueue('run', '{"fail": 1}') as failing \gset
select worker.drain('q');
select worker.explain_task(:failing);
-- tried again later
select worker.enqueue('again', '{"fail": 1}') as again \gset
select worker.drain('q');
select worker.explain_task(:again) ~ '^It is retried in 00:(0[4-9]|1[0-5]):\d\d, at 2030-01-01 12:\d\d:\d\d';
-- waiting, with few and with many children, and who is kept out by it
select worker.enqueue('run', '{"children": 3}') as parent, worker.enqueue('run') as next \gset
call worker.process_tasks(1, p_queue => 'q');
select worker.explain_task(:parent);
select worker.explain_task(:next);
select count(*) from worker.enqueue_many('run', array_fill('{}'::jsonb, array[20]), p_parent_id => :parent);
select worker.explain_task(:parent);
-- a place out of several
update worker.queue_registry set top_concurrency = 2 where queue = 'q';
select worker.explain_task(:next);
-- canceled, with and without a reason
select worker.cancel(:next, 'superseded'), worker.cancel(:parent);
select worker.explain_task(:next);
select worker.explain_task(:parent);
-- no worker any more
select worker.stop_worker(1);
select worker.explain_task(3);
