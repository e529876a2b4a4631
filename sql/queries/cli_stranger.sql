-- Is the schema there, but closed to this user?
select to_regnamespace('worker') is not null
       and not pg_catalog.has_schema_privilege('worker', 'usage')
