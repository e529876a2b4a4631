-- Parents that wait although their children have ended. Maintenance rescues such
-- within seconds; one that stays is a fault of ours, or nobody maintains.
select case when count(*) = 0 then 'ok' else 'fail' end,
       case when count(*) = 0 then 'no parent waits in vain'
            else count(*) || ' wait although their children have ended: '
                 || array_to_string((array_agg(w.task_id order by w.task_id))[1:10], ', ') end,
       'select queues.maintain() ends them; does a worker run?'
  from (select w.task_id from queues.waiting w
         where w.since < worker.now() - interval '30 seconds'
         order by w.since limit 1000) w
 where not worker.has_pending_children(w.task_id)
