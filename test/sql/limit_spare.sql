-- Slots that go from one lease straight to the next: what is left of them when the
-- next lease needs others, or is none.
\set VERBOSITY terse
set worker.fake_now = '2030-01-01 12:00:00+00';
set client_min_messages = warning;
create schema app;
create view app.held as
  select h.task_key, h.lease_id, cardinality(h.task_ids) as tasks, h.slot_groups from queues.slot_holder h
   order by h.task_key collate "C", h.lease_id;
create function app.next(p_want int, p_done bigint[], p_worker bigint default null, p_queue text default 'default')
returns table (event text, lease_id bigint, task_type text, n bigint) language sql as $$
  select e.event, e.lease_id, e.task_type, count(*)
    from queues.exchange(p_queue, p_want, p_worker, p_done => p_done) e group by 1, 2, 3 order by 1, 2, 3
$$;
select from worker.register_command('a', p_kind => 'http', p_url => 'http://x/', p_concurrency_limit => 3);
select count(*) from worker.enqueue_many('a', array_fill('{}'::jsonb, '{20}'));
select * from app.next(2, null);
select * from app.next(2, '{1}');
select * from app.held;
-- Said twice, and to somebody who has none.
select * from app.next(2, '{2,2,77}');
select * from app.held;
-- Some of a lease: these are given back one by one, the others stay where they are.
select * from app.next(2, '{3}');
select min(task_id) as first from queues.in_flight \gset
select event, lease_id, task_id - :first as after from queues.exchange('default', 2, p_lease_ids => '{4}', p_task_ids => array[:first], p_outcomes => '{failed}');
select * from app.held;
-- Nothing is handed out: to a worker that was given up, by a queue that is paused, for
-- a wish of nothing.
select worker.register_worker('w') as w \gset
select from worker.stop_worker(:w);
select * from app.next(2, '{4}', :w);
select * from app.held;
select from worker.pause('default');
select * from app.next(2, '{5}');
select * from app.held;
select from worker.resume('default');
select * from app.next(3, null);
select * from app.next(null, '{6}');
select * from app.held;
-- With a limit of the queue, and two commands: each key by itself.
select from worker.register_command('b', p_kind => 'http', p_url => 'http://x/', p_concurrency_limit => 2);
update worker.queue_registry set concurrency_limit = 4 where queue = 'default';
select count(*) from worker.enqueue_many('b', array_fill('{}'::jsonb, '{20}'), p_priority => 1);
select max(lease_id) as last from queues.lease \gset
select lease_id - :last as lease, task_type, n from app.next(4, null);
select lease_id - :last as lease, task_type, n from app.next(4, array[:last + 1]);
select task_key, lease_id - :last as lease, tasks, slot_groups from app.held;
-- One of them is not wanted any more, or may not go on.
update worker.command_registry set paused = true where command = 'a';
select lease_id - :last as lease, task_type, n from app.next(4, array[:last + 2]);
select task_key, lease_id - :last as lease, tasks, slot_groups from app.held;
update worker.command_registry set paused = false where command = 'a';
update worker.queue_registry set concurrency_limit = 1 where queue = 'default';
select lease_id - :last as lease, task_type, n from app.next(4, array[:last + 3]);
select task_key, lease_id - :last as lease, tasks, slot_groups from app.held;
update worker.queue_registry set concurrency_limit = null where queue = 'default';
select lease_id - :last as lease, task_type, n from app.next(9, array[:last + 4]);
select task_key, lease_id - :last as lease, tasks, slot_groups from app.held;
-- The limit is gone when the lease ends.
update worker.command_registry set concurrency_limit = null;
select task_type, n > 3 as many from app.next(100, array[:last + 5]);
select count(*) from app.held;
select * from worker.reconcile_slots();
