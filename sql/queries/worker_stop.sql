-- Returns how many tasks it still held.
select worker.stop_worker($1::bigint)
