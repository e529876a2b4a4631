-- $1 queue: is it paused, and until when?
select q.paused and (q.paused_until is null or q.paused_until > worker.now()) as paused,
       q.paused_until
  from worker.queue_registry q where q.queue = $1::text
