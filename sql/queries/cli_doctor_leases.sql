-- Work held by somebody who is not there.
with held as (
  select 'worker ' || o.worker_id || coalesce(' (' || w.name || ')', '') as who,
         count(*) as leases, worker.now() - max(b.at) as silent
    from queues.lease_open o
    left join worker.worker w on w.worker_id = o.worker_id
   cross join lateral (select max(h.beat_at) as at from worker.heartbeat h
                        where h.worker_id = o.worker_id) b
   where o.worker_id is not null
     and (w.worker_id is null or w.stopped_at is not null or b.at is null
          or b.at < worker.now() - interval '10 seconds')
   group by o.worker_id, w.name
  union all
  select 'session ' || o.backend_pid, count(*), null
    from queues.lease_open o join queues.lease l using (lease_id)
   where o.worker_id is null and o.backend_pid is not null
     and not exists (select from pg_catalog.pg_stat_activity a
                      where a.pid = o.backend_pid
                        and (a.backend_start is null or a.backend_start = l.backend_start))
   group by o.backend_pid
  union all
  select 'a caller of dequeue_next_available_task', count(*), null
    from queues.lease_open o
   where o.worker_id is null and o.backend_pid is null and o.expires_at < worker.now()
  having count(*) > 0)
select case when count(*) = 0 then 'ok'
            when max(silent) > interval '1 minute' then 'fail' else 'warn' end,
       case when count(*) = 0 then 'everything that runs is run by somebody who is there'
            else 'abandoned: ' || string_agg(
                   who || ' holds ' || leases
                   || coalesce(', silent for ' || date_trunc('second', silent), ', gone'), '; ') end,
       'workers take it up; select worker.reset_abandoned_processing_tasks() does it now'
  from held
