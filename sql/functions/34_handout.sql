-- Handing out: the calls by which tasks leave the queue.

-- Takes and leases up to p_want tasks of a queue for the caller. Honours pause,
-- top_concurrency and limits; with no limit in the queue, which costs one look,
-- the claim is the plain one, and with simple ones the same with more lanes. Returns
-- one record of parallel arrays; no task: null.
-- p_serial: the caller runs what it gets one after the other, so that a batch
-- holds one place of top_concurrency. p_spare: slots of leases that this transaction
-- has ended, to be used again; reused: all of them are. stretches: see queues.take.
-- p_all: limited tasks as well, at any rate.
-- Internal.
create or replace function queues.hand_out(
  p_queue worker.queue_registry, p_want integer, p_lanes integer[], p_max_priority bigint,
  p_worker_id bigint, p_backend_pid integer, p_expires_at timestamptz, p_now timestamptz,
  p_auto boolean, p_serial boolean, p_spare queues.free_slots[] default null,
  p_all boolean default false,
  out lease_ids bigint[], out task_ids bigint[], out attempts smallint[],
  out parent_ids bigint[], out stretches bigint[], out reused boolean)
language plpgsql
as $$
declare
  c_large constant integer := 50;
  c_dice constant double precision := 0.1;
  v_all boolean := true;
  v_taken record;
  v_top record;
  v_backend_start timestamptz;
  v_places integer;
  v_lanes integer[];
  v_pairs integer[];
  v_simple boolean := true;
  v_kept queues.free_slots;
  v_n integer;
begin
  if p_queue.paused and (p_queue.paused_until is null or p_queue.paused_until > p_now) then
    return;
  end if;
  -- Not while a limit is being changed: whoever does that counts what runs.
  if not pg_try_advisory_xact_lock_shared(8106479329266892800 | p_queue.queue_id) then
    perform queues.set_alarm(p_queue.queue_id, p_now + interval '10 milliseconds', p_now);
    return;
  end if;
  if p_backend_pid is not null then
    v_backend_start := worker.backend_start();
  end if;
  v_lanes := p_lanes;
  if pg_sequence_last_value('queues.gated_used') is not null then
    -- The claim of a large batch need not look for limited tasks each time, as long as
    -- it finds others: they get their turn often enough, and who has slots in hand goes
    -- on looking.
    v_all := p_all or p_want < c_large or p_spare is not null
             or p_queue.top_concurrency is not null or p_queue.concurrency_limit is not null
             or random() < c_dice;
    if v_all
       or exists (select from queues.gated g where g.queue_id = p_queue.queue_id
                     and (not g.simple or g.strays_since is not null)) then
      -- Usual, and then the claim needs to know little: there is no limit but of how many
      -- run at once, no key, none to be looked after, and nothing in shared lanes to look
      -- out for.
      select array_agg(g.command_id),
             p_lanes
               || array_agg(2 * g.command_id) filter (where g.shared_lane = any(p_lanes)
                                                        and not 2 * g.command_id = any(p_lanes))
               || array_agg(2 * g.command_id + 1)
                    filter (where g.shared_lane + 1 = any(p_lanes)
                              and not 2 * g.command_id + 1 = any(p_lanes)),
             count(*) = 0
               or bool_and(g.simple and g.strays_since is null)
                  and p_queue.top_concurrency is null
                  and pg_sequence_last_value('queues.order_used') is null
                  and (pg_sequence_last_value('queues.gate_check_check_id_seq') is null
                       or pg_sequence_last_value('queues.gate_check_check_id_seq')
                            < coalesce(pg_sequence_last_value('queues.gate_check_floor'), 0))
                  and current_setting('transaction_isolation') = 'read committed'
        into v_pairs, v_lanes, v_simple
        from queues.gated g where g.queue_id = p_queue.queue_id;
      if cardinality(v_pairs) > 1 then  -- may be said twice
        v_lanes := array(select distinct l from unnest(v_lanes) l);
      end if;
    elsif 4 <= any(p_lanes) then
      v_lanes := array(select l from unnest(p_lanes) l
                        where not exists (select from queues.gated g
                                           where g.queue_id = p_queue.queue_id
                                             and g.command_id = l / 2));
    end if;
  end if;
  if p_queue.concurrency_limit is not null or not v_simple then
    v_taken := queues.hand_out_limited(p_queue, p_want, p_lanes, p_max_priority, p_worker_id,
                                       p_backend_pid, v_backend_start, p_expires_at, p_now,
                                       p_auto, p_serial, p_spare);
    lease_ids := v_taken.lease_ids;
    task_ids := v_taken.task_ids;
    attempts := v_taken.attempts;
    parent_ids := v_taken.parent_ids;
    stretches := v_taken.stretches;
    reused := v_taken.reused;
    return;
  end if;
  if p_queue.top_concurrency is null then
    v_taken := queues.take(p_queue.queue_id, v_lanes, p_want, p_max_priority, p_auto, v_pairs,
                           null, p_serial, p_spare);
    if v_taken.task_ids = '{}' then
      if not v_all then
        select * into lease_ids, task_ids, attempts, parent_ids, stretches, reused
          from queues.hand_out(p_queue, p_want, p_lanes, p_max_priority, p_worker_id,
                               p_backend_pid, p_expires_at, p_now, p_auto, p_serial, p_spare,
                               p_all => true);
      end if;
      return;
    end if;
    -- What a lease can remember of its slots (queues.lease_open.kept): those of one limit,
    -- under which its tasks run, or some of them. With a lease_id they go over to it as
    -- they are. Here and not in a function, which would copy all that was taken.
    if cardinality(v_taken.slots) = 1 and not p_serial and v_taken.solo is null then
      v_kept := v_taken.slots[1];
      v_n := cardinality(v_taken.task_ids);
      if v_taken.lanes[1] / 2 <> v_kept.pair or v_taken.lanes[1] <> any(v_taken.lanes) then
        v_n := cardinality(array_positions(v_taken.lanes, 2 * v_kept.pair))
               + cardinality(array_positions(v_taken.lanes, 2 * v_kept.pair + 1));
      end if;
      if v_n = 0 then
        v_kept := null;
      elsif v_n < cardinality(v_kept.slot_groups) or cardinality(p_spare) > 1 then
        v_kept.lease_id := null;
        v_kept.slot_groups := v_kept.slot_groups[1:v_n];
      end if;
    end if;
    lease_ids := queues.open_lease(p_queue.queue_id, v_taken, p_worker_id, p_backend_pid,
                                   v_backend_start, p_now, p_expires_at,
                                   p_limited => v_taken.slots is not null, p_kept => v_kept);
    if v_kept.lease_id is not null then
      reused := true;
    elsif v_taken.slots is not null then
      reused := queues.hold_slots(v_taken.slots, lease_ids, v_taken.task_ids, v_taken.lanes,
                                  p_serial, p_now)
                and cardinality(p_spare) = 1;
    end if;
    task_ids := v_taken.task_ids;
    attempts := v_taken.attempts;
    parent_ids := v_taken.parent_ids;
    stretches := v_taken.stretches;
    return;
  end if;

  -- Children belong to a tree that has its place already.
  v_lanes := array(select l from unnest(p_lanes) l where l % 2 = 1);
  if v_lanes <> '{}' then
    v_taken := queues.take(p_queue.queue_id, v_lanes, p_want, p_max_priority, p_auto);
    if v_taken.task_ids <> '{}' then
      lease_ids := queues.open_lease(p_queue.queue_id, v_taken, p_worker_id, p_backend_pid,
                                     v_backend_start, p_now, p_expires_at);
      task_ids := v_taken.task_ids;
      attempts := v_taken.attempts;
      parent_ids := v_taken.parent_ids;
      return;
    end if;
  end if;
  v_lanes := array(select l from unnest(p_lanes) l where l % 2 = 0);
  if v_lanes = '{}' then
    return;
  end if;
  v_places := queues.free_places(p_queue.queue_id, p_queue.top_concurrency);
  if v_places < 1 then
    return;
  end if;
  v_top := queues.take(p_queue.queue_id, v_lanes,
                       case when p_serial then p_want else least(p_want, v_places) end,
                       p_max_priority, p_auto);
  if v_top.task_ids <> '{}' then
    lease_ids := queues.open_lease(p_queue.queue_id, v_top, p_worker_id, p_backend_pid,
                                   v_backend_start, p_now, p_expires_at,
                                   p_top => true, p_each => not p_serial);
    task_ids := v_top.task_ids;
    attempts := v_top.attempts;
  end if;
end
$$;

-- Every line that a task may stand in.
create or replace function queues.all_lanes() returns integer[]
language plpgsql stable
as $$
begin
  return '{0,1,2,3}'::integer[] || array(
    select unnest(array[c.lane, c.lane + 1]) from worker.command_registry c where c.lane > 3);
end
$$;

-- How many more top-level trees may start. Serialised over all sessions by a
-- lock that lasts to the end of the transaction, so that what the caller then
-- leases is seen by the next one to ask; whoever does not get the lock gets 0.
create or replace function queues.free_places(p_queue_id integer, p_most integer)
returns integer
language plpgsql
as $$
declare
  v_floor regclass := queues.cell(p_queue_id, 'top_floor');
  v_from bigint := pg_sequence_last_value(v_floor);
  v_held integer;
begin
  if current_setting('transaction_isolation') <> 'read committed' then
    raise exception 'queue limits need isolation level read committed, not %',
      current_setting('transaction_isolation')
      using errcode = 'invalid_transaction_state';
  end if;
  if not pg_try_advisory_xact_lock(8101131304709390336 | p_queue_id) then
    return 0;
  end if;
  -- Such leases are only made under this lock, with ever greater ids, and a task
  -- that waits keeps the id of the lease it ran under. Now and then the floor
  -- follows the oldest, so that the dead ones are not walked over.
  select count(*) into v_held from (
    (select from queues.lease_open o where o.queue_id = p_queue_id and o.top
        and o.lease_id >= v_from limit p_most)
    union all
    (select from queues.waiting w where w.queue_id = p_queue_id and w.top
        and w.lease_id >= v_from limit p_most)) s;
  if random() < 0.02 then
    perform setval(v_floor, coalesce(least(
      (select min(o.lease_id) from queues.lease_open o where o.queue_id = p_queue_id and o.top
          and o.lease_id >= v_from),
      (select min(w.lease_id) from queues.waiting w where w.queue_id = p_queue_id and w.top
          and w.lease_id >= v_from)),
      pg_sequence_last_value('queues.lease_id_seq'), 0));
  end if;
  if v_held >= p_most then
    perform set_config('worker.held_back', 'on', true);
  end if;
  return greatest(p_most - v_held, 0);
end
$$;

-- When this backend began; with the pid it names a session for good.
create or replace function worker.backend_start() returns timestamptz
language plpgsql stable
as $$
begin
  return (select a.backend_start from pg_catalog.pg_stat_get_activity(pg_catalog.pg_backend_pid()) a);
end
$$;

-- Is this statement a transaction of its own? Only then should it do maintenance
-- that keeps locks to the end of the transaction. A guess by the clock, which in
-- the extended protocol ticks between the start of a transaction and of its
-- statement; nothing depends on it.
create or replace function queues.alone() returns boolean
language plpgsql stable
as $$
begin
  return pg_catalog.statement_timestamp() - pg_catalog.now() between '0' and '2 milliseconds';
end
$$;

create or replace function queues.dequeue_next_available_task() returns queues.task
language plpgsql security definer
set search_path = pg_catalog, pg_temp
set enable_seqscan = off
set jit = off
set enable_bitmapscan = off
set plan_cache_mode = force_generic_plan
as $$
declare
  v_now timestamptz := worker.now();
  v_queue worker.queue_registry;
  v_got record;
  v_task queues.task;
begin
  select * into strict v_queue from worker.queue_registry q where q.queue = 'default';
  perform queues.recover_expired(v_queue.queue_id,
                                 queues.timer_floor(v_queue.queue_id), v_now);
  for i in 1..2 loop
    v_got := queues.hand_out(v_queue, 1, queues.all_lanes(), null, null, null,
                             v_now + interval '5 minutes', v_now, queues.alone(), false);
    -- Nothing: look where no claim looks, then once more.
    exit when v_got.task_ids is not null or i = 2 or queues.sweep(v_queue.queue_id, v_now) = 0;
  end loop;
  if v_got.task_ids is null then
    return null;
  elsif queues.refuse_claimed(v_got, v_now) is not null then
    return queues.dequeue_next_available_task();
  end if;
  select t.* into strict v_task from queues.task t where t.task_id = v_got.task_ids[1];
  if v_task.dedup_key is not null then
    v_task.payload := queues.effective_payload(v_task);
  end if;
  return v_task;
end
$$;

comment on function queues.dequeue_next_available_task() is
  'leases the next task of queue default for 5 minutes; task_id is null when there is none';

-- What a claim hands to its caller, in order. Internal.
create or replace function queues.claimed(p_lease_ids bigint[], p_task_ids bigint[],
                                          p_attempts smallint[])
returns table (event text, lease_id bigint, task_id bigint, attempt integer, task_type text,
               payload jsonb, headers jsonb, parent_id bigint, group_key text,
               scheduled_at timestamptz)
language plpgsql
as $$
#variable_conflict use_column
begin
  return query
    select 'claimed', u.lease_id, t.task_id, coalesce(u.attempt, 0) + 1, t.task_type,
           case when t.dedup_key is null then t.payload
                else queues.effective_payload(t) end,
           t.headers, t.parent_id, t.group_key, t.scheduled_at
      from unnest(p_lease_ids, p_task_ids, p_attempts)
             with ordinality u(lease_id, task_id, attempt, i)
     cross join lateral (select * from queues.task t
                          where t.task_id = u.task_id offset 0) t
     order by u.i;
end
$$;

-- The payload a task runs with: what was merged into it, or its own.
create or replace function queues.effective_payload(p_task queues.task) returns jsonb
language plpgsql stable
as $$
begin
  return coalesce((select m.payload from queues.merged_payload m
                    where m.task_id = p_task.task_id), p_task.payload);
end
$$;
