select case when w.alive = 0 and q.due then 'warn' else 'ok' end,
       w.alive || ' alive'
         || case when w.alive = 0 and q.due then ', and tasks are due' else '' end,
       'start one with: pgkin work'
  from (select count(*) as alive from worker.worker s
         where s.stopped_at is null
           and exists (select from worker.heartbeat h
                        where h.worker_id = s.worker_id
                          and h.beat_at > worker.now() - interval '10 seconds')) w
 cross join (select coalesce(bool_or(o.pending > 0 and not o.paused), false) as due
               from worker.queue_overview(1) o) q
