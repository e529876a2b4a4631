-- $1 task id: where it is, and whether it was asked to stop
select t.state, exists (select from queues.cancel_request r where r.task_id = t.id) as asked
  from worker.tasks t where t.id = $1::bigint
