-- One round trip of a worker: ends what it has finished and claims the next.
-- A row without a task_type is a refusal: of a task, or without a task_id of a
-- whole lease, that was no longer the caller's to end.
select lease_id, task_id, attempt, task_type, payload, headers, parent_id, group_key,
       scheduled_at
from queues.exchange(
  $1::text, $2::integer, $3::bigint, $4::integer, $5::bigint[],
  $6::bigint[], $7::bigint[], $8::text[], $9::text[], $10::jsonb[], $11::real[])
