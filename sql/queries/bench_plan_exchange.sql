-- Ends these leases and claims the next tasks, as a worker does. Its leases are
-- those of the tasks it has got.
select array_agg(distinct x.lease_id), count(*)
from queues.exchange('bench', $1::integer, $2::bigint, pg_backend_pid(), $3::bigint[]) x
