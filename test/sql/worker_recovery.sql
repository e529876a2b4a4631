-- Recovery of what sessions have left behind. (Those that are really killed are in
-- test/system/worker_sql.bats.)
\set VERBOSITY terse
\pset null '-'
set client_min_messages = warning;
create schema app;
create table app.ran (i serial, tag text);
create procedure app.run(payload jsonb) language plpgsql as $$
begin
  insert into app.ran (tag) values (payload ->> 'tag');
end $$;
select worker.register_command('run', 'q', 'app.run', p_max_leases => 3), worker.register_command('grouped', 'g', 'app.run', p_group_commit => 50);
create view app.state as
  select payload ->> 'tag' as tag, state, attempt, split_part(error, E'\n', 1) as error from worker.tasks order by id;
create function app.lease(p_queue text, p_want int) returns bigint[] language sql as $$
  select task_ids from worker.lease_sql_tasks(p_queue, p_want, null, '{0,1}', false)
$$;

-- A session that works is left alone, however old its task is.
select worker.enqueue('run', '{"tag": "a"}') is not null, worker.enqueue('run', '{"tag": "b"}') is not null;
select app.lease('q', 10);
select * from app.state;
update queues.lease set leased_at = leased_at - interval '1 year';
select worker.reset_abandoned_processing_tasks();
select * from app.state;

-- Its own next call finds what an interrupted one has left.
call worker.process_tasks(p_queue => 'q');
select * from app.state;
select worker.reset_abandoned_processing_tasks();
select * from worker.rescue;

-- The pid is another session's now: recovered, and the session that has the pid lives.
select worker.enqueue('run', '{"tag": "c"}') is not null;
select app.lease('q', 10);
update queues.lease set backend_start = backend_start - interval '1 second' where lease_id = (select lease_id from queues.lease_open);
select worker.reset_abandoned_processing_tasks();
select * from app.state where tag = 'c';
select kind, count(*) from worker.rescue group by 1;
call worker.process_tasks(p_queue => 'q');
-- no session has that pid
select worker.enqueue('run', '{"tag": "d"}') is not null;
select app.lease('q', 10);
update queues.lease_open set backend_pid = 2000000000;
select worker.reset_abandoned_processing_tasks();
call worker.process_tasks(p_queue => 'q');
select * from app.state;
select tag, count(*) from app.ran group by 1 order by 1;
truncate app.ran;

-- A task that kills its session every time fails in the end.
create procedure app.crash() language plpgsql as $$
begin
  update queues.lease_open set backend_pid = 2000000000;
  raise warning 'recovered %', worker.reset_abandoned_processing_tasks();
end $$;
select worker.enqueue('run', '{"tag": "killer"}') is not null;
select app.lease('q', 10);
call app.crash();
select app.lease('q', 10);
call app.crash();
select * from app.state where tag = 'killer';
select app.lease('q', 10);
call app.crash();
select * from app.state where tag = 'killer';
call worker.process_tasks(p_queue => 'q');
select tag from app.ran;

-- Lost in a group: each runs alone from then on, so only the killer is charged.
select count(worker.enqueue('grouped', jsonb_build_object('tag', i))) from generate_series(1, 5) i;
select app.lease('g', 50);
call app.crash();
select r.task_ids, r.attempts, r.crashes, r.solo from queues.ready r order by first_id;
select app.lease('g', 50);
select task_ids, attempts, crashes, solo from queues.ready order by first_id;
call app.crash();
select task_ids, attempts, crashes, solo from queues.ready order by first_id;
call worker.process_tasks(p_queue => 'g');
select tag, state, attempt from app.state where tag ~ '^\d$';
select count(distinct xmin::text) as commits from app.ran;
select queues.maintain() ->> 'recovered' as recovered;

-- Under a fake clock a worker may look dead; its sessions are not ended for it.
select worker.register_worker('w', 'here', 1) as w \gset
set worker.worker_id = :w;
select worker.enqueue('run', '{"tag": "e"}') is not null;
select app.lease('q', 10);
begin;
set local worker.fake_now = '2100-01-01';
select worker.reset_abandoned_processing_tasks();
rollback;
select * from app.state where tag = 'e';
reset worker.worker_id;
call worker.process_tasks(p_queue => 'q');
select * from app.state where tag = 'e';
select worker.stop_worker(:w);

-- The net below waiting parents: it acts when there is something, and says so.
select worker.enqueue('run', '{"tag": "parent"}') as p \gset
select worker.spawn_task('run', '{"tag": "child"}', :p) as c \gset
call worker.process_tasks(1, p_queue => 'q', p_mode => 'top');
select state from worker.tasks where id = :p;
select queues.maintain() ->> 'parents' as rescued;
-- a child that ends behind the back of the protocol
delete from queues.ready where :c = any(task_ids);
insert into queues.task_completed (task_id, completed_at, queue_id, state) select task_id, now(), queue_id, 'completed' from queues.task where task_id = :c;
select queues.maintain() ->> 'parents' as too_early;
update queues.waiting set since = since - interval '6 s';
select queues.maintain() ->> 'parents' as rescued;
select state from worker.tasks where id = :p;
select kind, count(*) from worker.rescue group by 1 order by 1;
