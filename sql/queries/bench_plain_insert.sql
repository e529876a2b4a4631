insert into pgkin_bench.plain (command, payload, priority, run_at, created_at)
values ('bench_noop', $1::jsonb, 0, now(), now())
