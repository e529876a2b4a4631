-- What pg_dump holds: a snapshot, and a lock on every table, so that nothing
-- can be truncated meanwhile.
set idle_in_transaction_session_timeout = 0;
begin isolation level repeatable read, read only;
do $$
declare
  v_table regclass;
begin
  for v_table in
    select c.oid from pg_class c
     where c.relkind in ('r', 'p')
       and c.relnamespace in (select n.oid from pg_namespace n
                               where n.nspname in ('queues', 'worker', 'pgkin_bench'))
     order by c.oid
  loop
    execute format('lock table %s in access share mode', v_table);
  end loop;
end
$$;
