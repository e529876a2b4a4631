-- One benchmark at a time in a database; held by the session.
select pg_try_advisory_lock(1885825643, 1)
