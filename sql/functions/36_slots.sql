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
-- anything starts; there can be no more of that than the first look has seen.
create or replace function queues.lock_slots(p_key text, p_want integer, p_pair integer)
returns queues.free_slots[]
language plpgsql
as $$
declare
  v_room integer[];
  v_need integer;
  v_above integer;
  v_locked integer[];
  v_slots queues.free_slots[];
begin
  select array_agg(s.slot_group_number) filter (where s.free > 0),
         count(*) filter (where s.free > 0 and s.before < p_want),
         -sum(s.free) filter (where s.free < 0)
    into v_room, v_need, v_above
    from (select c.slot_group_number, c.free,
                 sum(greatest(c.free, 0)) over (order by c.slot_group_number)
                   - greatest(c.free, 0) as before
            from (select g.slot_group_number,
                         g.capacity - (select coalesce(sum(cardinality(h.task_ids)), 0)
                                         from queues.slot_held h
                                        where h.task_key = p_key
                                          and h.slot_group_number = g.slot_group_number
                                          and h.lease_id >= g.floor) as free
                    from queues.slot_group g where g.task_key = p_key offset 0) c) s;
  if v_room is null then
    return '{}';
  end if;
  v_locked := array(
    select g.slot_group_number from queues.slot_group g
     where g.task_key = p_key and g.slot_group_number = any(v_room)
     order by g.slot_group_number limit v_need for update skip locked);
  if v_locked = '{}' then
    return null;
  end if;
  if random() < 0.005 then
    perform queues.raise_slot_floor(p_key, v_locked);
  end if;
  v_slots := array(
    select row(p_key, c.slot_group_number, c.free, p_pair)::queues.free_slots
      from (select g.slot_group_number,
                   (g.capacity - (select coalesce(sum(cardinality(h.task_ids)), 0)
                                    from queues.slot_held h
                                   where h.task_key = p_key
                                     and h.slot_group_number = g.slot_group_number
                                     and h.lease_id >= g.floor))::integer as free
              from queues.slot_group g
             where g.task_key = p_key and g.slot_group_number = any(v_locked) offset 0) c
     where c.free > 0
     order by c.slot_group_number);
  if v_above > 0 then
    v_above := queues.count_free(v_slots) - v_above;  -- so many may start
    v_slots := array(
      select row(p_key, s.slot_group_number, least(s.free, v_above - s.before), p_pair)::queues.free_slots
        from (select u.slot_group_number, u.free,
                     sum(u.free) over (order by u.slot_group_number) - u.free as before
                from unnest(v_slots) u) s
       where s.before < v_above
       order by s.slot_group_number);
  end if;
  return v_slots;
end
$$;

-- The caller holds these groups, so nobody can be adding a lease to them, and
-- those to come have greater numbers.
create or replace function queues.raise_slot_floor(p_key text, p_groups integer[]) returns void
language plpgsql
as $$
declare
  v_last bigint := coalesce(pg_sequence_last_value('queues.lease_id_seq'), 0);
begin
  update queues.slot_group g
     set floor = coalesce((select min(h.lease_id) from queues.slot_held h
                            where h.task_key = p_key and h.lease_id >= g.floor
                              and h.slot_group_number = g.slot_group_number), v_last)
   where g.task_key = p_key and g.slot_group_number = any(p_groups);
end
$$;

-- Not in language sql, in which it would be planned at every call.
create or replace function queues.count_free(p_slots queues.free_slots[]) returns integer
language plpgsql immutable
as $$
begin
  return (select coalesce(sum(s.free), 0) from unnest(p_slots) s);
end
$$;

-- Writes down who holds the slots that the caller has locked: the n-th task the
-- n-th slot. Of a lease that runs one task after the other only one is held per
-- key, up to the last task that needs it. p_lanes is parallel to the tasks.
create or replace function queues.hold_slots(
  p_slots queues.free_slots[], p_lease_ids bigint[], p_task_ids bigint[], p_lanes integer[],
  p_serial boolean, p_now timestamptz)
returns void
language plpgsql
as $$
declare
  v_key record;
  v_tasks record;
  v_groups integer[];
  v_last integer := cardinality(p_slots);
  v_pair integer := p_slots[1].pair;
begin
  -- One lease, and one key that all its tasks need: nearly always.
  if not p_serial and p_slots[1].task_key = p_slots[v_last].task_key
     and p_lease_ids[1] = all(p_lease_ids)
     and (v_pair = -1 or (p_lanes[1] / 2 = v_pair and p_lanes[1] = all(p_lanes))) then
    insert into queues.slot_held (task_key, slot_group_number, lease_id, task_ids, since)
      select s.task_key, s.slot_group_number, p_lease_ids[1],
             p_task_ids[s.before + 1 : s.before + s.free], p_now
        from (select u.task_key, u.slot_group_number, u.free,
                     (sum(u.free) over (order by u.i) - u.free)::integer as before
                from unnest(p_slots)
                       with ordinality u(task_key, slot_group_number, free, pair, i)) s
       where s.before < cardinality(p_task_ids);
    return;
  end if;
  for v_key in
    select distinct s.task_key, s.pair from unnest(p_slots) s order by s.task_key
  loop
    if not p_serial and (v_key.pair = -1 or not exists (select from unnest(p_lanes) l
                                                         where l / 2 <> v_key.pair)) then
      select p_lease_ids as leases, p_task_ids as ids into v_tasks;
    else
      select array_agg(t.lease_id order by t.i) as leases, array_agg(t.task_id order by t.i) as ids
        into v_tasks
        from (select t.*, row_number() over (partition by t.lease_id order by t.i desc) as last
                from unnest(p_lease_ids, p_task_ids, p_lanes)
                       with ordinality t(lease_id, task_id, lane, i)
               where v_key.pair in (-1, t.lane / 2)) t
       where not p_serial or t.last = 1;
    end if;
    continue when v_tasks.ids is null;  -- none of that command was taken
    v_groups := array(
      select s.slot_group_number from unnest(p_slots) s
       cross join generate_series(1, least(s.free, cardinality(v_tasks.ids)))
       where s.task_key = v_key.task_key);
    if p_serial then
      v_groups := array_fill(v_groups[1], array[cardinality(v_tasks.ids)]);
    end if;
    insert into queues.slot_held (task_key, slot_group_number, lease_id, task_ids, since)
      select v_key.task_key, t.slot_group_number, t.lease_id, array_agg(t.task_id), p_now
        from unnest(v_tasks.leases, v_tasks.ids, v_groups[1:cardinality(v_tasks.ids)])
               t(lease_id, task_id, slot_group_number)
       group by t.slot_group_number, t.lease_id;
  end loop;
end
$$;

-- Gives back the slots of a lease: of these tasks, or of all. The caller has
-- locked the lease, so it is done once. What waits for them is let go on.
create or replace function queues.release_slots(p_lease_id bigint, p_queue_id integer,
                                                p_ids bigint[] default null) returns void
language plpgsql
as $$
declare
  v_gates record;
  v_keys text[];
  v_counts integer[];
  v_last bigint[];
  v_more text[];
  v_gated boolean;
begin
  with gone as (
    delete from queues.slot_held h
     where h.lease_id = p_lease_id and (p_ids is null or h.task_ids <@ p_ids)
    returning h.task_key, h.task_ids)
  select array_agg(g.task_key), array_agg(cardinality(g.task_ids)),
         array_agg(g.task_ids[cardinality(g.task_ids)]), bool_or(g.task_key ~ '[/>]')
    into v_keys, v_counts, v_last, v_gated from gone g;
  if p_ids is not null then
    with less as (
      update queues.slot_held h
         set task_ids = array(select u from unnest(h.task_ids) u where not u = any(p_ids))
       where h.lease_id = p_lease_id and h.task_ids && p_ids
      returning h.task_key)
    select array_agg(l.task_key) into v_more from less l;
  end if;
  v_keys := v_keys || v_more;
  if v_keys is null then
    return;
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
  if pg_sequence_last_value(('queues.q' || p_queue_id || '_wake')::regclass) > 0 then
    if exists (select from queues.ready r
                where r.queue_id = p_queue_id
                  and r.generation = any(queues.live_generations(p_queue_id))) then
      perform queues.wake(p_queue_id);
    end if;
  end if;
end
$$;

-- Makes the groups of a key what its limit says; null: none. Nothing that runs is
-- touched: a group that is not wanted any more gets capacity 0, and goes when
-- nothing of it is held.
create or replace function queues.set_slots(p_key text, p_limit integer) returns void
language plpgsql
as $$
begin
  insert into queues.slot_group as g (task_key, slot_group_number, capacity)
    select p_key, l.slot_group_number, l.capacity from queues.slot_layout(p_limit) l
    on conflict (task_key, slot_group_number) do update set capacity = excluded.capacity
      where g.capacity <> excluded.capacity;
  update queues.slot_group g set capacity = 0
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
                        and h.slot_group_number = g.slot_group_number);
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
    select o.lease_id, l.task_ids, l.backend_pid
      from queues.lease_open o join queues.lease l using (lease_id)
     where case when p_key like 'queue:%'
             then l.queue_id = (select q.queue_id from worker.queue_registry q
                                 where 'queue:' || q.queue = p_key)
             else exists (select from unnest(l.task_ids) u(id)
                            join queues.task t on t.task_id = u.id
                           where t.task_type = rtrim(p_key, '/')) end
     order by o.lease_id for update of o skip locked
  loop
    insert into queues.slot_held (task_key, slot_group_number, lease_id, task_ids, since)
      select s.key, 1, v_lease.lease_id,
             case when v_lease.backend_pid is not null
                  then (array_agg(s.task_id order by s.i desc))[1:1]
                  else array_agg(s.task_id) end, p_now
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
                          where h.lease_id = v_lease.lease_id and h.task_key = s.key)
       group by s.key;
    get diagnostics v_n = row_count;
    if v_n > 0 then
      update queues.lease_open o set limited = true where o.lease_id = v_lease.lease_id;
      v_adopted := v_adopted + v_n;
    end if;
  end loop;
  -- These leases are older than the floor may be.
  if v_adopted > 0 then
    update queues.slot_group g set floor = 0 where g.task_key = p_key;
    delete from queues.gate_floor g where starts_with(g.task_key, p_key);
  end if;
  return v_adopted;
end
$$;
