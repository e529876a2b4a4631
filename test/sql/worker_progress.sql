-- Progress and waiting, in one session; what others see of it is in
-- test/isolation/specs/progress.spec.
\set VERBOSITY terse
set timezone = 'UTC';
set client_min_messages = warning;
create schema app;
create table app.seen (task bigint, fraction float, message text, reported_at timestamptz, xid xid8);
create procedure app.look(payload jsonb) language plpgsql as $$
declare
  v_before xid8 := pg_current_xact_id_if_assigned();
  v record;
begin
  for v in select * from jsonb_to_recordset(payload -> 'say') x(f float, m text) loop
    perform worker.progress(v.f, v.m);
  end loop;
  insert into app.seen select worker.current_task_id(), p.*, v_before
    from worker.progress_of(worker.current_task_id()) p;
end $$;
create procedure app.wait_for(payload jsonb) language plpgsql as $$
begin
  perform worker.wait(coalesce((payload ->> 'id')::bigint, worker.current_task_id()), '1 s');
end $$;
create procedure app.fan(payload jsonb) language plpgsql as $$
begin
  call worker.spawn('wait_for', jsonb_build_object('id', worker.current_task_id()));
end $$;
select worker.register_command('look', 'app', 'app.look'), worker.register_command('wait_for', 'app', 'app.wait_for'),
       worker.register_command('fan', 'app', 'app.fan'), worker.register_command('outside', 'app', p_kind => 'native');
update worker.queue_registry set top_concurrency = null where queue = 'app';
set client_min_messages = notice;
set application_name = 'mine';

-- ------------------------------------------------------------ handlers in SQL
set worker.fake_now = '2030-01-01 00:00:10+00';
select worker.enqueue('look', p) from unnest(array[
  '{"say": []}', '{"say": [{"f": 0.5}]}', '{"say": [{"f": 0.1, "m": "a"}, {"f": 0.3333333, "m": "b c"}]}',
  '{"say": [{"m": "no number"}]}', '{"say": [{"f": 7}]}', '{"say": [{"f": -7, "m": ""}]}',
  '{"say": [{"f": "NaN", "m": "grün"}]}',
  '{"say": [{"f": 0.5, "m": "a message that is a good deal longer than what a name can hold"}]}']::jsonb[]) p \g /dev/null
call worker.process_tasks(p_queue => 'app');
select task, fraction, message, reported_at from app.seen order by task;
-- The session's name is as it was, and a completed task is all done.
show application_name;
select * from worker.progress_of(3);
-- It writes nothing: a transaction that has said how far it is has no number.
begin;
select set_config('worker.current_task', '3', true);
select worker.progress(0.5, 'half');
select pg_current_xact_id_if_assigned() is null as nothing_written;
show application_name;
commit;
show application_name;
-- A task that ran within the same transaction sees the same.
begin;
select worker.enqueue('look', '{"say": [{"f": 0.25, "m": "quarter"}]}') as id \gset
select worker.drain('app');
select fraction, message from app.seen where task = :id;
show application_name;
rollback;
select worker.progress(0.5);
select * from worker.progress_of(99999);
reset worker.fake_now;

-- ---------------------------------------------------------- handlers elsewhere
select worker.enqueue('outside') as id \gset
select worker.enqueue('outside') as other \gset
select * from worker.progress_of(:id);
select lease_id as lease from queues.exchange('app', 1) \gset
select worker.report_progress(:id, :lease, 0.2, 'one'), worker.report_progress(:other, :lease, 0.2),
       worker.report_progress(:id, :lease + 1000, 0.2);
select fraction, message, reported_at > now() - interval '1 minute' as lately from worker.progress_of(:id);
select worker.report_progress(:id, :lease, 2, repeat('x', 5000));
select fraction, length(message) from worker.progress_of(:id);
select count(*) from worker.progress_report;
select worker.prune_progress();
select count(*) from worker.progress_report;
-- Late: the lease is over.
select count(*) from queues.exchange('app', 0, p_done => array[:lease]);
select worker.report_progress(:id, :lease, 0.9, 'late');
select fraction, length(message) from worker.progress_of(:id);

-- ------------------------------------------------------------------------ wait
select worker.wait(3), worker.wait(3, '0');
select worker.wait(:other, '30 ms') is null as time_is_over, worker.wait(:other, '-1 s') is null as at_once;
select worker.cancel(:other), worker.wait(:other);
select worker.wait(99999);
-- What is not committed cannot run; nor what this transaction holds by its key.
begin;
select worker.enqueue('look') as id \gset
select worker.wait(:id);
rollback;
begin;
do $$ begin
  perform worker.enqueue('look');
exception when others then null;
end $$;
select worker.wait((select max(id) from worker.tasks));
rollback;
select worker.enqueue('look', p_dedup_key => 'k') as id \gset
begin;
select worker.enqueue('look', p_dedup_key => 'k') = :id as merged;
select worker.wait(:id);
rollback;
begin;
select worker.enqueue('look', p_dedup_key => 'k', p_merge => 'replace') = :id as merged;
select worker.wait(:id);
rollback;
-- Another one of this transaction is no reason to refuse.
begin;
select worker.enqueue('look') > 0;
select worker.wait(:id, '10 ms') is null as refused_not;
-- Nor is one that has ended in it.
select worker.cancel(:id), worker.wait(:id);
rollback;
select worker.cancel(:id);
begin isolation level repeatable read;
select worker.wait(3);
rollback;
-- A handler waits neither for itself nor for what must wait for it.
select worker.enqueue('wait_for') as id \gset
select worker.enqueue('fan') as fan \gset
select worker.drain('app');
select command, state, split_part(error, e'\n', 1) as error from worker.tasks where id >= :id order by id;
-- It can be canceled.
select worker.enqueue('outside') as id \gset
set statement_timeout = '50ms';
select worker.wait(:id);
