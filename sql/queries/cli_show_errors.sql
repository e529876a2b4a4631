-- $1 task id: the last of its errors, in order
select e.created_at, e.attempt, e.error_message, row_to_json(e) as json
  from (select n.created_at, n.attempt, n.error_message, n.context, n.error_id
          from queues.error n where n.task_id = $1::bigint
         order by n.error_id desc limit 20) e
 order by e.error_id
