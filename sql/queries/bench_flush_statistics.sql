-- From PostgreSQL 15 on.
select pg_stat_force_next_flush()
