select queues.enqueue('bench_noop', $1::jsonb)
