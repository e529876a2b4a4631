truncate pgkin_bench.job
