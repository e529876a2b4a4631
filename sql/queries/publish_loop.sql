-- Tells producers how the loop of a queue is: 0 running, 1 idle, 2 scheduled,
-- 3 saturated. The cell is not transactional, so there is nothing to wait for
-- at the commit.
select set_config('synchronous_commit', 'off', true),
       worker.publish_loop($1::integer, $2::integer)
