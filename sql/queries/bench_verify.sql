-- How many of the tasks from $1 to $2 there are, how many have ended, and how
-- many of these as completed at their first attempt.
select count(*), count(c.task_id),
       count(*) filter (where c.state = 'completed' and c.attempt = 1)
from queues.task t
left join queues.task_completed c using (task_id)
where t.task_id between $1::bigint and $2::bigint and t.task_type like 'bench\_%'
