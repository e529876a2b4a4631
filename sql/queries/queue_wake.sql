-- Says whether producers are to send a notification: 1 before going to sleep,
-- 0 when awake. The cell is not transactional, so there is nothing to wait for
-- at the commit.
select set_config('synchronous_commit', 'off', true),
       setval(('queues.q' || $1::integer || '_wake')::regclass, $2::bigint)
