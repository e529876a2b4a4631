-- Runs tasks of a queue whose handlers are SQL, for a while.
call worker.run_fiber($1::bigint, $2::text, $3::text, $4::integer, null, null, null)
