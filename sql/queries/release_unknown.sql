-- Hands back what was leased to this worker by a claim whose answer it never got.
select worker.release_unknown($1::bigint, $2::bigint[])
