-- From the catalogue, which everybody may read, so that a missing schema and
-- missing rights are different things.
select exists (
  select
  from pg_catalog.pg_class c
  join pg_catalog.pg_namespace n on n.oid = c.relnamespace
  where n.nspname = 'worker' and c.relname = 'schema_migration' and c.relkind = 'r'
)
