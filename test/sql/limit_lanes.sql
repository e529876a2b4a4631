-- Lanes: limited commands stand apart, whatever changes while tasks are pending.
\set VERBOSITY terse
\pset null '-'
set worker.fake_now = '2030-01-01 12:00:00+00';
create schema app;
create table app.log (n int);
create procedure app.run(payload jsonb) language sql as $$
  insert into app.log values ((payload ->> 'n')::int)
$$;
create view app.lanes as
  select case when r.lane < 16 then r.lane::text else 'own' || r.lane % 2 end as lane, t.task_type,
         sum(cardinality(r.task_ids)) as tasks
    from (select lane, first_id, task_ids from queues.ready
          union all select lane, first_id, task_ids from queues.timer where task_ids <> '{}') r
    join queues.task t on t.task_id = r.first_id group by 1, 2 order by 1, 2;
select worker.register_command('call', p_kind => 'http', p_url => 'http://x/');
select worker.register_command('other', p_kind => 'http', p_url => 'http://x/');

-- It becomes limited: two run, three are pending, one comes later.
select count(*) from worker.enqueue_many('call', array_fill('{}'::jsonb, '{5}'));  -- 1-5
select worker.enqueue('call', p_scheduled_at => worker.now() + interval '1 hour'); -- 6
select count(*) from worker.enqueue_many('other', array_fill('{}'::jsonb, '{2}')); -- 7-8
select task_id from queues.exchange('default', 2);
update worker.command_registry set concurrency_limit = 1 where command = 'call';
select * from app.lanes;
-- No hand-out starts one of those without a slot.
select task_id, task_type from queues.exchange('default', 10);
select * from app.lanes;
select task_id from queues.exchange('default', 10, p_lease_ids => '{1}', p_task_ids => '{1}', p_outcomes => '{completed}');
select task_id from queues.exchange('default', 10, p_lease_ids => '{1}', p_task_ids => '{2}', p_outcomes => '{completed}');
select used, waiting from worker.slot_usage;
-- Nor one that was written into the old lane later, or that was for later.
insert into queues.task (task_id, task_type, payload, enqueued_at, scheduled_at, priority, queue_id, lane)
  values (100, 'call', '{}', worker.now(), worker.now(), 0, 1, 2);
select queues.put_ready(1, 2, 0, worker.now(), worker.now(), '{100}');
set worker.fake_now = '2030-01-01 13:00:00+00';
select * from app.lanes;
select count(*) from queues.exchange('default', 10);
select * from app.lanes;
-- After a while, when there can be none any more, nobody looks out for them.
set worker.fake_now = '2030-01-01 15:00:00+00';
select count(*) from queues.gated where strays_since is not null;
select queues.forget_gated(worker.now());
select count(*), count(strays_since) from queues.gated;
select queues.forget_gated(worker.now());
select count(*), count(strays_since) from queues.gated;

-- It becomes free again: what stands in its own lane is served from there.
update worker.command_registry set concurrency_limit = null where command = 'call';
select worker.enqueue('call') as late \gset
select * from app.lanes;
select count(*) from queues.exchange('default', 10, p_lanes => '{0,1}');
select count(*) from queues.exchange('default', 10, p_lanes => '{2,3}');
select * from app.lanes;
select count(*) from queues.exchange('default', 0, p_done => array(select lease_id from queues.lease_open));
select count(*) from worker.tasks where command = 'call' and state = 'completed';
-- Once that has been so for an hour, the queue has the plain claim again.
select queues.forget_gated(worker.now());
select idle_since from queues.gated;
set worker.fake_now = '2030-01-01 15:30:00+00';
select queues.forget_gated(worker.now());
select count(*) from queues.gated;
set worker.fake_now = '2030-01-01 17:30:00+00';
select queues.forget_gated(worker.now());
select count(*) from queues.gated;
-- Were there a task in that lane nevertheless, it would be found.
select 2 * command_id as own from worker.command_registry where command = 'call' \gset
insert into queues.task (task_id, task_type, payload, enqueued_at, scheduled_at, priority, queue_id, lane)
  values (101, 'call', '{}', worker.now(), worker.now(), 0, 1, :own);
select queues.put_ready(1, :own, 0, worker.now(), worker.now(), '{101}');
select count(*) from queues.exchange('default', 10);
select queues.find_lost_lanes();
select task_id from queues.exchange('default', 10);
select count(*) from queues.exchange('default', 0, p_done => array(select lease_id from queues.lease_open));

-- A kind that only some workers can run, and then all.
select worker.register_command('nat', p_kind => 'native');
select count(*) from worker.enqueue_many('nat', array_fill('{}'::jsonb, '{3}'));
select count(*) from queues.exchange('default', 1, p_lanes => '{0,1,2,3}');
select lane as nat from worker.command_registry where command = 'nat' \gset
select count(*) from queues.exchange('default', 1, p_lanes => array[:nat]);
select worker.register_command('nat', p_kind => 'native', p_concurrency_limit => 2);
select count(*) from queues.exchange('default', 5, p_lanes => '{0,1,2,3}');
select count(*) from queues.exchange('default', 5, p_lanes => array[:nat]);
select worker.register_command('nat', p_kind => 'http', p_url => 'http://x/');
select count(*) from queues.exchange('default', 5, p_lanes => '{0,1}');
select count(*) from queues.exchange('default', 5, p_lanes => '{2,3}');
select count(*) from queues.exchange('default', 0, p_done => array(select lease_id from queues.lease_open));

-- SQL handlers with a limit run where SQL handlers run, also as children of
-- another queue, and in either mode.
create procedure app.parent(payload jsonb) language plpgsql as $$
begin
  call worker.spawn('limited', '{"n": 1}');
  call worker.spawn('limited', '{"n": 2}');
end $$;
select worker.register_command('limited', p_handler => 'app.run', p_concurrency_limit => 1);
select worker.register_command('parent', 'family', 'app.parent');
select worker.enqueue('parent') > 0, worker.enqueue('limited', '{"n": 3}') > 0;
select count(*) from queues.exchange('default', 5, p_lanes => '{2,3}');
call worker.process_tasks(p_queue => 'family', p_mode => 'child');
select count(*) from app.log;
call worker.process_tasks(p_queue => 'family', p_mode => 'top');
select count(*) from app.log;
call worker.process_tasks(p_queue => 'family', p_mode => 'child');
select n from app.log order by n;
call worker.process_tasks(p_queue => 'default', p_mode => 'child');
call worker.process_tasks(p_queue => 'default', p_mode => 'top');
select n from app.log order by n;
select state, count(*) from worker.tasks where command in ('parent', 'limited') group by 1;

-- A queue's own limit: none, some, more at once, any.
update worker.queue_registry set concurrency_limit = 0 where queue = 'default';
select count(*) from worker.enqueue_many('other', array_fill('{}'::jsonb, '{20}'));
select min(id) as first from worker.tasks where command = 'other' and state = 'pending' \gset
select count(*) from queues.exchange('default', 10);
select worker.explain_task(:first);
update worker.queue_registry set concurrency_limit = 3 where queue = 'default';
select count(*) from queues.exchange('default', 10);
select * from worker.concurrency_slots;
select worker.explain_task(:first + 3) like '%Queue "default" runs 3 task(s) at a time, and these do: %' as told;
update worker.queue_registry set concurrency_limit = 5 where queue = 'default';
select count(*) from queues.exchange('default', 10);
update worker.queue_registry set concurrency_limit = 1 where queue = 'default';
select count(*) from queues.exchange('default', 10);
select task_key, kind, "limit", used, waiting from worker.slot_usage;
select count(*) from queues.exchange('default', 10, p_done => array(select lease_id from queues.lease_open));
update worker.queue_registry set concurrency_limit = -1 where queue = 'default';
update worker.queue_registry set concurrency_limit = 2000000000 where queue = 'default';
update worker.queue_registry set concurrency_limit = null where queue = 'default';
select count(*) from queues.exchange('default', 100);
-- Begun while some run; and under another name.
update worker.queue_registry set concurrency_limit = 4 where queue = 'default';
select sum(capacity) as slots, sum(used) as used from worker.concurrency_slots where task_key = 'queue:default';
select count(*) from queues.exchange('default', 0, p_done => array(select lease_id from queues.lease_open));
select sum(used) from worker.concurrency_slots where task_key = 'queue:default';
update worker.queue_registry set concurrency_limit = 2 where queue = 'family';
update worker.queue_registry set queue = 'kinship' where queue = 'family';
select task_key, count(*) from worker.concurrency_slots where task_key like 'queue:%' group by 1 order by 1;
select worker.enqueue('parent') > 0;
select worker.drain('kinship');
select count(*) from queues.slot_held;
delete from worker.command_registry where command = 'parent';
delete from worker.queue_registry where queue = 'kinship';
select task_key, count(*) from worker.concurrency_slots where task_key like 'queue:%' group by 1 order by 1;
-- A limit and a serial queue: children keep the place of their tree.
select worker.register_command('serial', 'sq', 'app.run', p_concurrency_limit => 1);
update worker.queue_registry set concurrency_limit = 1 where queue = 'sq';
select count(*) from worker.enqueue_many('serial', array_fill('{"n": 9}'::jsonb, '{30}'));
call worker.process_tasks(p_queue => 'sq');
select count(*) from app.log where n = 9;
select * from worker.reconcile_slots();

-- Another kind: who served the lane before leaves the tasks to those who can run them.
delete from queues.gated;
delete from queues.ready;
delete from queues.timer;
select from worker.register_command('turns', p_handler => 'app.run');
select count(*) from worker.enqueue_many('turns', array_fill('{"n": 1}'::jsonb, '{2}'));
select worker.enqueue('turns', '{"n": 1}', p_scheduled_at => worker.now() + interval '1 minute') is not null as later;
select worker.register_command('turns', p_kind => 'exec', p_program => '/bin/true');
select * from app.lanes;
select count(*) from queues.exchange('default', 10, p_lanes => '{0,1}');
select * from app.lanes;
select count(worker.enqueue('turns', '{"n": 2}')) from generate_series(1, 2);
select task_type, count(*) from queues.exchange('default', 10, p_lanes => '{2,3}') group by 1;
select worker.register_command('turns', p_kind => 'native');
select count(*) from queues.exchange('default', 0, p_done => array(select lease_id from queues.lease_open));
select count(worker.enqueue('turns', '{"n": 3}')) from generate_series(1, 2);
select set_config('worker.fake_now', (worker.now() + interval '2 minutes')::text, false) is not null as later;
select * from app.lanes;
select count(*) from queues.exchange('default', 10, p_lanes => '{0,1,2,3}');
select * from app.lanes;
select 2 * command_id as own from worker.command_registry where command = 'turns' \gset
select task_type, count(*) from queues.exchange('default', 10, p_lanes => array[:own, :own + 1]) group by 1;
