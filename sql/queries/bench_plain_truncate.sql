truncate pgkin_bench.plain
