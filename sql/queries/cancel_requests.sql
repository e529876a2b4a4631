-- Tasks that this worker holds and that were asked to stop.
select lease_id, task_id, reason from worker.cancel_requests($1::bigint)
