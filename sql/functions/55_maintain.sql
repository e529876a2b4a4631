-- Maintenance: plain functions that anybody with the right to may call at any
-- time, from psql, cron or a worker, by several at once. None holds a lock that
-- producers or claims wait for.

-- Looks for work where no claim looks: generations in limbo, timers below the
-- floor. Returns how many rows it found.
create or replace function queues.sweep(p_queue_id integer, p_now timestamptz) returns integer
language plpgsql
as $$
declare
  v_found integer := 0;
begin
  if queues.alone() then
    v_found := queues.settle(p_queue_id);
  end if;
  return v_found + queues.promote_timers(p_queue_id, '-infinity', p_now, 1000);
end
$$;

create or replace function queues.maintain(p_queue text default null) returns jsonb
language plpgsql security definer
set search_path = pg_catalog, pg_temp
set enable_seqscan = off
set enable_bitmapscan = off
set plan_cache_mode = force_generic_plan
set jit = off
as $$
declare
  v_now timestamptz := worker.now();
  v_queue_id integer;
  v_n integer;
  v_lost integer;
  v_found integer := 0;
  v_due integer := 0;
  v_recovered integer := 0;
  v_parents integer;
begin
  -- Waits for no parent: it holds timers that others may be waiting for.
  perform set_config('worker.kin_locked', 'on', true);
  perform worker.raise_stat_floor();
  perform worker.fire_schedules();
  for v_queue_id in
    select q.queue_id from worker.queue_registry q
     where p_queue is null or q.queue = p_queue order by q.queue_id
  loop
    v_found := v_found + queues.settle(v_queue_id);
    v_n := queues.promote_timers(v_queue_id, '-infinity', v_now, 1000);
    v_due := v_due + v_n;
    v_lost := queues.recover_expired(v_queue_id, '-infinity', v_now);
    v_recovered := v_recovered + v_lost;
    -- All that was due is dealt with: claims need not look below this time again.
    if v_n < 1000 and v_lost < 50 and coalesce(current_setting('worker.fake_now', true), '') = '' then
      perform setval(queues.cell(v_queue_id, 'timer_floor'),
                     (extract(epoch from v_now) * 1000)::bigint);
    end if;
    if v_n > 0 or v_found > 0 then
      perform queues.wake(v_queue_id);
    end if;
    perform queues.prune_ledger(v_queue_id);
  end loop;
  v_recovered := v_recovered + worker.reset_abandoned_processing_tasks();
  perform queues.resume_due(v_now);
  perform queues.check_parents();
  perform queues.maintain_limits(v_now);
  v_parents := queues.rescue_parents();
  delete from worker.heartbeat where ctid = any(array(
    select h.ctid from worker.heartbeat h
     where h.beat_at < v_now - interval '1 minute'
       and exists (select from worker.heartbeat n
                    where n.worker_id = h.worker_id and n.beat_at > h.beat_at)
       for update of h skip locked));
  perform queues.raise_lease_floor();
  perform queues.empty_staging();
  perform worker.roll_stats();
  return jsonb_build_object('swept', v_found, 'due', v_due, 'recovered', v_recovered,
                            'parents', v_parents);
end
$$;

comment on function queues.maintain(text) is
  'one round of maintenance: sweeps, timers, recovery; safe at any time';

-- Closes the current generation of a queue, as claims do now and then.
create or replace function queues.rotate_queue(p_queue text) returns void
language plpgsql security definer
set search_path = pg_catalog, pg_temp
set enable_seqscan = off
set enable_bitmapscan = off
set plan_cache_mode = force_generic_plan
set jit = off
as $$
declare
  v_queue_id integer;
begin
  select q.queue_id into v_queue_id from worker.queue_registry q where q.queue = p_queue;
  if not found then
    raise exception 'unknown queue "%"', p_queue using errcode = 'undefined_object';
  end if;
  perform queues.rotate(v_queue_id);
end
$$;

-- Old versions of the ledger, and marks of generations that are gone. Both are
-- read from their new end, so the dead rows this leaves are in nobody's way.
create or replace function queues.prune_ledger(p_queue_id integer) returns void
language plpgsql
as $$
declare
  v_newest bigint;
  v_oldest_live integer;
begin
  select l.version, l.live[1] into v_newest, v_oldest_live from queues.generation_ledger l
   where l.queue_id = p_queue_id order by l.version desc limit 1;
  -- Nobody is to wait for another who is at it.
  if not pg_try_advisory_xact_lock(queues.maintenance_key(p_queue_id)) then
    return;
  end if;
  delete from queues.generation_ledger l
   where l.queue_id = p_queue_id and l.version < v_newest - 64;
  delete from queues.cursor_mark m
   where m.queue_id = p_queue_id and m.generation < v_oldest_live;
end
$$;

-- Follows the oldest open lease, so that a search for leases without a worker
-- does not walk over all that have ended. Workers lease in transactions of their
-- own, so nothing turns up below it later.
create or replace function queues.raise_lease_floor() returns void
language plpgsql
as $$
declare
  v_floor bigint := coalesce(pg_sequence_last_value('queues.lease_floor'), 0);
  v_last bigint := coalesce(pg_sequence_last_value('queues.lease_id_seq'), 0);
begin
  if current_setting('transaction_isolation') = 'read committed' then
    -- A lease that is being made at this moment has an id of the last few.
    perform setval('queues.lease_floor', greatest(v_floor, least(
      v_last - 1000,
      (select min(o.lease_id) from queues.lease_open o where o.lease_id >= v_floor))));
  end if;
end
$$;

-- What COPY left behind. Skipped when anybody holds the table: nobody is to
-- queue up behind this lock.
create or replace function queues.empty_staging() returns void
language plpgsql
as $$
begin
  if pg_relation_size('queues.staging') > 1048576 then
    lock table queues.staging in access exclusive mode nowait;
    truncate queues.staging;
  end if;
exception when lock_not_available then
  null;
end
$$;
