-- $1 task id, $2 reason
select worker.cancel($1::bigint, $2::text)
