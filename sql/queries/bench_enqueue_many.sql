select count(*) from queues.enqueue_many('bench_noop', $1::jsonb[])
