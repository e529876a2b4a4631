-- Limits of how many tasks of a command, or of a queue, run at once.
\set VERBOSITY terse
\pset null '-'
set worker.fake_now = '2030-01-01 12:00:00+00';

-- At most 50 groups, in sum exactly the limit.
select l, count(*) as groups, sum(capacity), min(capacity), max(capacity)
  from unnest('{0,1,4,49,50,51,99,100,101,500,999,1000,1000000}'::int[]) l
  left join lateral queues.slot_layout(l) s on true group by l order by l;

create schema app;
create table app.log (n int);
create procedure app.run(payload jsonb) language plpgsql as $$
begin
  if payload ? 'fail' then raise exception 'boom'; end if;
  insert into app.log values ((payload ->> 'n')::int);
end $$;
create function app.slots(p_key text) returns text language sql as $$
  select count(*) || ' group(s), ' || sum(capacity) || ' slot(s), ' || sum(used) || ' used'
    from worker.concurrency_slots where task_key = p_key
$$;
select worker.register_command('four', p_kind => 'http', p_url => 'http://x/', p_concurrency_limit => 4);
select worker.register_command('free', p_kind => 'http', p_url => 'http://x/');
select count(*) from worker.enqueue_many('four', array_fill('{}'::jsonb, '{10}'));  -- 1-10
select count(*) from worker.enqueue_many('free', array_fill('{}'::jsonb, '{3}'));   -- 11-13

-- One fetch of 10 starts 4, and does not stop at those behind: the others run.
select lease_id, task_id, task_type from queues.exchange('default', 10);
select app.slots('four');
select task_key, kind, "limit", used, waiting, jsonb_array_length(holders) as holders,
       holders -> 0 ->> 'task' as task, holders -> 0 ->> 'since' as since from worker.slot_usage;
-- Who gets nothing is told that there is something.
begin;
select count(*) from queues.exchange('default', 10);
select current_setting('worker.held_back', true);
commit;
select worker.explain_task(5);
-- Each slot that is given back is used again, in the same call.
select event, lease_id, task_id from queues.exchange('default', 10,
  p_lease_ids => '{1,1}', p_task_ids => '{1,3}', p_outcomes => '{completed,failed}');
-- Once: what has ended under this lease gives nothing back, nor does a stranger.
select event, lease_id, task_id from queues.exchange('default', 10,
  p_lease_ids => '{1,1,99}', p_task_ids => '{1,3,2}', p_outcomes => '{completed,completed,completed}');
select app.slots('four');
select event, lease_id, task_id from queues.exchange('default', 10, p_done => '{1,2}');
select event, lease_id, task_id from queues.exchange('default', 10, p_done => '{1,2}');
select event, lease_id from queues.exchange('default', 10, p_done => '{3}');
select app.slots('four');
select count(*) from queues.slot_held;

-- Handed back, lost, expired: the slot goes with the lease.
select worker.register_worker('w1') as w \gset
select count(*) from worker.enqueue_many('four', array_fill('{}'::jsonb, '{4}'));
select lease_id, count(*) from queues.exchange('default', 10, :w) group by 1;
select count(*) from queues.exchange('default', 0, :w, p_lease_ids => '{4}', p_task_ids => '{14}', p_outcomes => '{released}');
select app.slots('four');
select worker.stop_worker(:w);
select app.slots('four');
select lease_id, count(*) from queues.exchange('default', 10) group by 1;
select app.slots('four');
set worker.fake_now = '2030-01-01 12:06:00+00';
select (queues.maintain()) ->> 'recovered' as recovered;
select app.slots('four');
-- Whoever comes late gives back nothing of those who have it now.
select count(*) from queues.exchange('default', 10);
select event, lease_id, task_id from queues.exchange('default', 0, p_done => '{4,5}');
select app.slots('four');
select * from worker.reconcile_slots();
select count(*) from queues.exchange('default', 0, p_done => array(select lease_id from queues.lease_open));

-- Raised, lowered, removed. What runs goes on, and nothing starts above the limit.
select count(*) from worker.enqueue_many('four', array_fill('{}'::jsonb, '{40}'));
select count(*) from queues.exchange('default', 10);
update worker.command_registry set concurrency_limit = 10 where command = 'four';
select app.slots('four'), count(*) from queues.exchange('default', 10);
select worker.register_command('four', p_kind => 'http', p_url => 'http://x/', p_concurrency_limit => 3);
select app.slots('four'), count(*) from queues.exchange('default', 10);
select max(lease_id) as last from queues.lease_open \gset
select app.slots('four'), count(*) from queues.exchange('default', 10, p_done => array[:last]);
select count(*) from worker.concurrency_slots where capacity = 0 and used > 0;
-- 4 run, 3 may: two have to end before one may start.
select max(lease_id) as last, max(task_ids[1]) as first from queues.lease_open join queues.lease using (lease_id) \gset
select count(*) from queues.exchange('default', 10, p_lease_ids => array[:last], p_task_ids => array[:first], p_outcomes => '{completed}');
select count(*) from queues.exchange('default', 10, p_lease_ids => array[:last], p_task_ids => array[:first + 1], p_outcomes => '{completed}');
select queues.maintain() -> 'recovered' as recovered;
select app.slots('four');
-- 51 in one go.
update worker.command_registry set concurrency_limit = 51 where command = 'four';
select app.slots('four');
update worker.command_registry set concurrency_limit = null where command = 'four';
select app.slots('four'), count(*) from queues.exchange('default', 1000);
-- A limit that comes while tasks run counts these.
update worker.command_registry set concurrency_limit = 5 where command = 'four';
select count(*) as running from queues.in_flight \gset
select :running = sum(used) as all_counted from worker.concurrency_slots;
select * from worker.reconcile_slots();
select count(*) from worker.enqueue_many('four', array_fill('{}'::jsonb, '{9}'));
select count(*) from queues.exchange('default', 10);
select count(*) from queues.exchange('default', 10, p_done => array(select lease_id from queues.lease_open));
select app.slots('four');
select count(*) from queues.exchange('default', 10, p_done => array(select lease_id from queues.lease_open));
select count(*) from queues.exchange('default', 0, p_done => array(select lease_id from queues.lease_open));
-- 0 stops it, and says so.
update worker.command_registry set concurrency_limit = 0 where command = 'four';
select worker.enqueue('four') as id \gset
select count(*) from queues.exchange('default', 10);
select worker.explain_task(:id);
update worker.command_registry set concurrency_limit = -1 where command = 'four';
delete from worker.command_registry where command = 'four';
update worker.command_registry set concurrency_limit = 1 where command = 'four';
select count(*) from queues.exchange('default', 10);
select count(*) from queues.exchange('default', 0, p_done => array(select lease_id from queues.lease_open));
delete from worker.command_registry where command = 'four';
select count(*) from worker.concurrency_slots;

-- Under another name.
select worker.register_command('five', p_kind => 'http', p_url => 'http://x/', p_concurrency_limit => 5);
update worker.command_registry set command = 'fifth' where command = 'five';
select app.slots('five'), app.slots('fifth');
delete from worker.command_registry where command = 'fifth';

-- SQL handlers, one after the other: a batch holds one slot.
select worker.register_command('two', p_handler => 'app.run', p_concurrency_limit => 2);
select count(*) from worker.enqueue_many('two', array(select jsonb_build_object('n', i) from generate_series(1, 9) i));
select (s).task_ids from worker.lease_sql_tasks('default', 5, null, '{0,1}', false) s;
select app.slots('two');
select (s).task_ids from worker.lease_sql_tasks('default', 2, null, '{0,1}', false) s;
select (s).task_ids from worker.lease_sql_tasks('default', 2, null, '{0,1}', false) s;
select app.slots('two');
select worker.drop_own_leases();
select app.slots('two');
select worker.enqueue('two', '{"fail": 1}') > 0;
select worker.drain();
select count(*), count(distinct n), min(n), max(n) from app.log;
select app.slots('two');
select * from worker.reconcile_slots();

-- What should not be: a slot without a lease, a task without a slot.
insert into queues.slot_held values ('two', 4711, '{4712}', '{1}', worker.now());
select count(*) from worker.enqueue_many('two', array_fill('{"n": 0}'::jsonb, '{2}'));
select lease_id as leased from queues.exchange('default', 1) \gset
delete from queues.slot_held where lease_id = :leased;
select task_key, lease_id = :leased as leased, task_ids, problem from worker.reconcile_slots() order by 4;
select count(*) from worker.slot_problem;
select count(*) from worker.reconcile_slots(true);
select count(*) from worker.slot_problem;
select app.slots('two');

-- One runs long while a thousand others come and go: what was counted once is never
-- forgotten.
select worker.register_command('long', 'lq', p_kind => 'http', p_url => 'http://x/', p_concurrency_limit => 2, p_group_concurrency_limit => 2);
update worker.queue_registry set top_concurrency = null, concurrency_limit = 3 where queue = 'lq';
select count(*) from worker.enqueue_many('long', array_fill('{}'::jsonb, '{1200}'), p_group_key => 'k');
select lease_id as long from queues.exchange('lq', 1) \gset
create procedure app.others() language plpgsql as $$
declare
  v_leases bigint[];
begin
  for i in 1..1000 loop
    v_leases := array(select e.lease_id from queues.exchange('lq', 3, p_done => v_leases) e where e.event = 'claimed');
    commit;
    if cardinality(v_leases) <> 1 then
      raise exception '% at once', cardinality(v_leases) + 1;
    end if;
  end loop;
end $$;
call app.others();
select task_key, used from worker.slot_usage where task_key ~ 'lq|long' order by 1;
select * from worker.reconcile_slots();
