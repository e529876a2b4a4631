-- worker.tasks: what people look at.
--
-- The state is derived. A task has ended, or waits, or is in an open lease, or
-- else it is pending: four branches with the state as a constant in each, so
-- that a condition on the state drops the others, and each branch a plain table
-- with an index on the id, so that the newest page reads a page. The branch of
-- the pending is all tasks, and the outer condition takes the others out again.
-- That condition speaks of t, not of s, on purpose: otherwise it would be asked
-- inside the branch, which would go through the whole history for the next
-- pending task. The scalar subqueries are on purpose, too: an EXISTS could be
-- hashed, which would read the whole history for one row. OFFSET 0 makes the
-- leases a subquery that can be asked for one task, as the other branches can.

create or replace view queues.in_flight as
  select o.lease_id, u.task_id, l.queue_id, l.leased_at, l.worker_id, l.backend_pid,
         (coalesce(l.attempts[u.i], 0) + 1)::smallint as attempt, u.i as place
    from queues.lease_open o join queues.lease l using (lease_id)
   cross join lateral unnest(l.task_ids) with ordinality u(task_id, i)
   -- Says nothing new, but lets the planner expect few, also without statistics.
   where l.lease_id = any(array(select n.lease_id from queues.lease_open n))
     and (not o.partial
      or ((select true from queues.task_completed c where c.task_id = u.task_id) is null
          and (select true from queues.attempt_end e
                where e.task_id = u.task_id and e.lease_id = o.lease_id) is null));

create or replace view worker.tasks as
  select s.task_id as id, t.task_type as command, q.queue,
         coalesce((select k.payload from queues.pending_key k
                    where t.dedup_key is not null and k.task_id = s.task_id),
                  (select m.payload from queues.merged_payload m
                    where t.dedup_key is not null and m.task_id = s.task_id),
                  t.payload) as payload,
         s.state, t.priority, t.parent_id, t.enqueued_at as created_at,
         -- Only a merge can have moved it.
         coalesce((select r.run_at from queues.pending_key k
                     join queues.timer r on r.queue_id = t.queue_id and r.first_id = k.task_id
                    where t.dedup_key is not null and k.task_id = s.task_id
                      and k.payload is not null and r.gate is null), t.scheduled_at) as scheduled_at,
         coalesce(f.leased_at, w.since - make_interval(secs => coalesce(w.duration_ms, 0) / 1000.0),
                  c.completed_at - make_interval(secs => coalesce(c.duration_ms, 0) / 1000.0))
           as processed_at,
         c.completed_at, coalesce(c.duration_ms, w.duration_ms) as duration_ms,
         case when s.state = 'canceled' and c.reason is not null then c.reason
              when s.state <> 'completed' then
                (select e.error_message from queues.error e
                  where e.task_id = s.task_id and not coalesce(e.context ? 'hook', false)
                  order by e.error_id desc limit 1) end as error,
         coalesce(c.worker_pid, w.worker_pid, f.backend_pid) as worker_pid,
         coalesce(c.attempt, w.attempt, f.attempt,
                  (select count(*) from queues.attempt_end e
                    where e.task_id = s.task_id and e.outcome <> 'released')::smallint) as attempt,
         coalesce(c.result, w.result) as result,
         t.dedup_key, t.group_key, t.headers, t.context
    from (select task_id, state, queue_id, 1 as branch from queues.task_completed
          union all
          select task_id, 'waiting'::queues.task_state, queue_id, 2 from queues.waiting
          union all
          select task_id, 'processing'::queues.task_state, queue_id, 3
            from (select f.task_id, f.queue_id from queues.in_flight f offset 0) f
          union all
          select task_id, 'pending'::queues.task_state, queue_id, 4 from queues.task) s
    join queues.task t on t.task_id = s.task_id
    left join worker.queue_registry q on q.queue_id = s.queue_id
    left join queues.task_completed c on c.task_id = s.task_id and s.branch = 1
    left join queues.waiting w on w.task_id = s.task_id and s.branch = 2
    left join lateral (select f.* from queues.in_flight f
                        where s.branch = 3 and f.task_id = s.task_id) f on true
   where s.branch <> 4
      or ((select true from queues.task_completed d where d.task_id = t.task_id) is null
          and (select true from queues.waiting d where d.task_id = t.task_id) is null
          and not t.task_id = any(array(select d.task_id from queues.in_flight d)));

create or replace function worker.tasks_insert() returns trigger
language plpgsql security definer
set search_path = pg_catalog, pg_temp
as $$
begin
  if new.id is not null or new.state <> 'pending' then
    raise exception 'a task gets its id and state by itself'
      using errcode = 'invalid_parameter_value',
            hint = 'insert into worker.tasks (command, payload, priority, scheduled_at, parent_id)';
  end if;
  new.id := worker.enqueue(new.command, coalesce(new.payload, '{}'), new.priority,
                           new.scheduled_at, new.dedup_key, 'keep', new.group_key, new.parent_id,
                           new.context, new.headers);
  select t.* into new from worker.tasks t where t.id = new.id;
  return new;
end
$$;

create or replace trigger tasks_insert instead of insert on worker.tasks
  for each row execute function worker.tasks_insert();
