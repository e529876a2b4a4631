-- $1 task id. Each column but the last two is a line of what is shown.
select t.command, t.queue, t.priority, t.parent_id as parent, t.dedup_key as "dedup key",
       t.group_key as "group key", t.created_at as created, t.scheduled_at as scheduled,
       t.processed_at as started, t.completed_at as ended, t.duration_ms || ' ms' as duration,
       t.attempt, t.worker_pid as pid, t.payload, t.result, t.context, t.error,
       t.explanation as why, t.state, row_to_json(t) as json
  from (select id, command, queue, payload, state, priority, parent_id, created_at,
               scheduled_at, processed_at, completed_at, duration_ms, error, worker_pid,
               attempt, result, dedup_key, group_key, headers, context,
               worker.explain_task(id) as explanation
          from worker.tasks where id = $1::bigint) t
