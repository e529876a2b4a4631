-- PUBLIC has nothing. A routine without an acl has the default one: everybody may
-- execute it. What runs with the caller's own rights does no harm by that.
with ours as (
  select n.oid, n.nspname, n.nspacl from pg_catalog.pg_namespace n
   where n.nspname in ('queues', 'worker', 'internal')),
open as (
  select 'schema ' || o.nspname as what, true as harmful from ours o
   where exists (select from aclexplode(o.nspacl) a where a.grantee = 0)
  union all
  select 'table ' || c.oid::regclass, true
    from ours o join pg_catalog.pg_class c on c.relnamespace = o.oid
   where exists (select from aclexplode(c.relacl) a where a.grantee = 0)
  union all
  select p.oid::regprocedure::text, p.prosecdef
    from ours o join pg_catalog.pg_proc p on p.pronamespace = o.oid
   where p.proacl is null or exists (select from aclexplode(p.proacl) a where a.grantee = 0))
select case when bool_or(harmful) then 'fail' when count(*) > 0 then 'warn' else 'ok' end,
       case when count(*) = 0 then 'PUBLIC has no rights'
            else 'PUBLIC has rights on ' || count(*) || ': '
                 || array_to_string((array_agg(what order by harmful desc, what))[1:5], ', ')
                 || case when count(*) > 5 then ', …' else '' end end,
       'run pgkin migrate, or revoke them'
  from open
