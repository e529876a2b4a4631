-- The newest task id; 0 when there is none.
select coalesce(max(task_id), 0) from queues.task
