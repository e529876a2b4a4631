-- examples/send_email.sql from end to end, with the worker's rights, a clock of
-- our own, and a provider that does what app.weather says.
\set VERBOSITY terse
\pset null '-'
set client_min_messages = warning;
set worker.fake_now = '2030-01-01 12:00:00+00';
\set ECHO none
\o /dev/null
\i ../../examples/send_email.sql
\o
\set ECHO all
create schema app;
create table app.weather (fails boolean);
create table app.call (at timestamptz default worker.now(), command text, payload jsonb);
insert into app.weather values (false);
create function app.note_call(p_command text, p_payload jsonb) returns boolean
language sql security definer as $$
  insert into app.call (command, payload) values (p_command, p_payload)
    returning (select fails from app.weather) $$;
-- What the worker does: SQL tasks, then those of channels, until nothing is due.
create procedure app.work() language plpgsql as $$
declare
  v_task record;
  v_begin jsonb;
  v_ran int;
begin
  loop
    v_ran := worker.drain();
    for v_task in select * from queues.exchange('default', 10, p_lanes => '{2,3}') loop
      v_ran := v_ran + 1;
      v_begin := worker.channel_begin(v_task.lease_id, v_task.task_id);
      continue when v_begin ->> 'do' <> 'call';
      if app.note_call(v_task.task_type, v_begin -> 'payload') then
        perform worker.channel_failed(v_task.lease_id, v_task.task_id, '451 try later');
      else
        perform worker.channel_succeeded(v_task.lease_id, v_task.task_id, '{"id": "x"}');
      end if;
    end loop;
    exit when v_ran = 0;
  end loop;
end $$;
grant usage on schema app to worker_service_user;

-- Nothing is started for what is not there.
select comms.send_email(99), comms.send_email(null), comms.send_sms(99);
select count(*) from worker.tasks;

-- It works.
select comms.send_email(1), comms.send_email(1);
select id, command, payload, scheduled_at from worker.tasks;
set role worker_service_user;
call app.work();
reset role;
select command, jsonb_pretty(payload) from app.call;
select id, command, state, payload, result from worker.tasks order by id;
select * from comms.send_email_task;
select * from comms.send_email_attempt;
select * from comms.send_email_attempt_succeeded;
-- The next look finds it done, and that is the end.
set worker.fake_now = '2030-01-01 12:01:00+00';
set role worker_service_user;
call app.work();
reset role;
select id, state, result from worker.tasks where id > 2 order by id;
select comms.send_email(1), count(*) from worker.tasks;
select comms.is_send_email_stuck(1);

-- It does not work for a while: 1, 2, 4 minutes.
truncate app.call;
update app.weather set fails = true;
insert into comms.email_message (from_address, to_address, subject) values ('a@b', 'c@d', 'again');
select comms.send_email(2);
create procedure app.minutes(p_n int) language plpgsql as $$
begin
  for i in 1..p_n loop
    set local role worker_service_user;
    call app.work();
    reset role;
    perform set_config('worker.fake_now', (worker.now() + interval '1 minute')::text, false);
  end loop;
end $$;
call app.minutes(4);
update app.weather set fails = false;
call app.minutes(10);
select at, payload ->> 'message_id' as message_id from app.call;
select a.send_email_attempt_id, a.created_at, f.error_message, s.created_at as succeeded_at
  from comms.send_email_task t join comms.send_email_attempt a using (send_email_task_id)
  left join comms.send_email_attempt_failed f using (send_email_attempt_id)
  left join comms.send_email_attempt_succeeded s using (send_email_attempt_id)
 where t.email_message_id = 2 order by 1;
select comms.count_send_email_attempts(t.send_email_task_id) as attempts,
       comms.count_send_email_failed_attempts(t.send_email_task_id) as failed,
       comms.has_send_email_succeeded_attempt(t.send_email_task_id) as succeeded,
       comms.is_send_email_stuck(2) as stuck
  from comms.send_email_task t where t.email_message_id = 2;
select count(*) from worker.tasks where state not in ('completed', 'failed');

-- It never works: three times, then it is given up and stays so.
truncate app.call;
update app.weather set fails = true;
select comms.send_sms(1);
call app.minutes(10);
select at, command, payload from app.call;
select comms.is_send_sms_stuck(1), comms.count_send_sms_failed_attempts(1);
select error_message from comms.send_sms_task_failed;
select comms.send_sms(1);
call app.minutes(2);
select count(*) from app.call;
select count(*) from worker.tasks where state not in ('completed', 'failed');

-- The message is gone: nothing is sent, and the reason is kept.
truncate app.call;
insert into comms.email_message (from_address, to_address, subject) values ('a@b', 'c@d', 'gone');
alter table comms.send_email_task drop constraint send_email_task_email_message_id_fkey;
select comms.send_email(3);
delete from comms.email_message where email_message_id = 3;
call app.minutes(20);
select count(*) from app.call;
select f.error_message from comms.send_email_attempt_failed f
  join comms.send_email_attempt a using (send_email_attempt_id)
  join comms.send_email_task t using (send_email_task_id) where t.email_message_id = 3;
select comms.is_send_email_stuck(3);
