select count(*) filter (where state = 'completed' and attempt = 1) from pgkin_bench.job
