select case when count(*) = 0 then 'ok' else 'warn' end,
       case when count(*) = 0 then 'all four are there, and may use the schema'
            else string_agg(r.problem, ', ' order by r.name) end,
       'run pgkin migrate as somebody who may create roles'
  from (select n.name,
               case when p.oid is null then n.name || ' is missing'
                    else n.name || ' may not use the schema' end as problem
          from unnest('{worker_service_user,worker_enqueuer,worker_monitor,worker_admin}'::text[]) n(name)
          left join pg_catalog.pg_roles p on p.rolname = n.name
         where p.oid is null or not pg_catalog.has_schema_privilege(p.oid, 'worker', 'usage')) r
