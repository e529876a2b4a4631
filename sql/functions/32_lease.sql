-- Leases: who holds what, and what happens when a holder is gone.
--
-- queues.lease_open is the fence. Every later write of an attempt names its
-- lease and locks that row; recovery deletes it before it hands the tasks out
-- again, so whoever comes late finds the door shut.

create or replace view queues.task_lease as
  select l.lease_id as task_lease_id, e.task_id, l.leased_at, l.expires_at,
         e.attempt, e.outcome, e.ended_at, l.worker_id, l.backend_pid
    from queues.attempt_end e join queues.lease l using (lease_id)
  union all
  select l.lease_id, c.task_id, l.leased_at, l.expires_at,
         c.attempt, c.state::text, c.completed_at, l.worker_id, l.backend_pid
    from queues.task_completed c join queues.lease l using (lease_id)
  union all
  select l.lease_id, t.task_id, l.leased_at, coalesce(o.expires_at, l.expires_at),
         (coalesce(l.attempts[t.i], 0) + 1)::smallint, null, null, l.worker_id, l.backend_pid
    from queues.lease_open o join queues.lease l using (lease_id)
   cross join lateral unnest(l.task_ids) with ordinality t(task_id, i)
   where not exists (select from queues.task_completed c where c.task_id = t.task_id)
     and not exists (select from queues.attempt_end e
                      where e.task_id = t.task_id and e.lease_id = l.lease_id);

-- Puts taken tasks under a lease: all under one, but each that must be alone
-- under its own. Returns the lease of each task. p_top: each lease is to hold a
-- place of top_concurrency. p_limited: it holds slots; p_kept: these, see
-- queues.lease_open. Internal.
create or replace function queues.open_lease(
  p_queue_id integer, p_taken record, p_worker_id bigint, p_backend_pid integer,
  p_backend_start timestamptz, p_now timestamptz, p_expires_at timestamptz,
  p_top boolean default false, p_each boolean default false, p_limited boolean default false,
  p_kept queues.free_slots default null)
returns bigint[]
language plpgsql
as $$
declare
  v_n integer := cardinality(p_taken.task_ids);
  v_lease_id bigint;
  v_leases bigint[];
begin
  if v_n = 1 or not (p_each or (p_taken.solo is not null and true = any(p_taken.solo))) then
    v_lease_id := nextval('queues.lease_id_seq');
    insert into queues.lease (lease_id, worker_id, backend_pid, backend_start, queue_id,
                              leased_at, expires_at, task_ids, from_id, to_id, attempts,
                              failures, crashes, parent_ids)
      values (v_lease_id, p_worker_id, p_backend_pid, p_backend_start, p_queue_id,
              p_now, p_expires_at, p_taken.task_ids, p_taken.from_id, p_taken.to_id,
              p_taken.attempts, p_taken.failures, p_taken.crashes, p_taken.parent_ids);
    insert into queues.lease_open (lease_id, queue_id, worker_id, backend_pid, expires_at,
                                   task_id, top, limited, kept)
      values (v_lease_id, p_queue_id, p_worker_id, p_backend_pid, p_expires_at,
              case when v_n = 1 then p_taken.task_ids[1] end, p_top, p_limited, p_kept);
    return array_fill(v_lease_id, array[v_n]);
  end if;

  -- One by one, those that need it; the rest together under the first.
  for i in 1..v_n loop
    if p_each or p_taken.solo[i] then
      v_leases[i] := nextval('queues.lease_id_seq');
    else
      v_lease_id := coalesce(v_lease_id, nextval('queues.lease_id_seq'));
      v_leases[i] := v_lease_id;
    end if;
  end loop;
  insert into queues.lease (lease_id, worker_id, backend_pid, backend_start, queue_id,
                            leased_at, expires_at, task_ids, from_id, to_id, attempts, failures,
                            crashes, parent_ids)
    select s.lease_id, p_worker_id, p_backend_pid, p_backend_start, p_queue_id, p_now,
           p_expires_at, array_agg(s.task_id order by s.i), min(s.task_id), max(s.task_id),
           array_agg(s.attempts order by s.i) filter (where p_taken.attempts is not null),
           array_agg(s.failures order by s.i) filter (where p_taken.failures is not null),
           array_agg(s.crashes order by s.i) filter (where p_taken.crashes is not null),
           p_taken.parent_ids
      from unnest(v_leases, p_taken.task_ids, p_taken.attempts, p_taken.failures,
                  p_taken.crashes)
             with ordinality s(lease_id, task_id, attempts, failures, crashes, i)
     group by s.lease_id;
  insert into queues.lease_open (lease_id, queue_id, worker_id, backend_pid, expires_at,
                                 task_id, top, limited)
    select s.lease_id, p_queue_id, p_worker_id, p_backend_pid, p_expires_at,
           case when count(*) = 1 then min(s.task_id) end, p_top, p_limited
      from unnest(v_leases, p_taken.task_ids) s(lease_id, task_id)
     group by s.lease_id;
  return v_leases;
end
$$;

-- Ends a lease whose holder is gone (the caller has locked its row) and makes
-- what was unfinished ready again. A lease of one charges its task; of several
-- it is not known which one did it, so they are leased alone from now on. With
-- p_outcome 'released' it was no accident, and none of this applies.
create or replace function queues.lose_lease(p_lease_id bigint, p_now timestamptz,
                                             p_outcome text default 'lost')
returns integer
language plpgsql
as $$
declare
  v_lease queues.lease;
  v_task record;
  v_alone boolean;
  v_ended boolean;
  v_unfinished bigint[];
  v_open queues.lease_open;
  v_lost integer := 0;
begin
  delete from queues.lease_open o where o.lease_id = p_lease_id returning o.* into v_open;
  if not found then
    return 0;
  end if;
  select * into strict v_lease from queues.lease l where l.lease_id = p_lease_id;
  v_alone := cardinality(v_lease.task_ids) = 1 and p_outcome = 'lost';
  v_unfinished := queues.unfinished(v_lease);
  for v_task in
    select t.*, c.max_leases, c.lane + (t.parent_id is not null)::integer as now_lane,
           least(coalesce(v_lease.attempts[u.i], 0) + 1, 32766) as attempts,
           coalesce(v_lease.failures[u.i], 0::smallint) as failures,
           coalesce(v_lease.crashes[u.i], 0::smallint)
             + case when v_alone then 1 else 0 end as crashes
      from unnest(v_lease.task_ids) with ordinality u(task_id, i)
      join queues.task t using (task_id)
      left join worker.command_registry c on c.command = t.task_type
     where not exists (select from queues.task_completed d where d.task_id = u.task_id)
       and not exists (select from queues.attempt_end e
                        where e.task_id = u.task_id and e.lease_id = p_lease_id)
     order by u.i
  loop
    insert into queues.attempt_end (task_id, lease_id, attempt, ended_at, outcome)
      values (v_task.task_id, p_lease_id, v_task.attempts, p_now, p_outcome);
    v_ended := true;
    if exists (select from queues.cancel_request r where r.task_id = v_task.task_id) then
      perform queues.end_canceled(v_task.task_id, null, v_task.queue_id,
                                  v_task.attempts::smallint, p_now);
    elsif v_alone and v_task.crashes >= coalesce(v_task.max_leases, 5) then
      perform queues.end_failed(v_task.task_id, null, v_task.queue_id,
                                v_task.attempts::smallint, p_now,
                                format('lost with its worker %s times', v_task.crashes));
    else
      v_ended := false;
      if p_outcome = 'lost' then
        perform queues.cancel_children(v_task.task_id, p_now, 'the parent task is run again',
                                       v_lease.leased_at);
      end if;
      perform queues.put_ready(v_task.queue_id, v_task.now_lane, v_task.priority,
                               v_task.scheduled_at, p_now, array[v_task.task_id],
                               v_task.parent_id, v_task.attempts::smallint,
                               v_task.failures::smallint, v_task.crashes::smallint,
                               queues.regain_key(v_task.task_id),
                               p_solo => p_outcome = 'lost' or v_task.crashes > 0);
    end if;
    if v_ended and v_task.parent_id is not null then
      perform queues.settle_parents(array[v_task.parent_id]);
    end if;
    v_lost := v_lost + 1;
  end loop;
  perform queues.count_lease(v_lease, p_now, v_unfinished);
  if v_open.limited then
    perform queues.release_slots(v_open);
  end if;
  return v_lost;
end
$$;

-- Leases of callers without a worker, past their time. Returns tasks recovered.
-- p_from bounds the walk over the dead rows of leases that are long over.
create or replace function queues.recover_expired(
  p_queue_id integer, p_from timestamptz, p_now timestamptz)
returns integer
language plpgsql
as $$
declare
  v_lease_id bigint;
  v_lost integer := 0;
begin
  for v_lease_id in
    select o.lease_id from queues.lease_open o
     where o.queue_id = p_queue_id and o.expires_at >= p_from and o.expires_at <= p_now
     order by o.expires_at limit 50 for update skip locked
  loop
    v_lost := v_lost + queues.lose_lease(v_lease_id, p_now);
  end loop;
  return v_lost;
end
$$;

-- Keeps leases of a worker-less caller for longer. Returns those extended;
-- what is missing there is lost already.
create or replace function queues.extend_leases(
  p_lease_ids bigint[], p_for interval default '5 minutes')
returns setof bigint
language plpgsql security definer
set search_path = pg_catalog, pg_temp
as $$
begin
  if p_for is null or p_for <= interval '0' or p_for > interval '1 day' then
    raise exception 'a lease is extended by more than nothing and at most a day, not by %', p_for
      using errcode = 'invalid_parameter_value';
  end if;
  return query
    update queues.lease_open o set expires_at = worker.now() + p_for
     where o.lease_id = any(p_lease_ids) and o.expires_at > worker.now()
    returning o.lease_id;
end
$$;
