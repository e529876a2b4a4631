-- Workers and their recovery. A worker owns its leases for as long as it is
-- heard of; an old task is no reason to take it away.

create or replace function worker.register_worker(
  p_name text, p_host text default null, p_pid integer default null)
returns bigint
language plpgsql security definer
set search_path = pg_catalog, pg_temp
as $$
declare
  v_worker_id bigint;
begin
  insert into worker.worker (name, host, pid, backend_pid, backend_start, started_at)
    values (p_name, p_host, p_pid, pg_backend_pid(), worker.backend_start(), worker.now())
    returning worker_id into v_worker_id;
  insert into worker.heartbeat (worker_id, beat_at) values (v_worker_id, worker.now());
  return v_worker_id;
end
$$;

-- False: this worker was given up, and its leases with it. It must stop what it
-- does and register anew.
create or replace function worker.beat(p_worker_id bigint) returns boolean
language plpgsql security definer
set search_path = pg_catalog, pg_temp
as $$
declare
  v_now timestamptz := worker.now();
  v_worker worker.worker;
begin
  select * into v_worker from worker.worker w where w.worker_id = p_worker_id;
  if not found or v_worker.stopped_at is not null then
    return false;
  end if;
  insert into worker.heartbeat (worker_id, beat_at) values (p_worker_id, v_now)
    on conflict do nothing;
  -- After a reconnect it is another session that proves the worker alive.
  if v_worker.backend_pid <> pg_backend_pid()
     or v_worker.backend_start is distinct from worker.backend_start() then
    update worker.worker w set backend_pid = pg_backend_pid(),
           backend_start = worker.backend_start()
     where w.worker_id = p_worker_id;
  end if;
  return true;
end
$$;

-- Whether notifications reach this worker; for people.
create or replace function worker.set_listening(p_worker_id bigint, p_listening boolean)
returns void
language plpgsql security definer
set search_path = pg_catalog, pg_temp
as $$
begin
  update worker.worker w set listening = p_listening where w.worker_id = p_worker_id;
end
$$;

-- A worker that leaves in order. What it still holds is handed on at once, and
-- charged to nobody.
create or replace function worker.stop_worker(p_worker_id bigint) returns integer
language plpgsql security definer
set search_path = pg_catalog, pg_temp
set enable_seqscan = off
set jit = off
set enable_bitmapscan = off
set plan_cache_mode = force_generic_plan
as $$
begin
  update worker.worker w set stopped_at = coalesce(w.stopped_at, worker.now())
   where w.worker_id = p_worker_id;
  return queues.recover_worker(p_worker_id, worker.now(), 'released');
end
$$;

-- A session that still runs a handler for somebody who is gone. Its identity is
-- pid and start together; a pid alone may be anybody's by now. False: it could
-- not be ended.
create or replace function queues.end_session(p_pid integer, p_start timestamptz)
returns boolean
language plpgsql
as $$
begin
  if not exists (select from pg_stat_get_activity(p_pid) a
                  where a.backend_start is null  -- another role's, and not ours to see
                     or (a.backend_start = p_start
                         and a.datid = (select d.oid from pg_database d
                                         where d.datname = current_database()))) then
    return true;
  elsif coalesce(current_setting('worker.fake_now', true), '') <> '' then
    return false;  -- by a clock that is not real nobody is dead
  end if;
  return pg_terminate_backend(p_pid, 5000);
exception when insufficient_privilege then
  raise warning 'the session with pid % runs an abandoned task and cannot be ended', p_pid
    using hint = 'grant pg_signal_backend to the owner of the schema';
  return false;
end
$$;

-- p_outcome: 'lost', or 'released' by a worker that leaves in order. A lease that
-- somebody is finishing at this moment is left to the next round.
create or replace function queues.recover_worker(p_worker_id bigint, p_now timestamptz,
                                                 p_outcome text default 'lost')
returns integer
language plpgsql
as $$
declare
  v_lease queues.lease;
  v_lost integer := 0;
begin
  for v_lease in
    select l.* from queues.lease_open o join queues.lease l using (lease_id)
     where o.worker_id = p_worker_id order by o.lease_id for update of o skip locked
  loop
    if v_lease.backend_pid is null
       or queues.end_session(v_lease.backend_pid, v_lease.backend_start) then
      v_lost := v_lost + queues.lose_lease(v_lease.lease_id, p_now, p_outcome);
    end if;
  end loop;
  return v_lost;
end
$$;

-- Leases of sessions that ran process_tasks and do so no longer, a worker's
-- fibers among them: the session is gone, or it is idle, which it cannot be while
-- it runs a task.
create or replace function queues.recover_sessions(p_now timestamptz) returns integer
language plpgsql
as $$
declare
  v_lease queues.lease;
  v_lost integer := 0;
begin
  for v_lease in
    select l.* from queues.lease_open o join queues.lease l using (lease_id)
     where o.backend_pid is not null
       and not exists (
         select from pg_stat_get_activity(o.backend_pid) a
          where a.backend_start is null  -- another role's, and not ours to see
             or (a.backend_start = l.backend_start
                 and (a.state is distinct from 'idle'
                      or a.state_change > clock_timestamp() - interval '1 second')))
     order by o.lease_id
       for update of o skip locked
  loop
    insert into worker.rescue (kind, task_id, rescued_at)
      select 'abandoned', u, p_now from unnest(queues.unfinished(v_lease)) u;
    v_lost := v_lost + queues.lose_lease(v_lease.lease_id, p_now);
  end loop;
  return v_lost;
end
$$;

create or replace function worker.reset_abandoned_processing_tasks() returns integer
language plpgsql security definer
set search_path = pg_catalog, pg_temp
set enable_hashjoin = off
set enable_mergejoin = off
set enable_seqscan = off
set jit = off
set enable_bitmapscan = off
set plan_cache_mode = force_generic_plan
as $$
begin
  return worker.recover_dead_workers() + queues.recover_sessions(worker.now());
end
$$;

comment on function worker.reset_abandoned_processing_tasks() is
  'makes tasks of workers and sessions that are gone ready again; returns how many';

-- A parent that waits although all its children have ended. The protocol leaves
-- none; this is the net below it.
create or replace function queues.rescue_parents() returns integer
language plpgsql
as $$
declare
  v_parent bigint;
  v_rescued integer := 0;
begin
  for v_parent in
    select w.task_id from queues.waiting w
     where w.since < worker.now() - interval '5 seconds'
       and not exists (select from queues.parent_check c where c.parent_id = w.task_id)
     order by random() limit 1000
  loop
    if not worker.has_pending_children(v_parent)
       and worker.complete_parent_if_ready(v_parent) then
      insert into worker.rescue (kind, task_id, rescued_at)
        values ('parent', v_parent, worker.now());
      v_rescued := v_rescued + 1;
    end if;
  end loop;
  return v_rescued;
end
$$;

-- Workers not heard of: for 10 seconds, or for 1.2 when the session that their
-- last heartbeat came from is gone as well. The latter does not count when the
-- server was restarted since: then nobody's session is left, and all are on
-- their way back. Returns how many tasks were recovered.
create or replace function worker.recover_dead_workers() returns integer
language plpgsql security definer
set search_path = pg_catalog, pg_temp
set enable_seqscan = off
set jit = off
set enable_bitmapscan = off
set plan_cache_mode = force_generic_plan
as $$
declare
  v_now timestamptz := worker.now();
  v_dead bigint;
  v_lost integer := 0;
  v_floor bigint := coalesce(pg_sequence_last_value('queues.lease_floor'), 0);
begin
  for v_dead in
    select w.worker_id
      from worker.worker w
     cross join lateral (select max(h.beat_at) as at from worker.heartbeat h
                          where h.worker_id = w.worker_id) beat
     where w.stopped_at is null
       and (beat.at is null or beat.at < v_now - interval '10 seconds'
            or (beat.at < v_now - interval '1.2 seconds'
                and beat.at > pg_postmaster_start_time()
                and not exists (
                  select from pg_stat_get_activity(w.backend_pid) a
                   where a.backend_start is null or a.backend_start = w.backend_start)))
       for update of w skip locked
  loop
    update worker.worker w set stopped_at = v_now where w.worker_id = v_dead;
    v_lost := v_lost + queues.recover_worker(v_dead, v_now);
  end loop;
  -- What was leased while its worker was being given up, or held at that moment.
  -- Below the floor there is none: see queues.raise_lease_floor().
  for v_dead in
    select distinct o.worker_id from queues.lease_open o
     where o.worker_id is not null
       and o.lease_id >= v_floor
       and not exists (select from worker.worker w
                        where w.worker_id = o.worker_id and w.stopped_at is null)
  loop
    v_lost := v_lost + queues.recover_worker(v_dead, v_now);
  end loop;
  return v_lost;
end
$$;
