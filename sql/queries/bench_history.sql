-- $2 tasks of queue $1 that were enqueued, handed out by hundreds and completed
-- an hour ago, as they would be on record.
with numbered as materialized (
  select nextval('queues.task_id_seq') as task_id, (i - 1) / 100 as batch
    from generate_series(1, $2::bigint) i),
batches as materialized (
  select nextval('queues.lease_id_seq') as lease_id, n.batch,
         array_agg(n.task_id order by n.task_id) as task_ids
    from numbered n group by n.batch),
tasks as (
  insert into queues.task (task_id, task_type, payload, enqueued_at, scheduled_at, priority,
                           queue_id)
    select n.task_id, 'bench_noop', jsonb_build_object('n', n.task_id),
           now() - interval '1 hour', now() - interval '1 hour', 0, $1::integer
      from numbered n order by n.task_id),
leases as (
  insert into queues.lease (lease_id, queue_id, leased_at, expires_at, task_ids, from_id,
                            to_id)
    select b.lease_id, $1::integer, now() - interval '1 hour', now() - interval '55 minutes',
           b.task_ids, b.task_ids[1], b.task_ids[cardinality(b.task_ids)]
      from batches b order by b.lease_id)
insert into queues.task_completed (task_id, completed_at, lease_id, queue_id, state, worker_pid,
                                   attempt)
  select n.task_id, now() - interval '1 hour', b.lease_id, $1::integer, 'completed',
         pg_backend_pid(), 1
    from numbered n join batches b using (batch) order by n.task_id
