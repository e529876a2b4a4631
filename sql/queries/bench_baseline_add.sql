insert into pgkin_bench.job (command, payload) values ('bench_noop', $1::jsonb)
