-- What the new looks cost: by index only, on empty tables as on full ones, never a walk
-- over what has ended.
\set VERBOSITY terse
set client_min_messages = warning;
select worker.register_command('told', 't', p_kind => 'native'), worker.register_command('far', 'f', p_kind => 'native', p_on_complete => 'told');
update worker.queue_registry set top_concurrency = null;
select worker.register_worker('w') as w \gset
-- planned while there is nothing
select worker.enqueue('far') as p \gset
select count(*) from queues.exchange('f', 1, :w);
select worker.spawn_task('far', '{}', :p) is not null as child;
select count(*) from queues.exchange('f', 1, :w);
select * from worker.cancel_requests(:w);
-- and used when there is a lot
select count(*) from worker.enqueue_many('far', array(select '{}'::jsonb from generate_series(1, 3000)));
do $$ begin
  for i in 1..30 loop
    perform queues.exchange('f', 100, null, p_done => array(select lease_id from queues.lease_open));
  end loop;
end $$;
select worker.enqueue('far') as p \gset
select queues.exchange('f', 0, p_done => array(select lease_id from queues.lease_open));
-- Rows that index and heap scans have read, of the tables that keep history.
create function pg_temp.reads() returns bigint language sql as $$
  select sum(pg_stat_get_xact_tuples_returned(c.oid) + pg_stat_get_xact_tuples_returned(i.indexrelid))::bigint
    from pg_class c left join pg_index i on i.indrelid = c.oid
   where c.oid in ('queues.task_completed'::regclass, 'queues.lease'::regclass, 'queues.task'::regclass,
                   'queues.lease_open'::regclass, 'queues.attempt_end'::regclass)
$$;
create function pg_temp.cost(p_what text) returns text language plpgsql as $$
declare
  v_before bigint := coalesce(pg_temp.reads(), 0);
begin
  execute p_what;
  return case when pg_temp.reads() - v_before < 200 then 'few' else (pg_temp.reads() - v_before)::text end;
end $$;
begin;
select count(*) from queues.task_completed;
select pg_temp.cost('select count(*) from queues.task_completed') <> 'few' as measured;
-- a parent, claimed; its child, claimed, which looks whether the parent goes on
select pg_temp.cost(format('select from queues.exchange(''f'', 1, %s)', :w)) as claim;
select worker.spawn_task('far', '{}', :p) is not null as child;
select pg_temp.cost(format('select from queues.exchange(''f'', 1, %s)', :w)) as claim_child;
select pg_temp.cost(format('select from worker.cancel_requests(%s)', :w)) as cancel_requests;
select worker.cancel(:p);
select pg_temp.cost(format('select from worker.cancel_requests(%s)', :w)) as cancel_requests;
select pg_temp.cost('select from queues.exchange(''f'', 0, p_done => array(select lease_id from queues.lease_open))') as finish;
select state, count(*) from worker.tasks where id >= :p and command = 'far' group by 1 order by 1;
rollback;
