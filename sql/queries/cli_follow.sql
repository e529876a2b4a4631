-- $1 task id
select t.state in ('completed', 'failed', 'canceled') as ended, t.state, t.result, t.error,
       row_to_json(t)
  from (select id, command, state, attempt, result, error from worker.tasks
         where id = $1::bigint) t
