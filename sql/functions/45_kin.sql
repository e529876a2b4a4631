-- Kin: parents wait for their children.
--
-- Whether a parent may end is decided under an exclusive lock on it, in a
-- statement that begins after the lock is held. A child that ends holds the lock
-- in share mode up to its commit when it leaves the decision to others: it may
-- do so when it sees a sibling that nobody has begun to claim, because that one
-- ends later, finds no such sibling in the end, and then waits for the lock.
-- Without that share lock the last two children could each have seen the other
-- unfinished. No row is updated per child.
--
-- A transaction waits for these locks only while it holds none of them; later
-- on it tries, and leaves what it does not get to a later transaction, by a row
-- in queues.parent_check. So trees never deadlock, whatever a transaction ends.

-- The newest task that ever had a child tells, for one probe, that a whole
-- batch of newer tasks has none.
create or replace function queues.may_have_children(p_first_id bigint) returns boolean
language plpgsql
as $$
begin
  return exists (select from queues.task t where t.parent_id >= p_first_id);
end
$$;

create or replace function queues.parent_key(p_task_id bigint) returns bigint
language sql immutable
as $$ select 8101412779686100992 | p_task_id $$;

-- Takes the lock on a parent. False: others hold it, and waiting might deadlock.
create or replace function queues.lock_parent(p_task_id bigint, p_share boolean) returns boolean
language plpgsql
as $$
declare
  v_key bigint := queues.parent_key(p_task_id);
begin
  if not (case when p_share then pg_try_advisory_xact_lock_shared(v_key)
               else pg_try_advisory_xact_lock(v_key) end) then
    if current_setting('worker.kin_locked', true) = 'on' then
      return false;
    elsif p_share then
      perform pg_advisory_xact_lock_shared(v_key);
    else
      perform pg_advisory_xact_lock(v_key);
    end if;
  end if;
  perform set_config('worker.kin_locked', 'on', true);
  return true;
end
$$;

-- Locks those of the tasks that have children, newest first. Returns them.
create or replace function queues.lock_parents(p_ids bigint[]) returns bigint[]
language plpgsql
as $$
declare
  v_parents bigint[];
begin
  select array_agg(i.id order by i.id desc) into v_parents
    from unnest(p_ids) i(id)
   where exists (select from queues.task c where c.parent_id = i.id);
  for i in 1..coalesce(cardinality(v_parents), 0) loop
    perform pg_advisory_xact_lock(queues.parent_key(v_parents[i]));
  end loop;
  if v_parents is not null then
    perform set_config('worker.kin_locked', 'on', true);
  end if;
  return v_parents;
end
$$;

-- Newest children first: they are the ones most likely to be unfinished.
create or replace function worker.has_pending_children(p_task_id bigint) returns boolean
language plpgsql security definer
set search_path = pg_catalog, pg_temp
set enable_seqscan = off
set jit = off
set enable_bitmapscan = off
set plan_cache_mode = force_generic_plan
set enable_hashjoin = off
set enable_mergejoin = off
as $$
declare
  v_child bigint;
begin
  for v_child in
    select c.task_id from queues.task c where c.parent_id = p_task_id order by c.task_id desc
  loop
    if not exists (select from queues.task_completed d where d.task_id = v_child) then
      return true;
    end if;
  end loop;
  return false;
end
$$;

-- Has a child failed? Those of an earlier attempt do not count: that attempt
-- has been answered for.
create or replace function queues.has_failed_child(p_task_id bigint) returns boolean
language plpgsql
set enable_seqscan = off
set jit = off
set enable_bitmapscan = off
set plan_cache_mode = force_generic_plan
set enable_hashjoin = off
set enable_mergejoin = off
as $$
begin
  return exists (
    select from queues.task c join queues.task_completed d on d.task_id = c.task_id
     where c.parent_id = p_task_id and d.state = 'failed' and not queues.of_past_attempt(c));
end
$$;

-- Is there a child that nobody has begun to claim (xmax: nobody ever locked the
-- row)? From the newest row backwards, because claims eat from the other end.
create or replace function queues.has_unclaimed_child(p_parent_id bigint) returns boolean
language plpgsql
set enable_seqscan = off
set jit = off
set enable_bitmapscan = off
set enable_sort = off
set plan_cache_mode = force_generic_plan
as $$
declare
  v_oldest integer;
begin
  select (queues.live_generations(t.queue_id))[1] into v_oldest
    from queues.task t where t.task_id = p_parent_id;
  perform from queues.ready r
    where r.parent_id = p_parent_id and r.generation >= v_oldest and r.xmax = 0
    order by r.generation desc limit 1;
  if found then
    return true;
  end if;
  return exists (select from queues.timer t where t.parent_id = p_parent_id and t.xmax = 0);
end
$$;

-- Ends a parent that waits and has no unfinished child. The caller holds the
-- lock on it.
create or replace function queues.end_parent(p_parent_id bigint) returns boolean
language plpgsql
as $$
declare
  v_now timestamptz := worker.now();
  v_waiting queues.waiting;
begin
  select * into v_waiting from queues.waiting w where w.task_id = p_parent_id;
  if not found or worker.has_pending_children(p_parent_id) then
    return false;
  end if;
  delete from queues.waiting w where w.task_id = p_parent_id;
  if exists (select from queues.cancel_request r where r.task_id = p_parent_id) then
    perform queues.end_canceled(p_parent_id, null, v_waiting.queue_id, v_waiting.attempt, v_now,
                                v_waiting.duration_ms, v_waiting.worker_pid);
  elsif queues.has_failed_child(p_parent_id) then
    perform queues.end_failed(p_parent_id, null, v_waiting.queue_id, v_waiting.attempt, v_now,
                              'One or more child tasks failed', null, v_waiting.duration_ms,
                              v_waiting.worker_pid);
  else
    insert into queues.task_completed (task_id, completed_at, queue_id, state, duration_ms,
                                       worker_pid, attempt, result)
      values (p_parent_id, v_now, v_waiting.queue_id, 'completed', v_waiting.duration_ms,
              v_waiting.worker_pid, v_waiting.attempt, v_waiting.result);
    perform queues.note_ended(array[p_parent_id]);
  end if;
  perform queues.count_tasks(v_waiting.queue_id, v_now, null, array[p_parent_id]);
  return true;
end
$$;

-- Ends those of these parents, and of their parents in turn, that wait and have
-- no unfinished child. Returns how many.
create or replace function queues.settle_parents(p_parent_ids bigint[]) returns integer
language plpgsql
as $$
declare
  v_todo bigint[] := p_parent_ids;
  v_parent bigint;
  v_grandparent bigint;
  v_ended integer := 0;
begin
  -- A snapshot from before the lock cannot tell who was last: leave it to a
  -- transaction that can.
  if current_setting('transaction_isolation') <> 'read committed' then
    insert into queues.parent_check (parent_id) select distinct unnest(p_parent_ids);
    return 0;
  end if;
  loop
    select max(p.id) into v_parent from unnest(v_todo) p(id);
    exit when v_parent is null;
    v_todo := array_remove(v_todo, v_parent);
    if queues.has_unclaimed_child(v_parent)
       and queues.lock_parent(v_parent, true) and queues.has_unclaimed_child(v_parent) then
      continue;  -- that child comes by here when it ends
    elsif not queues.lock_parent(v_parent, false) then
      insert into queues.parent_check (parent_id) values (v_parent);
      continue;
    end if;
    if queues.end_parent(v_parent) then
      v_ended := v_ended + 1;
      select t.parent_id into v_grandparent from queues.task t where t.task_id = v_parent;
      if v_grandparent is not null then
        v_todo := v_todo || v_grandparent;
      end if;
    end if;
  end loop;
  return v_ended;
end
$$;

create or replace function worker.complete_parent_if_ready(p_parent_id bigint) returns boolean
language plpgsql security definer
set search_path = pg_catalog, pg_temp
set enable_seqscan = off
set jit = off
set enable_bitmapscan = off
set plan_cache_mode = force_generic_plan
as $$
begin
  return queues.settle_parents(array[p_parent_id]) > 0;
end
$$;

comment on function worker.complete_parent_if_ready(bigint) is
  'ends a task that waits and has no unfinished child; done by itself when a child ends';

-- Cancels what of a task's descendants has not begun. What a claim or a merge
-- holds at this moment is not waited for: a task whose parent has ended, or is
-- asked to stop, is canceled instead of begun. Descendants that wait for their
-- own children end with these. p_since: only children enqueued since then.
create or replace function queues.cancel_children(p_task_id bigint, p_now timestamptz,
                                                  p_reason text,
                                                  p_since timestamptz default null)
returns integer
language plpgsql
as $$
declare
  v_ready tid[];
  v_timers tid[];
  v_ids bigint[];
  v_child bigint;
  v_canceled integer := 0;
begin
  if not queues.may_have_children(p_task_id) then
    return 0;
  end if;
  -- Locked here, deleted in the next statement: as in queues.take.
  v_ready := array(
    with locked as materialized (
      select r.ctid, r.keyed, r.first_id from queues.ready r
       where r.parent_id = p_task_id
         and (p_since is null or (select c.enqueued_at from queues.task c
                                   where c.task_id = r.first_id) >= p_since)
         for update skip locked)
    select l.ctid from locked l
     where not l.keyed or exists (select from queues.pending_key k
                                   where k.task_id = l.first_id for update skip locked));
  v_timers := array(
    with locked as materialized (
      select t.ctid, t.keyed, t.first_id from queues.timer t
       where t.parent_id = p_task_id
         and (p_since is null or (select c.enqueued_at from queues.task c
                                   where c.task_id = t.first_id) >= p_since)
         for update skip locked)
    select l.ctid from locked l
     where not l.keyed or exists (select from queues.pending_key k
                                   where k.task_id = l.first_id for update skip locked));
  with ready as (
    delete from queues.ready where ctid = any(v_ready)
    returning queue_id, attempts, task_ids),
  timer as (
    delete from queues.timer where ctid = any(v_timers)
    returning queue_id, attempts, task_ids),
  ended as (
    insert into queues.task_completed (task_id, completed_at, queue_id, state, attempt, reason)
      select unnest(s.task_ids), p_now, s.queue_id, 'canceled', s.attempts, p_reason
        from (select * from ready union all select * from timer) s
    returning task_id)
  select array_agg(task_id) into v_ids from ended;
  if v_ids is not null then
    v_canceled := cardinality(v_ids);
    perform queues.drop_keys(v_ids);
    insert into queues.gate_check (gate)
      select distinct t.task_type || '/' || t.group_key from queues.task t
       where t.task_id = any(v_ids) and t.group_key is not null and t.lane > 3;
    perform queues.note_ended(v_ids);
    perform queues.count_ends(t.queue_id, p_now, 0, p_canceled => v_canceled)
       from queues.task t where t.task_id = v_ids[1];
  end if;
  if not queues.may_have_children(p_task_id + 1) then
    return v_canceled;
  end if;

  for v_child in
    select c.task_id from queues.task c
     where c.parent_id = p_task_id
       and (p_since is null or c.enqueued_at >= p_since)
       and exists (select from queues.task g where g.parent_id = c.task_id)
       and (c.task_id = any(v_ids)
            or not exists (select from queues.task_completed d where d.task_id = c.task_id))
  loop
    v_canceled := v_canceled + queues.cancel_children(v_child, p_now, p_reason);
    if exists (select from queues.waiting w where w.task_id = v_child) then
      insert into queues.cancel_request (task_id, reason, requested_at)
        values (v_child, p_reason, p_now) on conflict do nothing;
      insert into queues.parent_check (parent_id) values (v_child);
    end if;
  end loop;
  return v_canceled;
end
$$;

-- Parents that somebody could not decide about. Returns how many ended. Without
-- p_wait, one that is held at this moment is left to the next call.
create or replace function queues.check_parents(p_wait boolean default true) returns integer
language plpgsql
as $$
declare
  v_checks bigint[];
  v_parents bigint[];
begin
  if current_setting('transaction_isolation') <> 'read committed' then
    return 0;
  end if;
  select array_agg(s.check_id), array_agg(s.parent_id) into v_checks, v_parents
    from (select c.check_id, c.parent_id from queues.parent_check c
           order by c.check_id limit 1000 for update skip locked) s;
  if v_checks is null then
    return 0;
  end if;
  delete from queues.parent_check c where c.check_id = any(v_checks);
  if not p_wait then
    perform set_config('worker.kin_locked', 'on', true);
  end if;
  return queues.settle_parents(v_parents);
end
$$;

-- Tasks that have just ended: their after hooks are due, what is to follow them
-- is enqueued, who asked for it is told, and a request to stop is answered. Costs
-- a batch three probes when no command has a hook or a follower and nobody
-- cancels. What was canceled before it was ever begun has no after hook, as it
-- had no before hook. p_from_id, p_to_id: no id is below or above.
create or replace function queues.note_ended(
  p_ids bigint[], p_from_id bigint default null, p_to_id bigint default null)
returns void
language plpgsql
as $$
declare
  -- Few others lie between them: then one probe does for all.
  v_dense boolean := p_to_id - p_from_id < 4 * cardinality(p_ids);
  v_hooks boolean;
  v_followers boolean;
  v_asked boolean;
begin
  select exists (select from worker.command_registry c where c.after_procedure is not null),
         exists (select from worker.command_registry c where c.on_complete is not null),
         case when v_dense then exists (select from queues.cancel_request r
                                         where r.task_id between p_from_id and p_to_id)
              else exists (select from queues.cancel_request r where r.task_id = any(p_ids)) end
    into v_hooks, v_followers, v_asked;
  if v_hooks then
    insert into queues.after_due (task_id, queue_id)
      select t.task_id, t.queue_id
        from queues.task t join worker.command_registry c on c.command = t.task_type
       where t.task_id = any(p_ids) and c.after_procedure is not null
         and exists (select from queues.task_completed d
                      where d.task_id = t.task_id and (d.state <> 'canceled' or d.attempt > 0))
      on conflict do nothing;
  end if;
  if v_followers then
    perform queues.follow(p_ids);
  end if;
  if v_asked then
    delete from queues.cancel_request r
     where r.task_id = any(p_ids)
       and exists (select from queues.task_completed d where d.task_id = r.task_id);
  end if;
  if pg_sequence_last_value('queues.order_used') is not null then
    perform queues.end_ordered(p_ids);
  end if;
  if coalesce(current_setting('worker.notify_changes', true), '') = 'on' then
    perform pg_notify('worker_task_changed', json_build_object('id', d.task_id, 'state', d.state)::text)
       from queues.task_completed d where d.task_id = any(p_ids);
  end if;
end
$$;
