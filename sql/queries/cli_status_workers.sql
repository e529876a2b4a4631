-- Workers that have not left. Silent: not heard of for so long that another
-- worker takes over what they hold. Polls: notifications do not reach it.
select w.worker_id, w.name, w.host, w.pid, w.tasks,
       extract(epoch from worker.now() - w.started_at) as up,
       extract(epoch from worker.now() - w.last_beat) as seen,
       case when not w.alive then 'silent' when not w.listening then 'polls' else 'alive' end as state,
       row_to_json(w) as json
  from (select s.worker_id, s.name, s.host, s.pid, s.started_at, s.listening,
               b.last_beat,
               coalesce(b.last_beat > worker.now() - interval '10 seconds', false) as alive,
               (select count(*) from queues.in_flight f where f.worker_id = s.worker_id) as tasks
          from worker.worker s
         cross join lateral (
           select max(h.beat_at) as last_beat from worker.heartbeat h
            where h.worker_id = s.worker_id) b
         where s.stopped_at is null
         order by s.worker_id desc limit 100) w
 order by w.worker_id
