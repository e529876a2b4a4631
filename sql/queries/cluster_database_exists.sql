-- Whether the private cluster already has its database.
select exists (select from pg_catalog.pg_database where datname = 'pgkin');
