-- Who keeps dead rows from being removed, by the age of what they hold in
-- transactions. pgkin stays quick meanwhile, but its tables grow. Sessions of
-- other databases do not matter to them.
with holders as (
  select format('session %s of user %s (%s, %s) for %s', a.pid, coalesce(a.usename, '?'),
                coalesce(nullif(a.application_name, ''), 'no name'), coalesce(a.state, a.backend_type),
                date_trunc('second', clock_timestamp() - a.xact_start)) as who,
         greatest(age(a.backend_xmin), age(a.backend_xid)) as age,
         clock_timestamp() - a.xact_start > interval '10 minutes' as long
    from pg_catalog.pg_stat_activity a
   where a.pid <> pg_backend_pid() and coalesce(a.backend_xmin, a.backend_xid) is not null
     and (a.datname = current_database() or a.datname is null)
  union all
  select format('prepared transaction "%s" of user %s for %s', p.gid, p.owner,
                date_trunc('second', clock_timestamp() - p.prepared)),
         age(p.transaction), clock_timestamp() - p.prepared > interval '10 minutes'
    from pg_catalog.pg_prepared_xacts p
  union all
  select format('replication slot "%s"%s', s.slot_name,
                case when s.active then '' else ', which nobody uses' end),
         greatest(age(s.xmin), age(s.catalog_xmin)), not s.active
    from pg_catalog.pg_replication_slots s
   where coalesce(s.xmin, s.catalog_xmin) is not null),
-- Others' sessions are shown only to those who may see them.
blind as (
  select not (pg_catalog.pg_has_role('pg_read_all_stats', 'member')
              or (select r.rolsuper from pg_catalog.pg_roles r
                   where r.rolname = current_user)) as blind),
oldest as (
  select h.* from holders h order by h.long desc, h.age desc nulls last limit 1)
select case when o.long then 'warn' else 'ok' end,
       coalesce('the oldest is held by ' || o.who || ', ' || o.age || ' transactions back',
                'nobody holds an old one')
         || case when b.blind then ' (sessions of others are hidden from this user)' else '' end,
       case when o.long then 'end it; meanwhile tables grow'
            when b.blind then 'grant pg_read_all_stats to see them' end
  from blind b left join oldest o on true
