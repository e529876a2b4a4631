select worker.set_listening($1::bigint, $2::boolean)
