-- $1 queue, $2 command; null: any. The last but one column has no holders, the
-- last one has.
select s.task_key, s.kind, s."limit", s.used, s.waiting,
       json_build_object('task_key', s.task_key, 'kind', s.kind, 'limit', s."limit",
                         'used', s.used, 'waiting', s.waiting) as json,
       json_build_object('task_key', s.task_key, 'kind', s.kind, 'limit', s."limit",
                         'used', s.used, 'waiting', s.waiting, 'holders', s.holders) as whole
  from worker.slot_usage s
 where ($1::text is null
        or s.task_key = 'queue:' || $1
        or split_part(s.task_key, '/', 1) = any(array(
             select c.command from worker.command_registry c where c.queue = $1)))
   and ($2::text is null or s.kind <> 'queue' and split_part(s.task_key, '/', 1) = $2)
 order by s.kind, s.task_key
