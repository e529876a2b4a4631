-- Ends what a run has left unfinished. What was asked stays on record, as
-- canceled, until retention removes it.

select worker.stop_worker(w.worker_id)
from worker.worker w
where w.name = 'pgkin bench' and w.stopped_at is null;

with q as materialized (
  select queue_id from worker.queue_registry where queue = 'bench'),
ready as (
  delete from queues.ready r using q where r.queue_id = q.queue_id
  returning r.queue_id, r.attempts, r.task_ids),
timer as (
  delete from queues.timer t using q where t.queue_id = q.queue_id
  returning t.queue_id, t.attempts, t.task_ids)
insert into queues.task_completed (task_id, completed_at, queue_id, state, attempt, reason)
select unnest(s.task_ids), worker.now(), s.queue_id, 'canceled', s.attempts, 'pgkin bench'
from (select * from ready union all select * from timer) s;
