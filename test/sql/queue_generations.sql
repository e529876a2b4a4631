-- Generations: where claims look, what is found elsewhere, and timers.
-- The dice that close a generation now and then fall as they should here.
select setseed(0.5);
\set VERBOSITY terse
\pset null '-'
create view ledger as
  select live, limbo from queues.generation_ledger order by version desc limit 1;
create view current_generation as
  select pg_sequence_last_value('queues.q1_generation') as current;
create function churn(p_n int) returns void language plpgsql as $$
begin
  for i in 1..p_n loop
    perform queues.enqueue('email', '{}');
  end loop;
end $$;
create function finish_all() returns void language sql as $$
  select from queues.exchange('default', 0, p_done => (select array_agg(lease_id)
                                                         from queues.lease_open))
$$;

-- Claims that are shown with the ledger are made inside a transaction block,
-- where a claim does not throw dice about rotating.
select * from ledger, current_generation;
select churn(2);
select queues.rotate_queue('default');
select churn(2);
select queues.rotate_queue('default');
select churn(1);
select queues.add_task('email', '{}', p_priority => -1);
select * from ledger, current_generation;
select generation, task_ids from queues.ready order by generation, priority, first_id;
-- Claims go over all of them, in the one order.
begin;
select task_id from queues.exchange('default', 3);
select task_id from queues.exchange('default', 10);
rollback;
-- What is drained leaves the ledger, and each version is a new row.
begin;
select task_id from queues.exchange('default', 4);
commit;
select queues.maintain() ->> 'swept' as swept;
select * from ledger, current_generation;
select count(*) = max(version) as complete, count(*) > 1 as several from queues.generation_ledger;
begin;
select task_id from queues.exchange('default', 10);
commit;
select queues.maintain() ->> 'swept' as swept;
select * from ledger, current_generation;
select queues.rotate_queue('no such queue');

-- The version decides between two leaders: the later one with the same view fails.
begin;
insert into queues.generation_ledger
  select queue_id, version + 1, live, limbo, written_at from queues.generation_ledger
   order by version desc limit 1;
insert into queues.generation_ledger
  select queue_id, max(version), '{1}', '{}', now() from queues.generation_ledger group by 1;
rollback;

-- An idle queue: rotation and maintenance leave the ledger as short as it was.
begin;
select count(*) from (select queues.rotate_queue('default') from generate_series(1, 20)) s;
select l.live[1] = c.current as only_current, cardinality(l.live), l.limbo
  from ledger l, current_generation c;
rollback;
select count(*) from (select queues.rotate_queue('default') from generate_series(1, 200)) s;
select queues.maintain() is not null as done;
select churn(1);
do $$ begin
  for i in 1..40 loop
    perform queues.rotate_queue('default');
    perform queues.maintain('default');
    commit;
  end loop;
end $$;
select count(*) <= 100 as short from queues.generation_ledger;
select task_id from queues.exchange('default', 10);

-- Low-priority leftovers do not keep many generations alive, and keep their order.
do $$ begin
  for i in 1..12 loop
    perform queues.add_task('email', '{}', p_priority => 100);
    perform queues.rotate_queue('default');
    commit;
  end loop;
end $$;
select cardinality(live) <= 9 as few from ledger;
do $$ begin
  for i in 1..12 loop
    perform queues.maintain('default');
    commit;
  end loop;
end $$;
select cardinality(live) <= 9 as few from ledger;
select count(*), count(*) filter (where task_id < before) as out_of_order
  from (select task_id, lag(task_id) over () as before from queues.exchange('default', 100)) s;
select queues.maintain() ->> 'swept' as swept;
select cardinality(live), limbo from ledger;

-- A long backlog, read by batches from a closed generation with marks: each
-- task once, in order.
select churn(5000);
select queues.rotate_queue('default');
create table got (n bigint generated always as identity, task_id bigint);
do $$ begin
  for i in 1..6 loop
    insert into got (task_id) select task_id from queues.exchange('default', 700);
    commit;
  end loop;
end $$;
insert into got (task_id) select task_id from queues.exchange('default', 10000);
select count(*), count(distinct task_id), count(*) filter (where task_id < before) as out_of_order
  from (select g.*, lag(task_id) over (order by n) as before from got g) s;

select finish_all();

-- Timers. They wait apart and come out in order, however many are due.
set worker.fake_now = '2030-01-01 00:00:00+00';
select count(*) from (select queues.enqueue('email', jsonb_build_object('t', i),
    timestamptz '2030-01-01 01:00:00+00' + i * interval '1 ms')
  from generate_series(1, 1000) i order by i % 7, i) s;
select count(*) from queues.enqueue_many('email', array_fill('{"t": 0}'::jsonb, '{150}'),
                                         '2030-01-01 01:00:00+00');
select (select count(*) from queues.timer) as timers, (select count(*) from queues.ready) as ready;
set worker.fake_now = '2030-01-01 00:59:59.999+00';
select count(*) from queues.exchange('default', 1);
set worker.fake_now = '2030-01-01 01:00:00+00';
select count(*), min(payload::text), max(payload::text) from queues.exchange('default', 1000);
set worker.fake_now = '2030-01-01 01:00:00.1+00';
select count(*), min((payload ->> 't')::int), max((payload ->> 't')::int)
  from queues.exchange('default', 1000);
set worker.fake_now = '2030-01-01 01:01:00+00';
select payload, scheduled_at from queues.dequeue_next_available_task();
-- What came later stands behind all that was due before it, also in one large batch.
select queues.enqueue('sms', '{}', '2030-01-01 01:00:30+00');
create table due as select row_number() over () as n, x.* from queues.exchange('default', 2000) x;
select count(*), count(*) filter (where scheduled_at < before) as out_of_order,
       max(n) filter (where task_type = 'sms') as sms
  from (select d.*, lag(scheduled_at) over (order by n) as before from due d) s;
select count(*) from queues.timer;
-- A task for the end of time is no harm.
select queues.enqueue('email', '{}', 'infinity');
select queues.enqueue('email', '{}', '-infinity');
select scheduled_at from queues.exchange('default', 10);
select finish_all();
-- Priority decides among those that are due.
select queues.add_task('email', '{"p": 2}', 2, '2030-01-01 01:01:01+00');
select queues.add_task('email', '{"p": 1}', 1, '2030-01-01 01:01:02+00');
set worker.fake_now = '2030-01-01 01:01:03+00';
select payload from queues.exchange('default', 1);
select payload from queues.exchange('default', 1);
select finish_all();
reset worker.fake_now;

-- The floor: by the wall clock, claims look for timers above it only. A timer
-- that is committed below it is found by maintenance and by an empty dequeue.
select queues.maintain() ->> 'due' as due;
select queues.timer_floor(1) > now() - interval '1 minute' as floor_is_now;
insert into queues.task select * from jsonb_populate_recordset(null::queues.task,
  '[{"task_id": 900001, "task_type": "email", "payload": {}, "enqueued_at": "2020-01-01",
     "scheduled_at": "2020-01-01", "priority": 0, "queue_id": 1, "lane": 2},
    {"task_id": 900002, "task_type": "email", "payload": {}, "enqueued_at": "2020-01-01",
     "scheduled_at": "2020-01-01", "priority": 0, "queue_id": 1, "lane": 2}]');
insert into queues.timer (queue_id, run_at, first_id, lane, priority, task_ids)
  values (1, '2020-01-01', 900001, 2, 0, '{900001}');
select count(*) from queues.exchange('default', 1);
select task_id from queues.dequeue_next_available_task();
insert into queues.timer (queue_id, run_at, first_id, lane, priority, task_ids)
  values (1, '2020-01-01', 900002, 2, 0, '{900002}');
select queues.maintain() ->> 'due' as due;
select task_id from queues.exchange('default', 1);
-- A round of maintenance that is rolled back hides nothing from the next one.
select queues.enqueue('email', '{"rolled": "back"}', clock_timestamp() + interval '1 ms');
select pg_sleep(0.002);
begin;
select queues.maintain() ->> 'due' as due;
rollback;
select queues.maintain() ->> 'due' as due;
select payload from queues.exchange('default', 1);
