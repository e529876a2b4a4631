-- $1 task id: each time it was handed out
select a.attempt, a.leased_at, a.ended_at, a.outcome, a.worker, a.backend_pid,
       row_to_json(a) as json
  from (select l.task_lease_id, l.attempt, l.leased_at, l.ended_at,
               coalesce(l.outcome, 'running') as outcome,
               w.name || coalesce(' on ' || w.host, '') as worker, l.worker_id,
               l.backend_pid
          from queues.task_lease l left join worker.worker w using (worker_id)
         where l.task_id = $1::bigint
         order by l.task_lease_id limit 100) a
