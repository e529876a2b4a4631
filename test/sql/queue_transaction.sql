-- The queue inside somebody's transaction: it sees its own rows, and what is
-- rolled back was never there.
\set VERBOSITY terse
\pset null '-'

create view left_behind as
  select (select count(*) from queues.task) as tasks, (select count(*) from queues.ready) as ready,
         (select count(*) from queues.timer) as timers, (select count(*) from queues.lease) as leases,
         (select count(*) from queues.lease_open) as open,
         (select count(*) from queues.task_completed) as completed,
         (select count(*) from queues.attempt_end) as ends,
         (select count(*) from queues.error) as errors;

begin;
select queues.enqueue('email', '{"a": 1}');
select queues.enqueue('email', '{"a": 2}', now() + interval '1 hour');
select task_id, payload from queues.dequeue_next_available_task();
select task_id from queues.dequeue_next_available_task();
select queues.fail_task(1, 'odd');
select queues.complete_task(1, 1);
select task_id, state from queues.task_completed;
select * from left_behind;
rollback;
select * from left_behind;

begin isolation level repeatable read;
select queues.enqueue('email', '{"a": 3}');
select payload from queues.dequeue_next_available_task();
select queues.complete_task(3);
select task_id, state from queues.task_completed;
rollback;
select * from left_behind;

-- The same, to the end.
begin;
select queues.enqueue('email', '{"a": 4}');
select task_id, payload from queues.dequeue_next_available_task();
select queues.complete_task(4);
commit;
select * from left_behind;
select task_id from queues.dequeue_next_available_task();

begin isolation level serializable;
select queues.enqueue('email', '{"a": 5}');
select task_id, payload from queues.dequeue_next_available_task();
select queues.complete_task(5);
commit;
select * from left_behind;

-- Part of a transaction: what a savepoint takes back is claimable again.
begin;
select queues.enqueue('email', '{"a": 6}');
savepoint s;
select task_id from queues.dequeue_next_available_task();
rollback to s;
select task_id from queues.dequeue_next_available_task();
savepoint s;
select queues.complete_task(6);
rollback to s;
select state from queues.task_completed where task_id = 6;
savepoint s;
select queues.enqueue('email', '{"a": 7}');
rollback to s;
select task_id from queues.dequeue_next_available_task();
commit;
select * from left_behind;
select queues.complete_task(6, max(lease_id)) from queues.lease_open;

-- With maintenance in the middle of it, over several generations.
begin;
select queues.enqueue('email', '{"a": 8}');
select queues.rotate_queue('default');
select queues.enqueue('email', '{"a": 9}');
select queues.rotate_queue('default');
select payload from queues.dequeue_next_available_task();
select queues.maintain() ->> 'swept' as swept;
select payload from queues.dequeue_next_available_task();
select queues.maintain() ->> 'swept' as swept;
savepoint s;
select queues.enqueue('email', '{"a": 10}');
select payload from queues.dequeue_next_available_task();
rollback to s;
rollback;
select * from left_behind;

-- Generations that a rolled back rotation left behind are claimed from.
begin;
select queues.rotate_queue('default');
rollback;
select queues.enqueue('email', '{"a": 11}');
begin;
select queues.rotate_queue('default');
select queues.rotate_queue('default');
rollback;
select queues.enqueue('email', '{"a": 12}');
select payload from queues.exchange('default', 10);
select * from left_behind;
