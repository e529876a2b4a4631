-- Recovery: workers that are gone, and what happens to what they held.
\set VERBOSITY terse
\pset null '-'
set worker.fake_now = '2030-01-01 12:00:00+00';
create view open_leases as
  select o.lease_id, o.worker_id, o.expires_at, l.task_ids
    from queues.lease_open o join queues.lease l using (lease_id) order by 1;
create view waiting_line as
  select task_ids, attempts, failures, crashes, solo from queues.ready
   order by priority, run_at, first_id;
create view recovered as select queues.maintain() ->> 'recovered' as recovered;
create view gone as
  select (select count(*) from queues.ready) + (select count(*) from queues.timer)
         + (select count(*) from queues.lease_open) as rows_left;

select worker.register_worker('w1', 'host', 1), worker.register_worker('w2', 'host', 2);
select count(*) from queues.enqueue_many('email', array_fill('{}'::jsonb, '{6}'), null);
select lease_id, task_id, attempt from queues.exchange('default', 3, 1);
select lease_id, task_id, attempt from queues.exchange('default', 1, 2);
-- A worker's lease has no end of its own: an old task is no reason to take it away.
select * from open_leases;
set worker.fake_now = '2030-01-01 12:00:09+00';
select worker.beat(1), worker.beat(2), worker.beat(3), worker.beat(null);
set worker.fake_now = '2030-01-01 12:00:19+00';
select worker.beat(2);
select * from recovered;
select * from open_leases;
-- Ten seconds without a sign: w1 is dead, w2 is not.
set worker.fake_now = '2030-01-01 12:00:19.001+00';
select * from recovered;
select * from recovered;
select worker_id, stopped_at from worker.worker order by 1;
select worker.beat(1), worker.beat(2);
-- Which of the three did it is not known: nobody is charged, each is leased alone.
select * from waiting_line;
-- The dead worker comes back late and is refused, in every form.
select event, lease_id, task_id from queues.exchange('default', 0, 1, p_done => '{1}');
select event, lease_id, task_id from queues.exchange('default', 0, 1, p_lease_ids => '{1,1}',
  p_task_ids => '{1,2}', p_outcomes => '{completed,failed}');
select queues.complete_task(1, 1);
select count(*) from queues.task_completed;
select count(*) from queues.error;
-- Nor does it get more work that nobody would look after.
do $$ begin
  perform from queues.exchange('default', 1, 1);
  perform from queues.exchange('default', 1, 4711);
exception when others then null;
end $$;
select queues.maintain() is not null as done;
select count(*) from open_leases where worker_id <> 2;
select * from waiting_line;
-- The next worker: three leases of one, and the others together.
select lease_id, task_id, attempt from queues.exchange('default', 10, 2);
select task_lease_id, attempt, outcome, worker_id from queues.task_lease where task_id = 2 order by 1;
select event, lease_id, task_id from queues.exchange('default', 0, 2, p_done => '{2,3,4,5,6}');
select count(*) from queues.task_completed where state = 'completed';

-- One that kills its worker every time ends as failed, and takes none along.
update worker.command_registry set max_leases = 3 where command = 'sms';
select queues.enqueue('sms', '{"killer": true}', null);
select count(*) from queues.enqueue_many('sms', array_fill('{}'::jsonb, '{2}'), null);
create table lives (n int, worker_id bigint, tasks text, recovered text);
do $$
declare
  v_killer bigint := (select task_id from queues.task where payload ? 'killer');
  v_worker bigint;
  v_now timestamptz := worker.now();
begin
  for v_n in 1..6 loop
    v_worker := worker.register_worker('mortal');
    insert into lives (n, worker_id, tasks)
      select v_n, v_worker, string_agg(x.task_id || ' as ' || x.attempt, ', ')
        from queues.exchange('default', 10, v_worker) x where x.event = 'claimed';
    -- From the second one on it ends what is under leases of their own.
    perform from queues.exchange('default', 0, v_worker, p_done => array(
      select o.lease_id from queues.lease_open o
       where o.worker_id = v_worker and o.task_id <> v_killer));
    v_now := v_now + interval '11 s';
    perform set_config('worker.fake_now', v_now::text, false);
    update lives l set recovered = r.recovered from recovered r where l.worker_id = v_worker;
  end loop;
end $$;
select n, tasks, recovered from lives order by n;
select t.task_id, c.state, c.attempt, e.error_message
  from queues.task t join queues.task_completed c using (task_id) left join queues.error e using (task_id)
 where t.task_type = 'sms' order by 1;
select task_lease_id - min(task_lease_id) over () as lease, attempt, outcome
  from queues.task_lease l join queues.task t using (task_id) where t.payload ? 'killer' order by 1;
select * from gone;

-- Leaving in order: what is held is handed on at once and charged to nobody, not
-- even where one accident is too many.
update worker.command_registry set max_leases = 1 where command = 'sms';
select queues.enqueue('sms', '{}', null);
create temp table leaver as select worker.register_worker('leaver') as id;
select x.task_id, x.attempt from leaver, queues.exchange('default', 10, id) x;
select worker.stop_worker(id) from leaver;
select crashes, failures, solo from waiting_line;
select worker.beat(id), worker.stop_worker(id) from leaver;
select count(*) from queues.task_completed where task_id = 10;
-- And then one accident.
create temp table second as select worker.register_worker('second') as id;
select x.task_id from second, queues.exchange('default', 10, id) x;
select set_config('worker.fake_now', (worker.now() + interval '11 s')::text, false) is not null as later;
select * from recovered;
select state from queues.task_completed where task_id = 10;

-- Callers without a worker: five minutes, tasks of one batch and single ones.
select count(*) from queues.enqueue_many('email', array_fill('{}'::jsonb, '{4}'), null);
select task_id from queues.exchange('default', 3);
select task_id from queues.dequeue_next_available_task();
select set_config('worker.fake_now', (worker.now() + interval '299 s')::text, false) is not null as later;
select * from recovered;
select set_config('worker.fake_now', (worker.now() + interval '1 s')::text, false) is not null as later;
select * from recovered;
select task_ids, attempts, crashes, solo from waiting_line;
-- Part of a batch was ended in time: only the rest comes back.
select x.task_id from queues.exchange('default', 10) x;
select x.event from queues.exchange('default', 0, p_done => (select array_agg(lease_id) from queues.lease_open)) x;
select count(*) from queues.enqueue_many('email', array_fill('{}'::jsonb, '{3}'), null);
select count(*) from queues.exchange('default', 3);
select x.event, x.task_id from queues.lease_open o, queues.exchange('default', 0,
  p_lease_ids => array[o.lease_id], p_task_ids => '{16}') x;
select set_config('worker.fake_now', (worker.now() + interval '300 s')::text, false) is not null as later;
select * from recovered;
select task_ids, attempts, crashes, solo from waiting_line;
select count(*) from queues.exchange('default', 3);

-- By the wall clock: a worker whose session is gone is given up after 1.2 s; the
-- beats of one that lives are kept short.
reset worker.fake_now;
insert into worker.worker (name, backend_pid, backend_start, started_at)
  select 'no session', pid, now() - interval '1 day', now() - interval '1 day' from pg_backend_pid() pid;
insert into worker.heartbeat select worker_id, now() - interval '2 s' from worker.worker where name = 'no session';
insert into worker.worker (name, backend_pid, backend_start, started_at)
  select 'just slow', pg_backend_pid(), worker.backend_start(), now() - interval '1 day';
insert into worker.heartbeat
  select worker_id, now() - i * interval '30 s' - interval '2 s' from worker.worker, generate_series(0, 9) i
   where name = 'just slow';
select queues.maintain() is not null as done;
select name, stopped_at is null as lives from worker.worker where name in ('no session', 'just slow') order by 1;
select count(*) from worker.heartbeat h join worker.worker w using (worker_id) where name = 'just slow';
-- The last sign of the dead is kept, so that it is known when they died.
select count(*) from worker.worker w where not exists (select from worker.heartbeat h where h.worker_id = w.worker_id);
