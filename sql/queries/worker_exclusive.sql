-- Only one session of this database can have it.
select pg_try_advisory_lock(8101694254662811648)
