-- $1 queue, $2 command; null: any. Who holds the slots, the longest first.
select s.task_key, h.task, h.worker,
       coalesce(w.name, case when h.pid is not null then 'session ' || h.pid end) as name,
       extract(epoch from worker.now() - h.since) as since
  from worker.slot_usage s
 cross join lateral jsonb_to_recordset(s.holders)
         h(task bigint, worker bigint, pid integer, since timestamptz)
  left join worker.worker w on w.worker_id = h.worker
 where ($1::text is null
        or s.task_key = 'queue:' || $1
        or split_part(s.task_key, '/', 1) = any(array(
             select c.command from worker.command_registry c where c.queue = $1)))
   and ($2::text is null or s.kind <> 'queue' and split_part(s.task_key, '/', 1) = $2)
 order by s.kind, s.task_key, h.since, h.task
