select worker.register_worker($1::text, $2::text, $3::integer)
