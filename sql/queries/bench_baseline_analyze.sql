analyze pgkin_bench.job
