select pg_catalog.to_regprocedure('worker.reconcile_slots()') is not null
