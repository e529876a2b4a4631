-- $1 queue, $2 milliseconds or null
select worker.pause($1::text, $2::bigint * interval '1 millisecond')
