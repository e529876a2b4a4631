select pg_catalog.has_table_privilege('worker.tasks', 'select')
