-- $1 state, $2 queue, $3 command, $4 limit
select task_ids, cut from worker.find_tasks($1::text, $2::text, $3::text, $4::integer)
