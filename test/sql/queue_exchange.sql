-- Finishing: outcomes, refusals, retries, and what is kept of them.
\set VERBOSITY terse
\pset null '-'
set worker.fake_now = '2030-01-01 12:00:00+00';
update worker.command_registry set max_attempts = 3, backoff_initial = '10 s', backoff_base = 4,
       backoff_max = '30 s' where command = 'sms';
select worker.register_worker('w1');
select count(*) from queues.enqueue_many('email', array_fill('{}'::jsonb, '{10}'), null);  -- 1-10
select count(*) from queues.enqueue_many('sms', array_fill('{}'::jsonb, '{2}'), null);     -- 11-12

-- A whole lease in one word, with the next batch in the same call.
select event, lease_id, task_id, attempt from queues.exchange('default', 3, 1);
select event, lease_id, task_id from queues.exchange('default', 9, 1, 4711, p_done => '{1}');
select task_id, state, lease_id, worker_pid, attempt, duration_ms from queues.task_completed
 order by task_id;
-- A lease that is over is refused whole; the others of the call are not.
select event, lease_id, task_id from queues.exchange('default', 0, 1, p_done => '{1,99,null}');

-- One by one, each with its outcome.
select event, lease_id, task_id from queues.exchange('default', 0, 1, 4711,
  p_lease_ids => '{2,2,2,2,2}', p_task_ids => '{5,4,11,6,7}',
  p_outcomes => '{completed,failed,failed,canceled,released}',
  p_errors => '{ignored,boom,again,not wanted,null}',
  p_results => array['{"r": 5}', '{"r": 4}', null, null, null]::jsonb[],
  p_durations => '{1.5,2.5,3.5,4.5,5.5}');
select task_id, state, attempt, duration_ms, worker_pid, result, reason
  from queues.task_completed where lease_id = 2 order by task_id;
select task_id, lease_id, attempt, ended_at, outcome from queues.attempt_end order by task_id;
select task_id, error_message, attempt, created_at from queues.error order by error_id;
select task_ids, attempts, failures, crashes, solo, run_at - worker.now() as delay from queues.ready;
-- Backoff: 10 s, somewhere between half of it and half as much again.
select task_ids, attempts, failures, crashes, solo,
       run_at - worker.now() between interval '5 s' and interval '15 s' as backoff from queues.timer;

-- The rest of that lease, with things that are not in it, ended before, twice,
-- or nothing at all. Every refusal is named.
select task_id as before from queues.task_lease where outcome is null order by task_id;
select event, lease_id, task_id from queues.exchange('default', 0, 1,
  p_lease_ids => '{2,2,2,2,99}', p_task_ids => '{8,5,1,4711,9}') order by lease_id, task_id;
select lease_id, partial from queues.lease_open;
-- The first word counts, and the same task is ended once.
select event, lease_id, task_id from queues.exchange('default', 0, 1,
  p_lease_ids => '{2,2}', p_task_ids => '{9,9}', p_outcomes => '{failed,completed}',
  p_errors => '{first,second}');
select task_id, state from queues.task_completed where task_id = 9;
-- The rest in one word.
select event, lease_id, task_id from queues.exchange('default', 1, 1, p_done => '{2}');
select count(*) from queues.lease_open where lease_id = 2;
select task_id, state, lease_id, attempt from queues.task_completed where task_id in (10, 12) order by 1;
-- Nothing is done by halves: a wrong outcome refuses the call.
select * from queues.exchange('default', 1, 1, p_done => '{3}', p_lease_ids => '{3}',
  p_task_ids => '{7}', p_outcomes => '{done}');
select * from queues.exchange('default', 1, 1, p_done => '{3}', p_lease_ids => '{3}',
  p_task_ids => '{7}', p_outcomes => array[null]);
select * from queues.exchange('nowhere', 1, 1, p_done => '{3}');
select lease_id from queues.lease_open;
select event, task_id from queues.exchange('default', 0, 1, p_done => '{3}');

-- Retries: a second and a third attempt, then it has failed for good. The
-- backoff does not grow beyond its limit.
set worker.fake_now = '2030-01-01 12:00:15.1+00';
select lease_id, task_id, attempt from queues.exchange('default', 10, 1);
select event, task_id from queues.exchange('default', 0, 1, p_lease_ids => '{4}',
  p_task_ids => '{11}', p_outcomes => '{failed}', p_errors => '{and again}');
select attempts, failures,
       run_at - worker.now() between interval '15 s' and interval '45 s' as backoff from queues.timer;
set worker.fake_now = '2030-01-01 12:01:01+00';
select lease_id, task_id, attempt from queues.exchange('default', 10, 1);
select event, task_id from queues.exchange('default', 0, 1, p_lease_ids => '{5}',
  p_task_ids => '{11}', p_outcomes => '{failed}', p_errors => '{enough}');
select task_id, state, attempt from queues.task_completed where task_id = 11;
select attempt, error_message from queues.error where task_id = 11 order by error_id;
select task_lease_id, attempt, outcome from queues.task_lease where task_id = 11 order by 1;
select count(*) from queues.timer;
-- Many failures: the numbers stay numbers.
update worker.command_registry set max_attempts = 10000, backoff_base = 100 where command = 'sms';
select bool_and(queues.retry_at(c, n, worker.now()) - worker.now() between '5 s' and '45 s')
  from worker.command_registry c, generate_series(1, 500) n where c.command = 'sms';
update worker.command_registry set backoff_initial = '0', backoff_base = 1 where command = 'sms';
select queues.enqueue('sms', '{}', null);
select lease_id, task_id, attempt from queues.exchange('default', 1, 1);
select event, task_id, attempt from queues.exchange('default', 1, 1, p_lease_ids => '{6}',
  p_task_ids => '{13}', p_outcomes => '{failed}');
select event, task_id from queues.exchange('default', 0, 1, p_done => '{7}');

-- A parent waits for its children, wherever it stands in its batch: in the
-- lease below the first task is the newest.
select queues.add_task('email', '{}', p_priority => 2);   -- 14
select queues.add_task('email', '{}', p_priority => 1);   -- 15
select lease_id, task_id from queues.exchange('default', 2, 1);
select queues.add_task('email', '{}', p_parent_id => 14);  -- 16
select event, task_id from queues.exchange('default', 1, 1, p_done => '{8}');
select task_id, state from queues.task_completed where task_id > 13 order by 1;
select task_id from queues.waiting;
select event, task_id from queues.exchange('default', 0, 1, p_done => '{9}');
select task_id, state from queues.task_completed where task_id > 13 order by 1;
select queues.add_task('email', '{}', p_priority => 2);   -- 17
select queues.add_task('email', '{}', p_priority => 1);   -- 18
select lease_id, task_id from queues.exchange('default', 2, 1);
select queues.add_task('email', '{}', p_parent_id => 17);  -- 19
select event, task_id from queues.exchange('default', 0, 1, p_lease_ids => '{10,10}',
  p_task_ids => '{18,17}');
select task_id, state from queues.task_completed where task_id > 16 order by 1;
select task_id from queues.waiting;

-- Where trees have places, each root is leased by itself, also when several are
-- taken at once, and each can be ended in one word.
select lease_id, task_id from queues.exchange('default', 10, 1);
select event, task_id from queues.exchange('default', 0, 1, p_done => '{11}');
update worker.queue_registry set top_concurrency = 3 where queue = 'default';
select queues.add_tasks('email', array_fill('{}'::jsonb, array[3]));
select lease_id, task_id, attempt from queues.exchange('default', 10, 1);
select attempts, failures, crashes from queues.lease where lease_id = 14;
select event, task_id from queues.exchange('default', 0, 1, p_done => '{12,13,14}');
select task_id, state, attempt from queues.task_completed where task_id > 19 order by 1;
