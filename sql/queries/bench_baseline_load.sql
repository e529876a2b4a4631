insert into pgkin_bench.job (command, payload)
select 'bench_noop', p from unnest($1::jsonb[]) p
