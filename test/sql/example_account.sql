-- examples/account_deletion.sql from end to end: the happy path, a file that
-- cannot be deleted, an account that cannot be anonymised.
\set VERBOSITY terse
\pset null '-'
set client_min_messages = warning;
set worker.fake_now = '2030-01-01 12:00:00+00';
\set ECHO none
\o /dev/null
\i ../../examples/account_deletion.sql
\o
\set ECHO all
create schema app;
create table app.weather (fails text);
create table app.call (at timestamptz default worker.now(), payload jsonb);
create function app.note_call(p_payload jsonb) returns boolean language sql security definer as $$
  insert into app.call (payload) values (p_payload)
    returning coalesce(p_payload ->> 'object_key' like (select fails from app.weather), false) $$;
create procedure app.minutes(p_n int) language plpgsql as $$
declare
  v_task record;
  v_begin jsonb;
  v_ran int;
begin
  for i in 1..p_n loop
    set local role worker_service_user;
    loop
      v_ran := worker.drain();
      for v_task in select * from queues.exchange('default', 10, p_lanes => '{2,3}') loop
        v_ran := v_ran + 1;
        v_begin := worker.channel_begin(v_task.lease_id, v_task.task_id);
        continue when v_begin ->> 'do' <> 'call';
        if app.note_call(v_begin -> 'payload') then
          perform worker.channel_failed(v_task.lease_id, v_task.task_id, 'HTTP 403');
        else
          perform worker.channel_succeeded(v_task.lease_id, v_task.task_id);
        end if;
      end loop;
      exit when v_ran = 0;
    end loop;
    reset role;
    perform set_config('worker.fake_now', (worker.now() + interval '1 minute')::text, false);
  end loop;
end $$;
grant usage on schema app to worker_service_user;

-- The happy path.
select api.request_account_deletion(99);
select api.request_account_deletion(1);
select api.request_account_deletion(1);
select account_id, flag from accounts.account_flag;
select * from accounts.account_deletion_task;
select count(*) from worker.tasks;
call app.minutes(1);
select payload from app.call order by payload;
select file_id, metadata from files.file_metadata order by file_id;
select * from accounts.account_deletion_task_succeeded;
call app.minutes(4);
select f.file_id, files.has_file_deletion_succeeded_attempt(f.file_deletion_task_id)
  from files.file_deletion_task f order by 1;
select account_id, flag from accounts.account_flag order by flag;
select * from accounts.account;
select * from accounts.account_deletion_task_succeeded;
select * from accounts.account_deletion_task_failed;
select count(*) from worker.tasks where state not in ('completed', 'failed');

-- A file that cannot be deleted.
truncate app.call;
insert into app.weather values ('2/bad%');
insert into accounts.account (name, email) values ('Bob', 'bob@example.org');
insert into files.file (account_id, bucket, object_key)
  values (2, 'recordings', '2/good.ogg'), (2, 'recordings', '2/bad.ogg');
select api.request_account_deletion(2);
call app.minutes(12);
select at, payload ->> 'object_key' as object_key from app.call order by at, object_key;
select f.object_key, files.is_file_deletion_stuck(f.file_id),
       files.count_file_deletion_failed_attempts(t.file_deletion_task_id) as failures
  from files.file f join files.file_deletion_task t using (file_id) where account_id = 2 order by 1;
select * from accounts.account_deletion_task_failed;
select * from accounts.account where account_id = 2;
select account_id, flag from accounts.account_flag where account_id = 2;
select count(*) from worker.tasks where state not in ('completed', 'failed');

-- An account that cannot be anonymised: what the attempt did is undone, and the
-- attempt is counted.
create function accounts.refuse() returns trigger language plpgsql as $$
begin raise exception 'accounts are read-only today'; end $$;
create trigger refuse before update on accounts.account for each row execute function accounts.refuse();
insert into accounts.account (name, email) values ('Eve', 'eve@example.org');
select api.request_account_deletion(3);
call app.minutes(12);
select a.created_at, f.error_message from accounts.account_anonymization_attempt a
  join accounts.account_anonymization_task t using (account_anonymization_task_id)
  join accounts.account_anonymization_attempt_failed f using (account_anonymization_attempt_id)
 where t.account_id = 3 order by 1;
select accounts.is_account_anonymization_stuck(3);
select account_deletion_task_id, error_message from accounts.account_deletion_task_failed order by 1;
select account_id, flag from accounts.account_flag where account_id = 3;
select count(*) from worker.tasks where state not in ('completed', 'failed');
