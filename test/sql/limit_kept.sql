-- Slots that a worker goes on with from one lease to the next: their row stays as it is,
-- and is found whatever ends that: a part of the tasks, a lost worker, a limit that
-- changes, tasks of another command.
\set VERBOSITY terse
set worker.fake_now = '2030-01-01 12:00:00+00';
set client_min_messages = warning;
create schema app;
create view app.state as
  select h.task_key, h.lease_id as named, r.lease_id as holder, r.task_ids,
         (select count(*) from worker.slot_problem) as problems
    from queues.slot_held h join queues.slot_holder r using (task_key, slot_groups) order by 1, 2;
create view app.used as
  select task_key, sum(used) as used from worker.concurrency_slots group by 1 having sum(used) > 0 order by 1;
create function app.go(p_want int) returns text language sql as $$
  select string_agg(e.task_type || e.task_id, ' ')
    from queues.exchange('default', p_want, p_done => array(select lease_id from queues.lease_open)) e
$$;
select from worker.register_command('a', p_kind => 'http', p_url => 'http://x/', p_concurrency_limit => 3);
select from worker.register_command('b', p_kind => 'http', p_url => 'http://x/', p_concurrency_limit => 2);
select count(*) from worker.enqueue_many('a', array_fill('{}'::jsonb, '{40}'));
select app.go(2), app.go(2), app.go(2);
select * from app.state;
select task_key, used, holders -> 0 ->> 'task' as task, holders -> 0 ->> 'lease' as lease
  from worker.slot_usage where used > 0;
select worker.explain_task(20);
-- A part of them, then the rest.
select count(*) from queues.exchange('default', 0, p_lease_ids => '{3}', p_task_ids => '{5}', p_outcomes => '{completed}');
select * from app.state;
select app.go(2);
select * from app.state;
-- Less, more, and as many again.
select app.go(1);
select * from app.state;
select app.go(3);
select * from app.state;
select app.go(3);
select * from app.state;
select app.go(9);
select * from app.used;
-- Lost, and nobody is charged twice.
select app.go(2), app.go(2);
select queues.lose_lease(max(lease_id), worker.now()) from queues.lease_open;
select * from app.state;
select app.go(1), app.go(1);
-- What may be above another limit is given back before anything is taken.
select app.go(2), app.go(2);
select * from app.state;
update worker.command_registry set concurrency_limit = 1 where command = 'a';
select app.go(2), app.go(2);
select * from app.state;
update worker.command_registry set concurrency_limit = 3 where command = 'a';
-- Two keys at once: neither is forgotten, neither is kept for the other.
select app.go(2), app.go(2);
select count(*) from worker.enqueue_many('b', array_fill('{}'::jsonb, '{9}'), p_priority => -1);
select count(*) from queues.exchange('default', 2);
select * from app.used;
select app.go(2);
select * from app.used;
select app.go(2);
select * from app.state;
select app.go(3);
select * from app.used;
-- Nothing is handed out, or nobody asks.
select from worker.pause('default');
select app.go(2);
select * from app.used;
select from worker.resume('default');
select app.go(2), app.go(2);
select app.go(0);
select * from app.used;
-- A limit that was gone for a while finds what runs, once.
select app.go(2), app.go(2);
select * from app.state;
update worker.command_registry set concurrency_limit = null where command = 'a';
update worker.command_registry set concurrency_limit = 3 where command = 'a';
select * from app.used;
select app.go(0);
select count(*) from queues.slot_held;
select * from worker.slot_problem;

-- What claims are told of a command may be out of date: then the registry counts.
insert into worker.queue_registry (queue, top_concurrency) values ('other', null);
select from worker.register_command('c', 'other', p_kind => 'http', p_url => 'http://x/', p_group_concurrency_limit => 1);
select count(*) from worker.enqueue_many('c', array_fill('{}'::jsonb, '{4}'), p_group_key => 'k');
delete from queues.gated where strays_since is not null;
update queues.gated set simple = true;
select count(*) from queues.exchange('other', 4);
select c.command, g.simple from queues.gated g join worker.command_registry c using (command_id) where c.command = 'c';
select count(*) from queues.exchange('other', 4);
select count(*) from queues.exchange('other', 4);
select from worker.register_command('d', 'other', p_kind => 'http', p_url => 'http://x/', p_concurrency_limit => 5);
select worker.enqueue('d') is not null as added;
delete from queues.gated g using worker.command_registry c where c.command_id = g.command_id and c.command = 'c';
update queues.gated set shared_lane = 0;
select count(*) from queues.exchange('other', 4, p_lanes => '{0,1}');
select distinct c.command, g.shared_lane from queues.gated g join worker.command_registry c using (command_id) where c.command = 'd';
select count(*) from queues.exchange('other', 4, p_lanes => '{2,3}');

-- Among tasks without a limit: those under it hold the slots, and no others.
insert into worker.queue_registry (queue, top_concurrency) values ('mixed', null);
select from worker.register_command('m', 'mixed', p_kind => 'http', p_url => 'http://x/', p_concurrency_limit => 2);
select from worker.register_command('f', 'mixed', p_kind => 'http', p_url => 'http://x/');
create function app.mix(p_want int) returns text language sql as $$
  select string_agg(e.task_type || e.task_id, ' ')
    from queues.exchange('mixed', p_want, p_done => array(
           select o.lease_id from queues.lease_open o join worker.queue_registry q using (queue_id)
            where q.queue = 'mixed')) e
$$;
create function app.part(p_task_id bigint) returns bigint language sql as $$
  select count(*) from queues.exchange('mixed', 0,
    p_lease_ids => array(select l.lease_id from queues.lease l join queues.lease_open using (lease_id)
                          where p_task_id = any(l.task_ids)),
    p_task_ids => array[p_task_id], p_outcomes => '{completed}')
$$;
do $$ begin
  for i in 0..29 loop perform worker.enqueue(case when i % 5 < 3 then 'f' else 'm' end); end loop;
end $$;
select app.mix(5), app.mix(5), app.mix(5);
select * from app.state where task_key = 'm';
select h ->> 'task' as task from worker.slot_usage, jsonb_array_elements(holders) h where task_key = 'm';
-- A part: one without a limit, one with it; then the rest.
select app.part((select (task_ids)[1] - 1 from app.state where task_key = 'm'));
select * from app.state where task_key = 'm';
select app.part((select (task_ids)[1] from app.state where task_key = 'm'));
select * from app.state where task_key = 'm';
select app.mix(5), app.mix(5);
select * from app.state where task_key = 'm';
-- Lost, then all of it again, and to the end.
select queues.lose_lease(max(lease_id), worker.now()) from queues.lease_open;
select * from app.state where task_key = 'm';
select app.mix(5), app.mix(5), app.mix(5), app.mix(5), app.mix(5);
select count(*) from queues.slot_held where task_key = 'm';
select * from worker.slot_problem;
