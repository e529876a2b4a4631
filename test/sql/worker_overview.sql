-- Lists and counts over a long history and a long backlog: right, and cheap.
\set VERBOSITY terse
\pset null '-'
set client_min_messages = warning;
create schema app;
create procedure app.run(payload jsonb) language plpgsql as $$
begin
  if payload ? 'children' then call worker.spawn('run'); end if;
  if payload ? 'fail' then raise exception 'no'; end if;
end $$;
select worker.register_command('run', 'q', 'app.run'), worker.register_command('other', 'other', 'app.run'),
       worker.register_command('rare', 'q', 'app.run');
update worker.queue_registry set top_concurrency = null where queue = 'other';

-- A few of each state, against what the view says.
select worker.enqueue('rare');
call worker.process_tasks();
select count(worker.enqueue('run', '{"fail": 1}')) from generate_series(1, 3);
select count(worker.enqueue('other', '{"fail": 1}')) from generate_series(1, 3);
select count(worker.enqueue('other')) from generate_series(1, 3);
call worker.process_tasks();
select worker.enqueue('run', '{"children": 1}');
call worker.process_tasks();
select worker.enqueue('other');
select task_ids from worker.lease_sql_tasks('other', 1, null, '{0}', false);
select count(worker.enqueue('run')) from generate_series(1, 3);
select count(*) from worker.enqueue_many('other', array_fill('{}'::jsonb, '{250}'));
select worker.enqueue('rare', p_scheduled_at => worker.now() + interval '1 hour') as later \gset
select worker.cancel(worker.enqueue('other'));
-- Neither the last of a line nor the last of the timers is the newest.
select worker.enqueue('run', p_priority => p) from unnest('{7,-7,3}'::bigint[]) p;
select worker.enqueue('rare', p_scheduled_at => worker.now() + make_interval(hours => h))
  from unnest('{5,2,3}'::int[]) h;
create view app.filters as
  select s.state, q.queue, c.command
    from (select unnest(enum_range(null::queues.task_state)) union all select null) s(state)
   cross join (values ('q'), ('other'), ('default'), (null)) q(queue)
   cross join (values ('run'), ('rare'), ('other'), (null)) c(command);
create function app.naive(p_state text, p_queue text, p_command text, p_limit int) returns bigint[]
language sql as $$
  select array(select id from worker.tasks t
                where (p_state is null or t.state::text = p_state)
                  and (p_queue is null or t.queue = p_queue)
                  and (p_command is null or t.command = p_command)
                order by id desc limit p_limit)
$$;
select f.state, f.queue, f.command, l.n, t.task_ids, app.naive(f.state::text, f.queue, f.command, l.n)
  from app.filters f cross join (values (0), (2), (20), (400)) l(n)
 cross join worker.find_tasks(f.state::text, f.queue, f.command, l.n) t
 where t.cut or t.task_ids <> app.naive(f.state::text, f.queue, f.command, l.n);
select count(*) from app.filters f cross join worker.find_tasks(f.state::text, f.queue, f.command, 20) t
 where t.task_ids <> '{}';
select queue, paused, pending, scheduled, processing, waiting, failed_last_hour,
       oldest_due between worker.now() - interval '1 minute' and worker.now() as recent
  from worker.queue_overview();

-- Wrong questions.
select worker.find_tasks('running');
select worker.find_tasks(p_queue => 'nowhere');
select worker.find_tasks(p_command => 'nothing');

-- Time: an hour later nothing has failed lately, and what was scheduled is due.
-- A pause that is over is none.
update worker.queue_registry set paused = true, paused_until = worker.now() + interval '30 minutes'
 where queue = 'q';
update worker.queue_registry set paused = true where queue = 'other';
select queue, paused, paused_until is not null as until from worker.queue_overview();
select set_config('worker.fake_now', (now() + interval '61 minutes')::text, false) <> '';
select queue, paused, paused_until, pending, scheduled, failed_last_hour from worker.queue_overview();
reset worker.fake_now;
update worker.queue_registry set paused = false, paused_until = null;

-- What waits for a time that never comes is pending, and not the oldest.
begin;
update queues.timer set run_at = '9999-01-01 00:00:00+00';
select queue, pending, scheduled, oldest_due < now() as due from worker.queue_overview();
rollback;

-- 300,000 tasks that have ended, and 200,000 that have not.
insert into queues.task (task_id, task_type, payload, enqueued_at, scheduled_at, priority, queue_id)
  select nextval('queues.task_id_seq'), 'run', '{}', now(), now(), 0, q.queue_id
    from worker.queue_registry q, generate_series(1, 300000) where q.queue = 'q';
insert into queues.task_completed (task_id, completed_at, queue_id, state, attempt)
  select t.task_id, now(), t.queue_id, case when t.task_id % 3 = 0 then 'canceled' else 'completed' end::queues.task_state, 1
    from queues.task t where t.task_id > :later + 7;
select count(*) from worker.enqueue_many('run', array_fill('{}'::jsonb, '{200000}'));
select max(task_id) as newest from queues.task \gset
-- The newest, and what the window does not show is said.
select t.task_ids = array[:newest, :newest - 1]::bigint[] as newest, t.cut from worker.find_tasks('pending', p_limit => 2) t;
select t.task_ids, t.cut from worker.find_tasks('pending', p_command => 'rare', p_limit => 1) t;
set worker.list_window = 250000;
select t.task_ids = array[:later + 7]::bigint[] as right, t.cut from worker.find_tasks('pending', p_command => 'rare', p_limit => 1) t;
reset worker.list_window;
select cardinality(t.task_ids), t.cut from worker.find_tasks('failed') t;
select cardinality(t.task_ids), t.cut from worker.find_tasks('completed', 'q', p_limit => 7) t;
select cardinality(t.task_ids), t.cut from worker.find_tasks('completed', 'other') t;
select cardinality(t.task_ids), t.cut from worker.find_tasks(p_command => 'rare') t;
select cardinality(t.task_ids), t.cut from worker.find_tasks('waiting', p_limit => 5) t;
select queue, pending, scheduled, processing, waiting, failed_last_hour from worker.queue_overview();
select queue, pending from worker.queue_overview(100);

-- How many blocks? The history alone is 6,000.
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
analyze queues.task, queues.task_completed, queues.ready;
select q, app.read(q) from (values
  ('select worker.find_tasks()'),
  ('select worker.find_tasks(p_queue => ''q'')'),
  ('select worker.find_tasks(p_command => ''rare'')'),
  ('select worker.find_tasks(''pending'')'),
  ('select worker.find_tasks(''pending'', ''other'')'),
  ('select worker.find_tasks(''processing'')'),
  ('select worker.find_tasks(''waiting'', ''q'')'),
  ('select worker.find_tasks(''failed'')'),
  ('select worker.find_tasks(''canceled'', ''q'')'),
  ('select worker.find_tasks(''completed'')'),
  ('select * from worker.queue_overview()')) v(q);
