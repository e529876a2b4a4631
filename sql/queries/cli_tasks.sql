-- $1 ids, $2 state: they may have moved on since they were found
select t.id, t.state, t.command, t.queue, t.attempt,
       extract(epoch from worker.now() - t.created_at) as age,
       t.duration_ms / 1000 as took,
       left(case when t.state = 'pending' and t.scheduled_at > worker.now()
                 then 'at ' || date_trunc('second', t.scheduled_at) || ' ' else '' end
            || coalesce(split_part(t.error, e'\n', 1), t.payload::text), 300) as detail,
       row_to_json(t) as json
  from (select id, command, queue, payload, state, priority, parent_id, created_at,
               scheduled_at, processed_at, completed_at, duration_ms, error, worker_pid,
               attempt, result, dedup_key, group_key
          from worker.tasks where id = any($1::bigint[])) t
 where $2::text is null or t.state::text = $2
 order by t.id desc
