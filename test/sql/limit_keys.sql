-- Group keys with a limit, and order keys.
\set VERBOSITY terse
\pset null '-'
set worker.fake_now = '2030-01-01 12:00:00+00';
create schema app;
create table app.log (i int generated always as identity, n int, key text);
create procedure app.run(payload jsonb) language plpgsql as $$
begin
  if payload ? 'fail' then raise exception 'boom'; end if;
  insert into app.log (n, key) values ((payload ->> 'n')::int, payload ->> 'key');
end $$;
select worker.register_command('tenant', p_kind => 'http', p_url => 'http://x/', p_group_concurrency_limit => 2);
-- Five of one key, then two of another, one without.
select count(*) from worker.enqueue_many('tenant', array_fill('{}'::jsonb, '{5}'), p_group_key => 'a');  -- 1-5
select count(*) from worker.enqueue_many('tenant', array_fill('{}'::jsonb, '{2}'), p_group_key => 'b');  -- 6-7
select worker.enqueue('tenant');  -- 8
select task_id, group_key from queues.exchange('default', 10);
select * from worker.concurrency_slots order by 1, 2;
select task_key, kind, "limit", used, waiting from worker.slot_usage order by 1;
-- What cannot run is out of the way: no claim meets it again.
select count(*) from queues.ready;
select gate, task_ids, run_at > worker.now() + interval '1000 years' as never from queues.timer order by first_id;
select count(*) from queues.exchange('default', 10);
select worker.explain_task(3);
select state from worker.tasks where id = 3;
-- One out, one in; the stranger gives back nothing.
select event, task_id, group_key from queues.exchange('default', 10, p_lease_ids => '{1,1}', p_task_ids => '{1,1}', p_outcomes => '{completed,completed}');
select event, task_id, group_key from queues.exchange('default', 10, p_lease_ids => '{1}', p_task_ids => '{1}', p_outcomes => '{completed}');
-- One that waits can be canceled, also the one that was about to run.
select worker.cancel(4);
select count(*) from queues.exchange('default', 0, p_lease_ids => '{1}', p_task_ids => '{2}', p_outcomes => '{completed}');
select task_ids from queues.ready;
select worker.cancel(5);
select count(*) from worker.enqueue_many('tenant', array_fill('{}'::jsonb, '{2}'), p_group_key => 'a');  -- 9-10
select task_id, group_key from queues.exchange('default', 10);
select worker.explain_task(10);
-- Raised: more start at once. Removed: all.
update worker.command_registry set group_concurrency_limit = 3 where command = 'tenant';
select task_id, group_key from queues.exchange('default', 10);
select count(*) from worker.enqueue_many('tenant', array_fill('{}'::jsonb, '{3}'), p_group_key => 'a');  -- 11-13
select count(*) from queues.exchange('default', 10);
update worker.command_registry set group_concurrency_limit = null where command = 'tenant';
select task_id, group_key from queues.exchange('default', 10);
-- A limit that comes while tasks run counts these.
update worker.command_registry set group_concurrency_limit = 1 where command = 'tenant';
select task_key, used from worker.slot_usage order by 1;
select count(*) from queues.exchange('default', 10, p_done => array(select lease_id from queues.lease_open));
select count(*) from worker.concurrency_slots;
select * from worker.reconcile_slots();
select count(*) from queues.timer;

-- The net: the one that was let go is gone, without a word.
select count(worker.enqueue('tenant', p_group_key => 'n')) from generate_series(1, 3);
select count(*) from queues.exchange('default', 10);
select count(*) from queues.exchange('default', 0, p_done => array(select lease_id from queues.lease_open));
delete from queues.ready;
select count(*) from queues.exchange('default', 10);
select queues.maintain() -> 'swept' as swept;
select count(*) from queues.exchange('default', 10, p_done => array(select lease_id from queues.lease_open));
select queues.maintain() -> 'swept' as swept;
select count(*) from queues.exchange('default', 10);
select count(*) from queues.exchange('default', 0, p_done => array(select lease_id from queues.lease_open));

-- Keys take turns, however long the backlog of one is.
select worker.register_command('turns', 'tq', 'app.run', p_group_concurrency_limit => 1);
select count(*) from worker.enqueue_many('turns', array(select jsonb_build_object('n', i, 'key', 'a') from generate_series(1, 300) i), p_group_key => 'a');
select count(*) from worker.enqueue_many('turns', array(select jsonb_build_object('n', i, 'key', 'b') from generate_series(1, 3) i), p_group_key => 'b');
select count(*) from worker.enqueue_many('turns', array(select jsonb_build_object('n', i, 'key', 'c') from generate_series(1, 3) i), p_group_key => 'c');
do $$ begin
  for i in 1..9 loop
    perform set_config('worker.fake_now', (worker.now() + interval '1 ms')::text, false);
    call worker.process_tasks(1, p_queue => 'tq');
  end loop;
end $$;
select string_agg(key || n, ' ' order by i) from app.log;
select worker.drain('tq');
select key, count(*), count(distinct n) from app.log group by key order by key;
select count(*) from queues.slot_held;

-- A thousand keys.
select worker.register_command('many', p_kind => 'http', p_url => 'http://x/', p_group_concurrency_limit => 1);
select count(worker.enqueue('many', p_group_key => 'k' || i % 1000)) from generate_series(1, 3000) i;
select count(*), count(distinct group_key) from queues.exchange('default', 2000);
select count(*) from queues.exchange('default', 2000);
select count(*), count(distinct group_key) from queues.exchange('default', 2000, p_done => array(select lease_id from queues.lease_open));
select count(*), count(distinct group_key) from queues.exchange('default', 2000, p_done => array(select lease_id from queues.lease_open));
select count(*) from queues.exchange('default', 2000, p_done => array(select lease_id from queues.lease_open));
select count(*), count(distinct task_id) from queues.task_completed where task_id > (select max(id) - 3000 from worker.tasks);
select worker.enqueue('many', p_group_key => repeat('x', 513));

-- Order keys need no limit: the command may have others, who are not concerned.
truncate app.log;
select worker.register_command('steps', 'default', 'app.run', p_max_attempts => 2, p_backoff_initial => '10 s');
select worker.enqueue('steps', '{"n": 1, "key": "a"}', p_order_key => 'a') as first \gset
select worker.enqueue('steps', '{"n": 2, "key": "a"}', p_order_key => 'a', p_priority => -5) as second \gset
select worker.enqueue('steps', '{"n": 3, "key": "a"}', p_order_key => 'a') as third \gset
select worker.enqueue('steps', '{"n": 1, "key": "b"}', p_order_key => 'b') > 0;
select worker.enqueue('steps', '{"n": 0}') > 0;
select task_id - :first as task from queues.exchange('default', 10);
select task_ids[1] - :first as parked, gate from queues.timer where gate is not null order by 1;
select replace(worker.explain_task(:second), :'first', 'FIRST');
select max(lease_id) as lease from queues.lease_open \gset
-- A failed attempt that is retried keeps its place.
select task_id - :first as task from queues.exchange('default', 10, p_lease_ids => array[:lease], p_task_ids => array[:first], p_outcomes => '{failed}');
select worker.cancel(:second);
select task_id - :first as task from queues.exchange('default', 10);
set worker.fake_now = '2030-01-01 13:00:00+00';
select task_id - :first as task, attempt from queues.exchange('default', 10);
select max(lease_id) as lease from queues.lease_open \gset
-- Failed for good: the next one goes on, because the command does not say otherwise.
select task_id - :first as task from queues.exchange('default', 10, p_lease_ids => array[:lease], p_task_ids => array[:first], p_outcomes => '{failed}');
select count(*) from queues.exchange('default', 10, p_done => array(select lease_id from queues.lease_open));
select count(*) from queues.ordered;

-- Strictly in order, whatever the batch; and blocked by a failure.
select worker.register_command('steps', 'default', 'app.run', p_order_blocks => true);
select count(worker.enqueue('steps', jsonb_build_object('n', i / 3, 'key', 'k' || i % 3) || case when i = 13 then '{"fail": 1}' else '{}'::jsonb end, p_order_key => 'k' || i % 3)) from generate_series(0, 29) i;
select worker.drain();
select key, string_agg(n::text, ' ' order by i) from app.log where key is not null group by key order by key;
select id as failed from worker.tasks where command = 'steps' and payload ->> 'n' = '4' and state = 'failed' \gset
select id as next from worker.tasks where command = 'steps' and state = 'pending' order by id limit 1 \gset
select replace(worker.explain_task(:next), :'failed', 'FAILED');
select worker.cancel(:next);
select worker.cancel(:failed), worker.cancel(:failed), worker.unblock(:failed);
select worker.drain();
select key, string_agg(n::text, ' ' order by i) from app.log where key is not null group by key order by key;
select (select count(*) from queues.ordered) as ordered, (select count(*) from queues.slot_held) as held,
       (select count(*) from queues.timer where gate is not null) as parked;

-- Both keys at once, children, and a parent that waits.
create procedure app.tree(payload jsonb) language plpgsql as $$
begin
  insert into app.log (n, key) values ((payload ->> 'n')::int, 'tree');
  call worker.spawn('leaf', jsonb_build_object('n', payload -> 'n', 'key', 'leaf'));
  call worker.spawn('leaf', jsonb_build_object('n', payload -> 'n', 'key', 'leaf'));
end $$;
truncate app.log;
select worker.register_command('tree', 'kin', 'app.tree', p_concurrency_limit => 1, p_group_concurrency_limit => 1);
select worker.register_command('leaf', 'default', 'app.run', p_concurrency_limit => 1);
update worker.queue_registry set top_concurrency = null where queue = 'kin';
select count(worker.enqueue('tree', jsonb_build_object('n', i), p_order_key => 'o', p_group_key => 'g')) from generate_series(1, 3) i;
call worker.process_tasks(p_queue => 'kin');
-- It does not run while it waits: its slots are others', but not its turn.
select state, count(*) from worker.tasks where command in ('tree', 'leaf') group by 1 order by 1;
select task_key, used from worker.slot_usage where task_key in ('tree', 'leaf') order by 1;
select worker.drain('kin');
select string_agg(key || n, ' ' order by i) from app.log;
select (select count(*) from queues.ordered) as ordered, (select count(*) from queues.slot_held) as held,
       (select count(*) from queues.timer where gate is not null) as parked;
