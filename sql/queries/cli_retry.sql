-- $1 task id
select worker.retry($1::bigint)
