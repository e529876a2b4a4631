-- worker.tasks over a long history: what people ask for reads a page, not the history.
\set VERBOSITY terse
\pset null '-'
set client_min_messages = warning;
create schema app;
create procedure app.run(payload jsonb) language plpgsql as $$
begin
  if payload ? 'children' then call worker.spawn('run'); end if;
  if payload ? 'fail' then raise exception 'no'; end if;
end $$;
select worker.register_command('run', 'q', 'app.run'), worker.register_command('other', 'other', 'app.run');

-- 300,000 tasks that have completed, and 30 that failed, all over.
insert into queues.task (task_id, task_type, payload, enqueued_at, scheduled_at, priority, queue_id)
  select nextval('queues.task_id_seq'), 'run', '{}', now(), now(), 0, q.queue_id
    from worker.queue_registry q, generate_series(1, 300000) where q.queue = 'q';
insert into queues.task_completed (task_id, completed_at, queue_id, state, attempt)
  select t.task_id, now(), t.queue_id, case when t.task_id % 10000 = 0 then 'failed' else 'completed' end::queues.task_state, 1
    from queues.task t;
-- and a few of each other state
select count(worker.enqueue('run', '{"fail": 1}')) from generate_series(1, 3);
select count(worker.enqueue('other', '{"fail": 1}')) from generate_series(1, 3);
call worker.process_tasks();
select worker.enqueue('run', '{"children": 1}');
call worker.process_tasks();
select worker.enqueue('other');
select task_ids from worker.lease_sql_tasks('other', 1, null, '{0}', false);
select count(worker.enqueue('run')) from generate_series(1, 10);

-- How many blocks does it read? A scan of the history is 2,500 at least.
create function app.read(p_query text) returns text language plpgsql as $$
declare
  v_plan json;
  v_blocks bigint;
begin
  execute 'explain (analyze, buffers, format json) ' || p_query into v_plan;
  v_blocks := (v_plan -> 0 -> 'Plan' ->> 'Shared Hit Blocks')::bigint
            + (v_plan -> 0 -> 'Plan' ->> 'Shared Read Blocks')::bigint;
  return case when v_blocks < 1500 then 'quick' else v_blocks || ' blocks' end;
end $$;
create view app.questions(question) as values
  ('select * from worker.tasks where id = 150000'),
  ('select * from worker.tasks where id = 300010'),
  ('select * from worker.tasks order by id desc limit 50'),
  ('select * from worker.tasks where id < 299000 order by id desc limit 50'),
  ('select * from worker.tasks where state = ''failed'' and queue = ''q'''),
  ('select * from worker.tasks where state = ''failed'' and queue = ''q'' order by id desc limit 20'),
  ('select * from worker.tasks where state = ''canceled'' and queue = ''q'''),
  ('select * from worker.tasks where state = ''waiting'''),
  ('select * from worker.tasks where state = ''waiting'' and queue = ''q'''),
  ('select * from worker.tasks where state = ''processing'''),
  ('select * from worker.tasks where state = ''processing'' and queue = ''other'''),
  ('select * from worker.tasks where parent_id = 300007'),
  ('select worker.explain_task(300010)'),
  ('select worker.has_failed_siblings(300008)');
-- (The small tables have no statistics here.)
analyze queues.task, queues.task_completed;
select question, app.read(question) from app.questions;

-- And they are right.
select state, count(*) from worker.tasks group by 1 order by 1;
select queue, state, count(*) from worker.tasks where id > 300000 group by 1, 2 order by 1, 2;
select id, state from worker.tasks order by id desc limit 3;
select count(*) from worker.tasks where state = 'failed' and queue = 'q';
select id, command, queue, state, attempt, worker_pid = pg_backend_pid() as here, processed_at <= clock_timestamp() as began
  from worker.tasks where state in ('waiting', 'processing') order by id;

-- Changes through it: only what makes sense.
insert into worker.tasks (command, payload, priority) values ('run', '{"n": 1}', 7) returning command, payload, state, priority, queue, attempt;
insert into worker.tasks (command) values ('run') returning payload;
insert into worker.tasks (command, state) values ('run', 'completed');
insert into worker.tasks (id, command) values (1, 'run');
insert into worker.tasks (command) values ('nobody');
update worker.tasks set state = 'completed' where id = 1;
delete from worker.tasks where id = 1;
