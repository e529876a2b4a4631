-- The calls of schema queues as an application sees them. Time is the test's.
\set VERBOSITY terse
\pset null '-'
set worker.fake_now = '2030-01-01 12:00:00+00';

-- Nothing there: one row, without a task.
select task_id, task_type from queues.dequeue_next_available_task();

-- Order is scheduled_at, task_id; what is later is not there yet.
select queues.enqueue('email', '{"n": 1}', '2030-01-01 11:59:00+00');
select queues.enqueue('sms', '{"n": 2}', '2030-01-01 11:58:00+00');
select queues.enqueue('file_delete', '{"n": 3}', '2030-01-01 11:59:00+00');
select queues.enqueue('email', '{"n": 4}', '2030-01-01 12:00:00+00');
select queues.enqueue('email', '{"n": 5}', '2030-01-01 12:00:00.001+00');
select queues.enqueue('email', '{"n": 6}', null);
select task_id, task_type, payload, enqueued_at, scheduled_at
  from queues.dequeue_next_available_task();
select task_id, task_type, payload from queues.dequeue_next_available_task();
select task_id, task_type, payload from queues.dequeue_next_available_task();
select task_id, task_type, payload from queues.dequeue_next_available_task();
select task_id, task_type, payload from queues.dequeue_next_available_task();
select task_id, task_type, payload from queues.dequeue_next_available_task();
set worker.fake_now = '2030-01-01 12:00:01+00';
select task_id, task_type, payload from queues.dequeue_next_available_task();

-- A lease lasts five minutes, and every hand-out has its row.
select task_lease_id, task_id, leased_at, expires_at, attempt, outcome
  from queues.task_lease order by task_lease_id;

-- Completing is idempotent; the rest are held still.
select queues.complete_task(2);
select queues.complete_task(2);
select queues.complete_task(1, 2), queues.complete_task(1, 2);
select task_id, completed_at, state, lease_id, attempt from queues.task_completed order by 1;
select queues.complete_task(99);

-- Failing records, and does not end the task.
select queues.fail_task(3, 'the bucket is gone');
select queues.fail_task(3, null);
select error_id, task_id, error_message, created_at from queues.error;
select count(*) from queues.task_completed where task_id = 3;

-- A lease is in force to the last moment, and is handed out again by the next
-- dequeue, with nobody's help, in the old place of the line.
set worker.fake_now = '2030-01-01 12:04:59.999+00';
select task_id from queues.dequeue_next_available_task();
set worker.fake_now = '2030-01-01 12:05:00+00';
select queues.enqueue('email', '{"n": 7}', null);
select task_id from queues.dequeue_next_available_task();
select task_lease_id, task_id, attempt, outcome from queues.task_lease where task_id = 3
 order by 1;

-- The first holder is late: its lease is stale, and nothing changes.
select queues.complete_task(3, 3);
select queues.complete_task(3, null), queues.complete_task(null, 7), queues.complete_task(3, 12345);
select count(*) from queues.task_completed where task_id = 3;
-- Another task's lease is no good either.
select queues.complete_task(4, 7);
select queues.complete_task(3, 7);
-- What is not held is not closed, whoever asks: 4 waits to be handed out again.
select queues.complete_task(4);
select count(*) from queues.task_completed where task_id = 4;

-- A worker's lease is the worker's to end.
select worker.register_worker('w1');
select lease_id, task_id, attempt from queues.exchange('default', 1, 1);
select queues.complete_task(4);
select count(*) from queues.task_completed where task_id = 4;
select queues.complete_task(4, 8);
select task_id, attempt, state from queues.task_completed where task_id = 4;

-- Longer, for those who ask in time.
select task_id from queues.dequeue_next_available_task();
select queues.extend_leases('{9,10,4,5,77}', '10 minutes');
set worker.fake_now = '2030-01-01 12:14:59+00';
select queues.maintain() ->> 'recovered' as recovered;
select task_id from queues.task_lease where outcome is null;
set worker.fake_now = '2030-01-01 12:15:00+00';
select queues.extend_leases('{9}');
select queues.maintain() ->> 'recovered' as recovered;
select queues.extend_leases('{1}', '0');
select queues.extend_leases('{1}', '2 days');
select queues.extend_leases('{1}', null);

-- Unknown types are refused, and leave nothing.
select count(*) as tasks, max(task_id) as newest from queues.task;
select queues.enqueue('no_such_type', '{}');
select queues.enqueue('Email', '{}');
select queues.enqueue(null, '{}');
select queues.enqueue_many('no_such_type', array['{}'::jsonb]);
copy queues.staging (task_type, payload) from stdin;
email	{}
no_such_type	{}
\.
-- A payload is an object of at most 1 MB as text.
select queues.enqueue('email', null);
select queues.enqueue('email', '[]');
select queues.enqueue('email', '"text"');
select queues.enqueue('email', 'null');
select queues.enqueue_many('email', array['{}', '17']::jsonb[]);
select queues.enqueue_many('email', array['{}', null]::jsonb[]);
select queues.enqueue('email', jsonb_build_object('a', repeat('x', 1048568)));
select queues.enqueue_many('email', array['{}', jsonb_build_object('a', repeat('x', 1048568))]);
-- Ten numbers of a few bytes each that print as a megabyte.
select queues.enqueue('email', '{"a": [1e104857,1e104857,1e104857,1e104857,1e104857,1e104857,1e104857,1e104857,1e104857,1e104857]}');
select count(*) as tasks, max(task_id) as newest from queues.task;
select queues.enqueue('email', jsonb_build_object('a', repeat('x', 1048567)));
select queues.enqueue('email', '{"a": 1e100000}');
select task_id, octet_length(payload::text) from queues.task where task_id > 7 order by 1;
-- The limit is a setting, in both directions.
set worker.max_payload_bytes = 20;
select queues.enqueue('email', '{"a": "0123456789a"}');
select queues.enqueue('email', '{"a": "0123456789ab"}');
select queues.enqueue_many('email', array['{"a": "0123456789ab"}'::jsonb]);
set worker.max_payload_bytes = 2000000;
select queues.enqueue('email', jsonb_build_object('a', repeat('x', 1500000)));
reset worker.max_payload_bytes;

-- A task never changes, and the owner is no exception.
select current_user = tableowner as owner from pg_tables where tablename = 'task' and schemaname = 'queues';
update queues.task set payload = '{}' where task_id = 1;
delete from queues.task where task_id = 1;
truncate queues.task;
truncate queues.task cascade;
begin;
delete from queues.task;
rollback;
-- Nor does retention leave the door open behind it.
set worker.fake_now = '2030-02-01 12:00:00+00';
begin;
select queues.remove_expired();
delete from queues.task where task_id = 6;
rollback;
select count(*) from queues.task;
