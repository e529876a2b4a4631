-- One round trip of a worker: ends what it has finished and claims the next.
-- A row without a task_type is a refusal: of a task, or without a task_id of a
-- whole lease, that was no longer the caller's to end; one without anything says
-- that there is more, and that a limit holds it back.
select lease_id, task_id, attempt, task_type, payload, headers
from queues.exchange(
  $1::text, $2::integer, $3::bigint, $4::integer, $5::bigint[],
  p_done_durations => $6::real[],
  p_lease_ids => $7::bigint[], p_task_ids => $8::bigint[], p_outcomes => $9::text[],
  p_errors => $10::text[], p_results => $11::jsonb[], p_durations => $12::real[],
  p_delays => $13::real[], p_lanes => $14::integer[])
union all
select null, null, null, null, null, null
 where current_setting('worker.held_back', true) = 'on'
