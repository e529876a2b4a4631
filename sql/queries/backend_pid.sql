-- Who really answers: behind a pooler not the one that was connected to.
select pg_backend_pid()
