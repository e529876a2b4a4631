-- Slots: how many tasks of a command or of a queue may run at once, over all
-- workers.
--
-- A key has at most 50 slot groups. A claim locks groups that have room, and
-- only then, in a later statement, counts what is held of them: what another
-- claim adds is added under the same lock, and what is given back is at worst
-- still counted. So the limit holds at every instant, and giving back needs no
-- lock: it deletes rows of queues.slot_held, which belong to a lease. There is
-- no counter that could be wrong.
--
-- A worker that ends a lease and claims in the same transaction goes on with the
-- slots it has: nobody else can count them as free before it commits. That is what
-- a busy one does nearly always, and it touches no slot group.
--
-- Locks of this kind are never waited for, so they cannot deadlock.

-- The lock that every hand-out of a queue shares, and that a change of limits
-- has alone.
create or replace function queues.limits_key(p_queue_id integer) returns bigint
language sql immutable
as $$ select 8106479329266892800 | p_queue_id $$;

-- The groups of a limit: as few rows as possible, at most 50, in sum the limit.
create or replace function queues.slot_layout(p_limit integer)
returns table (slot_group_number integer, capacity integer)
language sql immutable
as $$
  select g, least(s.size, p_limit - (g - 1) * s.size)
    from (select (p_limit + 49) / 50 as size) s,
         generate_series(1, (p_limit + s.size - 1) / nullif(s.size, 0)) g
$$;

-- Locks slots of a key, enough for p_want if there are that many. Returns what
-- is free of them; null when others have the locks on all that are free. What runs
-- above a lowered limit is in groups that are too full, and has to end before
-- anything starts; there can be no more of that than the first look has seen. That
-- nothing is free is said to who asks (worker.held_back), so that it does not ask again
-- in haste. And somebody may be gone who holds it: who waits for a slot looks more
-- often than maintenance does.
create or replace function queues.lock_slots(p_key text, p_want integer, p_pair integer)
returns queues.free_slots[]
language plpgsql
as $$
declare
  v_floor bigint := coalesce((select f.floor from queues.gate_floor f where f.task_key = p_key), 0);
  v_room integer[];
  v_need integer;
  v_above integer;
  v_locked integer[];
  v_groups integer[];
  c_dice constant double precision := 0.1;
begin
  select array_agg(s.slot_group_number) filter (where s.free > 0),
         count(*) filter (where s.free > 0 and s.before < p_want),
         coalesce(-sum(s.free) filter (where s.free < 0), 0)
    into v_room, v_need, v_above
    from (select c.slot_group_number, c.free,
                 sum(greatest(c.free, 0)) over (order by c.slot_group_number)
                   - greatest(c.free, 0) as before
            from (select g.slot_group_number, g.capacity - coalesce(u.used, 0) as free
                    from queues.slot_group g
                    left join (select n.n, count(*) as used
                                 from queues.slot_held h cross join lateral unnest(h.slot_groups) n(n)
                                where h.task_key = p_key and h.lease_id >= v_floor
                                group by n.n) u on u.n = g.slot_group_number
                   where g.task_key = p_key) c) s;
  if v_room is null then
    if random() < c_dice then
      perform set_config('worker.kin_locked', 'on', true);  -- waits for no parent
      if worker.reset_abandoned_processing_tasks() > 0 then
        return queues.lock_slots(p_key, p_want, p_pair);
      end if;
    end if;
    perform set_config('worker.held_back', 'on', true);
    return '{}';
  end if;
  v_locked := array(
    select g.slot_group_number from queues.slot_group g
     where g.task_key = p_key and g.slot_group_number = any(v_room)
     order by g.slot_group_number limit v_need for update skip locked);
  if v_locked = '{}' then
    return null;
  end if;
  v_groups := array(
    select c.slot_group_number
      from (select g.slot_group_number, g.capacity - coalesce(u.used, 0) as free
              from queues.slot_group g
              left join (select n.n, count(*) as used
                           from queues.slot_held h cross join lateral unnest(h.slot_groups) n(n)
                          where h.task_key = p_key and h.lease_id >= v_floor
                          group by n.n) u on u.n = g.slot_group_number
             where g.task_key = p_key and g.slot_group_number = any(v_locked)) c
     cross join lateral generate_series(1, least(c.free, p_want + v_above))
     order by c.slot_group_number);
  v_groups := v_groups[1:least(p_want, cardinality(v_groups) - v_above)];
  if v_groups = '{}' then
    return '{}';
  end if;
  return array[row(p_key, v_groups, p_pair, null)::queues.free_slots];
end
$$;

-- The same, but takes first what this transaction gives back (p_spare): for all
-- others those slots are in use until it commits, so no lock is needed to go on
-- using them. Not if they may be above the limit, which leases up to p_settled (null:
-- all) may be: then they are given back. The caller has locked the limits of the
-- queue before it read that, and a change of this one would need that lock.
create or replace function queues.get_slots(p_key text, p_want integer, p_pair integer,
                                            p_spare queues.free_slots[], p_settled bigint)
returns queues.free_slots[]
language plpgsql
as $$
declare
  c_dice constant double precision := 0.005;
  v_spare queues.free_slots[];
  v_first bigint;
  v_n integer;
begin
  if random() < c_dice then
    perform queues.raise_slot_floor(p_key);
  end if;
  if cardinality(p_spare) = 1 then
    if p_spare[1].task_key = p_key then
      v_spare := p_spare;
      v_spare[1].pair := p_pair;
      v_first := p_spare[1].lease_id;
      v_n := queues.count_free(p_spare);
    end if;
  elsif p_spare is not null then
    select array_agg(row(s.task_key, s.slot_groups, p_pair, s.lease_id)::queues.free_slots),
           min(s.lease_id), sum(cardinality(s.slot_groups))
      into v_spare, v_first, v_n
      from unnest(p_spare) s where s.task_key = p_key;
  end if;
  if v_spare is null then
    return queues.lock_slots(p_key, p_want, p_pair);
  end if;
  if (v_first > p_settled) is not true then
    delete from queues.slot_held h
     where h.task_key = p_key and h.lease_id = any(array(select s.lease_id from unnest(v_spare) s));
    return queues.lock_slots(p_key, p_want, p_pair);
  end if;
  if v_n < p_want then
    v_spare := v_spare || queues.lock_slots(p_key, p_want - v_n, p_pair);
  end if;
  return v_spare;
end
$$;

-- While all groups are locked nobody can be adding a lease that is not seen here,
-- those to come have greater numbers, and a lease that goes on with the slots of
-- another has a greater number too. So what is found stays true, and the locks are
-- given back at once, with the block: others need them.
create or replace function queues.raise_slot_floor(p_key text) returns void
language plpgsql
as $$
declare
  v_all boolean;
  v_last bigint;
  v_floor bigint;
begin
  if not pg_try_advisory_xact_lock(queues.gate_key(p_key)) then
    return;
  end if;
  begin
    select count(*) = (select count(*) from queues.slot_group g where g.task_key = p_key)
      into v_all
      from (select from queues.slot_group g where g.task_key = p_key for update skip locked) s;
    if v_all then
      v_last := coalesce(pg_sequence_last_value('queues.lease_id_seq'), 0);
      select coalesce(min(h.lease_id), v_last) into v_floor
        from queues.slot_held h
       where h.task_key = p_key
         and h.lease_id >= coalesce((select f.floor from queues.gate_floor f
                                      where f.task_key = p_key), 0);
    end if;
    raise exception using errcode = 'PK001';
  exception when sqlstate 'PK001' then
    null;
  end;
  if v_floor is not null then
    insert into queues.gate_floor (task_key, floor) values (p_key, v_floor)
      on conflict (task_key) do update set floor = excluded.floor;
  end if;
end
$$;

-- Not in language sql, in which it would be planned at every call.
create or replace function queues.count_free(p_slots queues.free_slots[]) returns integer
language plpgsql immutable
as $$
declare
  v_slots queues.free_slots;
  v_n integer := 0;
begin
  if cardinality(p_slots) = 1 then
    v_slots := p_slots[1];
    return cardinality(v_slots.slot_groups);
  end if;
  foreach v_slots in array p_slots loop
    v_n := v_n + cardinality(v_slots.slot_groups);
  end loop;
  return v_n;
end
$$;

-- Writes down who holds the slots that the caller may fill: the n-th task the
-- n-th slot. Of a lease that runs one task after the other only one is held per
-- key, up to the last task that needs it. p_lanes is parallel to the tasks. Returns
-- whether all slots of one lease have gone over to another, in its row.
create or replace function queues.hold_slots(
  p_slots queues.free_slots[], p_lease_ids bigint[], p_task_ids bigint[], p_lanes integer[],
  p_serial boolean, p_now timestamptz)
returns boolean
language plpgsql
as $$
declare
  v_slots queues.free_slots := p_slots[1];
  v_ids bigint[] := p_task_ids;
  v_key record;
begin
  -- One lease, and slots from one place: nearly always.
  if not p_serial and cardinality(p_slots) = 1 and p_lease_ids[1] = all(p_lease_ids) then
    if v_slots.pair <> -1
       and not (p_lanes[1] / 2 = v_slots.pair and p_lanes[1] = all(p_lanes)) then
      v_ids := array(select u.id from unnest(p_task_ids, p_lanes) with ordinality u(id, lane, i)
                      where u.lane / 2 = v_slots.pair order by u.i);
    end if;
    if v_ids = '{}' then
      return false;
    elsif v_slots.lease_id is not null then
      update queues.slot_held h
         set lease_id = p_lease_ids[1], task_ids = v_ids,
             slot_groups = v_slots.slot_groups[1:cardinality(v_ids)], since = p_now
       where h.lease_id = v_slots.lease_id and h.task_key = v_slots.task_key;
      if not found then
        raise exception 'the slots of lease % have gone', v_slots.lease_id
          using errcode = 'internal_error';
      end if;
      return cardinality(v_ids) = cardinality(v_slots.slot_groups);
    end if;
    insert into queues.slot_held (task_key, lease_id, task_ids, slot_groups, since)
      values (v_slots.task_key, p_lease_ids[1], v_ids,
              v_slots.slot_groups[1:cardinality(v_ids)], p_now);
    return false;
  end if;
  for v_key in
    select s.task_key, s.pair, array_agg(n.n order by s.i, n.i) as groups
      from unnest(p_slots) with ordinality s(task_key, slot_groups, pair, lease_id, i)
     cross join lateral unnest(s.slot_groups) with ordinality n(n, i)
     group by s.task_key, s.pair order by s.task_key
  loop
    insert into queues.slot_held (task_key, lease_id, task_ids, slot_groups, since)
      select v_key.task_key, t.lease_id, array_agg(t.task_id order by t.n),
             array_agg(v_key.groups[case when p_serial then 1 else t.n end] order by t.n), p_now
        from (select u.lease_id, u.task_id, row_number() over (order by u.i) as n,
                     row_number() over (partition by u.lease_id order by u.i desc) as last
                from unnest(p_lease_ids, p_task_ids, p_lanes)
                       with ordinality u(lease_id, task_id, lane, i)
               where v_key.pair in (-1, u.lane / 2)) t
       where not p_serial or t.last = 1
       group by t.lease_id;
  end loop;
  return false;
end
$$;

-- Gives back the slots of a lease: of these tasks, or of all. The caller has
-- locked the lease, so it is done once. What waits for them is let go on. With
-- p_keep, slots of slot groups are not given back but returned, for the next
-- hand-out in this transaction; the caller then calls queues.release_spare. Without
-- p_wake nobody is told: the caller goes on to claim.
create or replace function queues.release_slots(
  p_open queues.lease_open, p_ids bigint[] default null, p_keep boolean default false,
  p_wake boolean default true)
returns queues.free_slots[]
language plpgsql
as $$
declare
  v_spare queues.free_slots[];
  v_gates record;
  v_keys text[];
  v_counts integer[];
  v_last bigint[];
  v_more text[];
  v_gated boolean;
  v_kept queues.free_slots := p_open.kept;
begin
  if v_kept.task_key is not null and not p_open.partial then
    if p_keep then
      v_kept.lease_id := coalesce(v_kept.lease_id, p_open.lease_id);
      return array[v_kept];
    elsif v_kept.lease_id is not null then
      update queues.slot_held h
         set lease_id = p_open.lease_id, since = l.leased_at,
             task_ids = case when cardinality(l.task_ids) = cardinality(h.slot_groups)
                             then l.task_ids
                             else array(select u.id from unnest(l.task_ids) with ordinality u(id, i)
                                          join queues.task t on t.task_id = u.id
                                         where t.task_type = h.task_key order by u.i) end
        from queues.lease l
       where h.lease_id = v_kept.lease_id and h.task_key = v_kept.task_key
         and l.lease_id = p_open.lease_id;
    end if;
  end if;
  if p_keep then
    select array_agg(row(h.task_key, h.slot_groups, null, h.lease_id)::queues.free_slots)
             filter (where h.slot_groups is not null),
           bool_or(h.slot_groups is null)
      into v_spare, v_gated
      from queues.slot_held h where h.lease_id = p_open.lease_id;
    if v_gated is not true then
      return v_spare;
    end if;
  end if;
  with gone as (
    delete from queues.slot_held h
     where h.lease_id = p_open.lease_id and (p_ids is null or h.task_ids <@ p_ids)
       and not (p_keep and h.slot_groups is not null)
    returning h.task_key, h.task_ids)
  select array_agg(g.task_key), array_agg(cardinality(g.task_ids)),
         array_agg(g.task_ids[cardinality(g.task_ids)]), bool_or(g.task_key ~ '[/>]')
    into v_keys, v_counts, v_last, v_gated from gone g;
  if p_ids is not null then
    with less as (
      update queues.slot_held h
         set task_ids = array(select u.id from unnest(h.task_ids) with ordinality u(id, i)
                               where not u.id = any(p_ids) order by u.i),
             slot_groups = case when h.slot_groups is not null then
               array(select u.n from unnest(h.task_ids, h.slot_groups) with ordinality u(id, n, i)
                      where not u.id = any(p_ids) order by u.i) end
       where h.lease_id = p_open.lease_id and h.task_ids && p_ids
      returning h.task_key)
    select array_agg(l.task_key) into v_more from less l;
  end if;
  v_keys := v_keys || v_more;
  if v_keys is null then
    return v_spare;
  end if;
  if v_gated or v_more is not null then
    select array_agg(s.key) as keys, array_agg(s.n) as counts, array_agg(s.last) as last
      into v_gates
      from (select u.key, sum(coalesce(u.n, 1))::integer as n, max(u.last) as last
              from unnest(v_keys, v_counts, v_last) u(key, n, last)
             where u.key ~ '[/>]' group by u.key) s;
    if cardinality(v_gates.keys) = 1 then
      perform queues.unpark(v_gates.keys[1], v_gates.counts[1], v_gates.last[1]);
    elsif v_gates.keys is not null then
      perform queues.unpark_all(v_gates.keys, v_gates.counts, v_gates.last);
    end if;
  end if;
  if p_wake then
    perform queues.wake_for_slots(p_open.queue_id);
  end if;
  return v_spare;
end
$$;

-- Who sleeps may be waiting for slots that were given back.
create or replace function queues.wake_for_slots(p_queue_id integer) returns void
language plpgsql
as $$
begin
  if pg_sequence_last_value(('queues.q' || p_queue_id || '_wake')::regclass) > 0 then
    if exists (select from queues.ready r
                where r.queue_id = p_queue_id
                  and r.generation = any(queues.live_generations(p_queue_id))) then
      perform queues.wake(p_queue_id);
    end if;
  end if;
end
$$;

-- Gives back what was kept of leases that have ended and that no other has got.
create or replace function queues.release_spare(p_spare queues.free_slots[], p_queue_id integer)
returns void
language plpgsql
as $$
declare
  v_leases bigint[] := array(select distinct s.lease_id from unnest(p_spare) s);
begin
  delete from queues.slot_held h where h.lease_id = any(v_leases);
  perform queues.wake_for_slots(q.queue_id)
     from (select p_queue_id as queue_id union
           select l.queue_id from queues.lease l where l.lease_id = any(v_leases)) q;
end
$$;

-- Who holds what at this moment.
create or replace view queues.slot_holder as
  select h.task_key, coalesce(o.lease_id, h.lease_id) as lease_id,
         case when l.task_ids is null then h.task_ids
              when cardinality(l.task_ids) = cardinality(h.slot_groups) then l.task_ids
              else array(select u.id from unnest(l.task_ids) with ordinality u(id, i)
                           join queues.task t on t.task_id = u.id
                          where t.task_type = h.task_key order by u.i) end as task_ids,
         h.slot_groups,
         coalesce(l.leased_at, h.since) as since
    from queues.slot_held h
    left join queues.lease_open o on not o.partial and (o.kept).lease_id = h.lease_id
                                 and (o.kept).task_key = h.task_key
    left join queues.lease l on l.lease_id = o.lease_id;

-- Makes the groups of a key what its limit says; null: none. Nothing that runs is
-- touched: a group that is not wanted any more gets capacity 0, and goes when
-- nothing of it is held.
create or replace function queues.set_slots(p_key text, p_limit integer) returns void
language plpgsql
as $$
declare
  v_last bigint := coalesce(pg_sequence_last_value('queues.lease_id_seq'), 0);
begin
  insert into queues.slot_group as g (task_key, slot_group_number, capacity, settled)
    select p_key, l.slot_group_number, l.capacity, v_last from queues.slot_layout(p_limit) l
    on conflict (task_key, slot_group_number)
    do update set capacity = excluded.capacity, settled = excluded.settled
      where g.capacity <> excluded.capacity or g.slot_group_number = 1;
  update queues.slot_group g set capacity = 0, settled = v_last
   where g.task_key = p_key and g.capacity > 0
     and not exists (select from queues.slot_layout(p_limit) l
                      where l.slot_group_number = g.slot_group_number);
  perform queues.drop_empty_groups(p_key);
end
$$;

create or replace function queues.drop_empty_groups(p_key text) returns void
language plpgsql
as $$
begin
  delete from queues.slot_group g
   where (p_key is null or g.task_key = p_key) and g.capacity = 0
     and not exists (select from queues.slot_held h where h.task_key = g.task_key
                        and g.slot_group_number = any(h.slot_groups));
end
$$;

-- What runs already when a limit begins to be. Leases that somebody is ending at
-- this moment are left out: they are as good as over. The caller keeps new ones
-- from being made. p_key: 'COMMAND', 'COMMAND/' for its group keys, 'queue:QUEUE'.
create or replace function queues.adopt_running(p_key text, p_now timestamptz) returns integer
language plpgsql
as $$
declare
  v_lease record;
  v_adopted integer := 0;
  v_n integer;
begin
  for v_lease in
    select o.lease_id, l.task_ids, l.backend_pid,
           case when not o.partial then (o.kept).lease_id end as kept_from
      from queues.lease_open o join queues.lease l using (lease_id)
     where case when p_key like 'queue:%'
             then l.queue_id = (select q.queue_id from worker.queue_registry q
                                 where 'queue:' || q.queue = p_key)
             else exists (select from unnest(l.task_ids) u(id)
                            join queues.task t on t.task_id = u.id
                           where t.task_type = rtrim(p_key, '/')) end
     order by o.lease_id for update of o skip locked
  loop
    insert into queues.slot_held (task_key, lease_id, task_ids, slot_groups, since)
      select s.key, v_lease.lease_id,
             case when v_lease.backend_pid is not null
                  then (array_agg(s.task_id order by s.i desc))[1:1]
                  else array_agg(s.task_id) end,
             case when p_key not like '%/'
                  then array_fill(1, array[case when v_lease.backend_pid is not null then 1
                                                else count(*)::integer end]) end, p_now
        from (select t.task_id, u.i,
                     case when p_key like 'queue:%' then p_key
                          when p_key like '%/' then t.task_type || '/' || t.group_key
                          else t.task_type end as key
                from unnest(v_lease.task_ids) with ordinality u(id, i)
                join queues.task t on t.task_id = u.id
               where (p_key like 'queue:%' or t.task_type = rtrim(p_key, '/'))
                 and not exists (select from queues.task_completed c where c.task_id = u.id)
                 and not exists (select from queues.attempt_end e
                                  where e.task_id = u.id and e.lease_id = v_lease.lease_id)) s
       where s.key is not null
         and not exists (select from queues.slot_held h
                          where h.lease_id in (v_lease.lease_id, v_lease.kept_from)
                            and h.task_key = s.key)
       group by s.key;
    get diagnostics v_n = row_count;
    if v_n > 0 then
      update queues.lease_open o set limited = true where o.lease_id = v_lease.lease_id;
      v_adopted := v_adopted + v_n;
    end if;
  end loop;
  -- These leases are older than the floor may be, and may be more than the limit.
  if v_adopted > 0 then
    update queues.slot_group g
       set settled = coalesce(pg_sequence_last_value('queues.lease_id_seq'), 0)
     where g.task_key = p_key and g.slot_group_number = 1;
    delete from queues.gate_floor g where starts_with(g.task_key, p_key);
  end if;
  return v_adopted;
end
$$;
