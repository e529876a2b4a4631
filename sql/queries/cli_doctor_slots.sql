select case when count(*) = 0 then 'ok' else 'fail' end,
       case when count(*) = 0 then 'every slot in use belongs to work that runs'
            else string_agg(format('%s of lease %s: %s', p.task_key, p.lease_id, p.problem), '; ') end,
       'select worker.reconcile_slots(true) puts it right'
  from (select * from worker.slot_problem limit 10) p
