-- Retention: whole trees, after the time of their command, in bounded batches.
\set VERBOSITY terse
\pset null '-'
set worker.fake_now = '2030-01-01 00:00:00+00';
create view kept as
  select (select array_agg(task_id order by task_id) from queues.task) as tasks,
         (select count(*) from queues.task_completed) as completed,
         (select count(*) from queues.attempt_end) as ends,
         (select count(*) from queues.error) as errors,
         (select count(*) from queues.lease) as leases;
-- Runs what is ready, each task in a lease of its own; those in p_fail fail.
create procedure run_all(p_fail bigint[] default '{}') language plpgsql as $$
declare
  v_task record;
begin
  loop
    select * into v_task from queues.exchange('default', 1);
    exit when not found;
    perform from queues.exchange('default', 0, p_lease_ids => array[v_task.lease_id],
      p_task_ids => array[v_task.task_id],
      p_outcomes => array[case when v_task.task_id = any(p_fail) then 'failed' else 'completed' end]);
  end loop;
end $$;
update worker.command_registry set retain_completed = '1 day', retain_failed = '3 days'
 where command = 'email';
update worker.command_registry set retain_completed = '2 days', retain_failed = '2 days'
 where command = 'sms';

select queues.add_task('email', '{}') from generate_series(1, 3);   -- 1-3; 3 fails
select queues.add_task('sms', '{}');                                -- 4
call run_all('{3}');
select * from kept;
select queues.remove_expired(0);
select queues.remove_expired(null);
select queues.remove_expired(100001);
set worker.fake_now = '2030-01-02 00:00:00+00';
select queues.remove_expired();
set worker.fake_now = '2030-01-02 00:00:00.001+00';
select queues.remove_expired();
select * from kept;
set worker.fake_now = '2030-01-03 00:00:00.001+00';
select queues.remove_expired();
select * from kept;
set worker.fake_now = '2030-01-04 00:00:00.001+00';
select queues.remove_expired();
-- Leases stay for as long as any command may keep a task (30 days are the default).
select * from kept;
set worker.fake_now = '2030-01-31 00:00:00+00';
select queues.remove_expired();
select * from kept;
set worker.fake_now = '2030-01-31 00:00:00.001+00';
select queues.remove_expired();
select * from kept;
update worker.command_registry set retain_completed = '1 day', retain_failed = '1 day';

-- Trees. 5: ended whole. 8: a grandchild has not ended. 12: its child is newer
-- than the others by days.
update worker.command_registry set allow_nested = true where command = 'email';
select queues.add_task('email', '{}');
select queues.add_task('email', '{}', p_parent_id => 5), queues.add_task('email', '{}', p_parent_id => 5);
select queues.add_task('email', '{}');
select queues.add_task('email', '{}', p_parent_id => 8);
select queues.add_task('email', '{}', p_parent_id => 9),
       queues.add_task('email', '{}', p_parent_id => 9, p_scheduled_at => '2030-03-01');
select queues.add_task('email', '{}');
select queues.add_task('email', '{}', p_parent_id => 12, p_scheduled_at => '2030-02-03');
call run_all('{6}');
select task_id, state from queues.task_completed order by 1;
set worker.fake_now = '2030-02-02 00:00:00+00';
select queues.remove_expired();
select * from kept;
set worker.fake_now = '2030-02-03 00:00:00+00';
call run_all();
set worker.fake_now = '2030-02-03 23:59:00+00';
select queues.remove_expired();
set worker.fake_now = '2030-02-04 00:00:01+00';
select queues.remove_expired();
select * from kept;
-- A parent that failed while a child of it still runs is not taken from under it.
begin;
update worker.command_registry set retain_failed = '0' where command = 'email';
select queues.add_task('email', '{}');
create temp table parent as select x.* from queues.exchange('default', 1) x;
select queues.add_task('email', '{}', p_parent_id => task_id) from parent;
select count(*) from queues.exchange('default', 1);
select x.event from parent p, queues.exchange('default', 0, p_lease_ids => array[p.lease_id],
  p_task_ids => array[p.task_id], p_outcomes => '{failed}') x;
set local worker.fake_now = '2030-02-04 00:00:02+00';
select queues.remove_expired();
select count(*) from queues.task where task_id > 13;
rollback;
set worker.fake_now = '2030-03-01 00:00:00+00';
call run_all();
set worker.fake_now = '2030-03-03 00:00:00+00';
select queues.remove_expired();
select * from kept;

-- Bounded: one page a call, in order, round and round; what is unfinished is passed.
select count(*) from queues.enqueue_many('email', array_fill('{}'::jsonb, '{25}'), null);
select count(*) from queues.exchange('default', 10);
call run_all();
set worker.fake_now = '2030-03-05 00:00:00+00';
select queues.remove_expired(10) from generate_series(1, 5);
select count(*) from queues.task;
select event from queues.exchange('default', 0, p_done => (select array_agg(lease_id) from queues.lease_open));
set worker.fake_now = '2030-03-07 00:00:00+00';
select queues.remove_expired(4) from generate_series(1, 5);
select * from kept;
-- Also the lease that was open when its time came is gone.
select count(*) from queues.lease_open;
select count(*) from queues.retention_pass;
