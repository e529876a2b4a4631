select case when current_setting('autovacuum')::boolean and current_setting('track_counts')::boolean
             and o.n = 0 then 'ok' else 'fail' end,
       case when not current_setting('autovacuum')::boolean then 'autovacuum is off'
            when not current_setting('track_counts')::boolean
              then 'track_counts is off, so autovacuum does nothing'
            when o.n > 0 then 'autovacuum is off for ' || o.which
            else 'on' end,
       'without it the tables grow without end'
  from (select count(*) as n, string_agg(c.oid::regclass::text, ', ') as which
          from pg_catalog.pg_class c
          join pg_catalog.pg_namespace n on n.oid = c.relnamespace
         where n.nspname in ('queues', 'worker')
           and exists (select from unnest(c.reloptions) r
                        where r ~* '^autovacuum_enabled=(off|false|no|0)$')) o
