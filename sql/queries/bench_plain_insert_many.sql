insert into pgkin_bench.plain (command, payload, priority, run_at, created_at)
select 'bench_noop', p, 0, now(), now() from unnest($1::jsonb[]) p
