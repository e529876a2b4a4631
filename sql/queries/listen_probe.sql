select pg_notify('worker_status', $1::text)
