select pg_catalog.to_regclass('worker.slot_problem') is not null
