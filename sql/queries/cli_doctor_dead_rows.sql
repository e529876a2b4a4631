select case when count(*) = 0 then 'ok' else 'warn' end,
       case when count(*) = 0 then 'no table has many'
            else string_agg(format('%I.%I has %s dead rows and %s others', d.schemaname, d.relname,
                                   d.n_dead_tup, d.n_live_tup), '; ' order by d.n_dead_tup desc) end,
       'autovacuum is behind, or an old snapshot holds it back'
  from pg_catalog.pg_stat_user_tables d
 where d.schemaname in ('queues', 'worker')
   and d.n_dead_tup > 100000 and d.n_dead_tup > d.n_live_tup / 2
