-- $1 queue
select worker.resume($1::text)
