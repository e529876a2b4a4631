-- What keeps single claims and serial queues from walking over what is over.
\set VERBOSITY terse
select worker.register_command('outside', p_kind => 'native');
-- Tasks taken one by one out of bundles leave dead versions: generations close.
select count(*) from worker.enqueue_many('outside', array_fill('{}'::jsonb, array[3000]));
select count(distinct generation) from queues.ready;
do $$
begin
  for i in 1..3000 loop
    perform from queues.exchange('default', 1);
  end loop;
end $$;
select pg_sequence_last_value('queues.q1_generation') > 1 as closed, count(*) as left_over
  from queues.ready;

-- A serial queue: ended leases are left behind, the one in force is counted.
insert into worker.queue_registry (queue) values ('line');
select worker.register_command('step', 'line', p_kind => 'native');
create view line as
  select queue_id, pg_sequence_last_value(('queues.q' || queue_id || '_top_floor')::regclass) as floor
    from worker.queue_registry where queue = 'line';
create function free(p_times int) returns table (places int) language sql as $$
  select distinct queues.free_places(queue_id, 1) from line, generate_series(1, p_times)
$$;
do $$
declare
  v_lease bigint;
begin
  for i in 1..20 loop
    perform worker.enqueue('step');
    select lease_id into strict v_lease from queues.exchange('line', 5);
    perform from queues.exchange('line', 0, p_done => array[v_lease]);
  end loop;
end $$;
select places from free(1000);
select floor = pg_sequence_last_value('queues.lease_id_seq') as at_the_end from line;
select worker.enqueue('step') is not null, worker.enqueue('step') is not null;
select count(*) from queues.exchange('line', 5);
select places from free(1000);
select floor <= (select min(lease_id) from queues.lease_open where top) as below from line;
select count(*) from queues.exchange('line', 5);
