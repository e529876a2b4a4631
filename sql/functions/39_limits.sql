-- Limits from the outside: what happens when one changes, what is in use, and the
-- net below it.

-- A command whose tasks need a closer look has some in this queue from now on.
create or replace function queues.add_gated(p_queue_id integer, p_command_id integer,
                                            p_strays_since timestamptz default null) returns void
language plpgsql
as $$
begin
  if p_strays_since is not null then
    update queues.gated g set strays_since = greatest(g.strays_since, p_strays_since)
     where g.queue_id = p_queue_id and g.command_id = p_command_id and g.strays_since is not null;
    if found then
      return;
    end if;
  end if;
  if p_strays_since is not null
     or not exists (select from queues.gated g
                     where g.queue_id = p_queue_id and g.command_id = p_command_id) then
    perform nextval('queues.gated_used');
    insert into queues.gated (queue_id, command_id, strays_since, simple, shared_lane)
      select p_queue_id, p_command_id, p_strays_since, c.simple, c.shared_lane
        from worker.command_registry c where c.command_id = p_command_id;
  end if;
end
$$;

-- Brings what queues.gated says of a command up to date.
create or replace function queues.describe_gated(p_command worker.command_registry) returns void
language plpgsql
as $$
begin
  update queues.gated g set simple = p_command.simple, shared_lane = p_command.shared_lane
   where g.command_id = p_command.command_id
     and (g.simple, g.shared_lane) is distinct from (p_command.simple, p_command.shared_lane);
end
$$;

-- Tasks were added to a lane of a command's own that is not known by the registry
-- alone: in another queue, or with an order key.
create or replace function queues.note_gated(p_command text, p_queue_id integer,
                                             p_order_key text, p_ids bigint[]) returns void
language plpgsql
as $$
begin
  perform queues.add_gated(p_queue_id, c.command_id)
     from worker.command_registry c where c.command = p_command;
  if p_order_key is not null then
    if pg_sequence_last_value('queues.order_used') is null then
      perform nextval('queues.order_used');
    end if;
    insert into queues.ordered (task_type, order_key, task_id)
      select p_command, p_order_key, u from unnest(p_ids) u;
  end if;
end
$$;

-- Keeps the hand-outs of these queues out until the end of the transaction, and
-- waits for those that are under way: what they have leased is then seen. While
-- somebody waits for this lock no hand-out gets it, so it is waited for a moment at
-- a time: one session that keeps its hand-out open must not stop all others.
create or replace function queues.lock_limits(p_queue_ids integer[]) returns void
language plpgsql
as $$
declare
  c_moment constant double precision := 0.2;
  v_timeout text := current_setting('lock_timeout');
  v_since timestamptz := clock_timestamp();
  v_queue_id integer;
begin
  for v_queue_id in select distinct q from unnest(p_queue_ids) q order by q loop
    loop
      begin
        perform set_config('lock_timeout', (c_moment * 1000)::integer::text, true);
        perform pg_advisory_xact_lock(queues.limits_key(v_queue_id));
        exit;
      exception when lock_not_available then
        if v_timeout <> '0' and clock_timestamp() - v_since > v_timeout::interval then
          raise;
        end if;
        perform pg_sleep(c_moment);
      end;
    end loop;
  end loop;
  perform set_config('lock_timeout', v_timeout, true);
end
$$;

create or replace function worker.command_limits_changed() returns trigger
language plpgsql security definer
set search_path = pg_catalog, pg_temp
as $$
declare
  v_now timestamptz := worker.now();
  v_queues integer[];
begin
  if tg_op = 'DELETE' then
    delete from queues.slot_group g where g.task_key = old.command;
    delete from queues.gated g where g.command_id = old.command_id;
    delete from queues.rate_tick r
     where r.task_key = old.command or starts_with(r.task_key, old.command || '/');
    return null;
  elsif tg_op = 'INSERT' then
    if worker.is_limited(new) then
      perform queues.add_gated(new.queue_id, new.command_id);
      perform queues.set_slots(new.command, new.concurrency_limit);
    end if;
    return null;
  end if;

  v_queues := array(select distinct g.queue_id from queues.gated g
                     where g.command_id = new.command_id) || new.queue_id || old.queue_id;
  if new.concurrency_limit is distinct from old.concurrency_limit
     or new.group_concurrency_limit is distinct from old.group_concurrency_limit then
    perform queues.lock_limits(v_queues);
  end if;
  -- What is pending stays where it is: in a lane of its own, which is served for
  -- as long as anything is in it, or in a shared one, where claims look out for it
  -- from now on, and for what others are just adding.
  if new.lane <> old.lane and old.lane > 3 or worker.is_limited(new) then
    perform queues.add_gated(new.queue_id, new.command_id);
  end if;
  perform queues.describe_gated(new);
  if new.lane <> old.lane and old.lane <= 3 then
    perform queues.add_gated(q.queue_id, new.command_id, v_now) from worker.queue_registry q;
  end if;
  if new.command <> old.command then
    perform queues.set_slots(old.command, null);
    perform queues.set_slots(new.command, new.concurrency_limit);
  elsif new.concurrency_limit is distinct from old.concurrency_limit then
    perform queues.set_slots(new.command, new.concurrency_limit);
    if old.concurrency_limit is null then
      perform queues.adopt_running(new.command, v_now);
    end if;
  end if;
  if new.group_concurrency_limit is not null and old.group_concurrency_limit is null then
    perform queues.adopt_running(new.command || '/', v_now);
  end if;
  if new.group_concurrency_limit is distinct from old.group_concurrency_limit
     or new.group_rate_limit is distinct from old.group_rate_limit
     or new.rate_period <> old.rate_period or new.order_blocks <> old.order_blocks then
    perform queues.recheck_gates(new.command);
  end if;
  perform queues.wake(q) from unnest(v_queues) q;
  return null;
end
$$;

create or replace trigger command_registry_limits
  after insert or update or delete on worker.command_registry
  for each row execute function worker.command_limits_changed();

-- Every gate of a command is decided about anew.
create or replace function queues.recheck_gates(p_command text) returns void
language plpgsql
as $$
begin
  -- A failed one that blocked and does so no longer.
  perform queues.end_ordered(array_agg(o.task_id))
     from queues.ordered o join queues.task_completed d on d.task_id = o.task_id
    where o.task_type = p_command;
  insert into queues.gate_check (gate)
    select distinct t.gate from queues.timer t
     where t.gate is not null and substring(t.gate from '^[^/>]*') = p_command;
end
$$;

create or replace function worker.queue_limits_changed() returns trigger
language plpgsql security definer
set search_path = pg_catalog, pg_temp
as $$
begin
  if tg_op = 'DELETE' then
    delete from queues.slot_group g where g.task_key = 'queue:' || old.queue;
    delete from queues.gated g where g.queue_id = old.queue_id;
    return null;
  elsif tg_op = 'INSERT' then
    perform queues.set_slots('queue:' || new.queue, new.concurrency_limit);
    return null;
  end if;
  if new.concurrency_limit is distinct from old.concurrency_limit or new.queue <> old.queue then
    perform queues.lock_limits(array[new.queue_id]);
    if new.queue <> old.queue then
      update queues.slot_group g set task_key = 'queue:' || new.queue
       where g.task_key = 'queue:' || old.queue;
      update queues.slot_held h set task_key = 'queue:' || new.queue
       where h.task_key = 'queue:' || old.queue;
      delete from queues.gate_floor f where f.task_key = 'queue:' || new.queue;
    end if;
    perform queues.set_slots('queue:' || new.queue, new.concurrency_limit);
    if old.concurrency_limit is null then
      perform queues.adopt_running('queue:' || new.queue, worker.now());
    end if;
    perform queues.wake(new.queue_id);
  end if;
  return null;
end
$$;

create or replace trigger queue_registry_limits
  after insert or update or delete on worker.queue_registry
  for each row execute function worker.queue_limits_changed();

-- A zone that does not exist would be noticed by the first claim, which is late.
create or replace function worker.command_window_check() returns trigger
language plpgsql
set search_path = pg_catalog, pg_temp
as $$
begin
  perform now() at time zone new.window_zone;
  return new;
exception when invalid_parameter_value then
  raise exception 'unknown time zone "%"', new.window_zone
    using errcode = 'invalid_parameter_value', hint = 'see pg_timezone_names';
end
$$;

create or replace trigger command_registry_window
  before insert or update of window_zone on worker.command_registry
  for each row when (new.window_zone is not null)
  execute function worker.command_window_check();

-- The keys with a limit, and what is in use of each. Group keys are there while
-- somebody holds them or waits for them.
create or replace view queues.limited_key as
  select c.command as task_key, 'command' as kind, c.concurrency_limit, c.command, c.queue_id
    from worker.command_registry c where c.concurrency_limit is not null
  union all
  select 'queue:' || q.queue, 'queue', q.concurrency_limit, null, q.queue_id
    from worker.queue_registry q where q.concurrency_limit is not null
  union all
  select k.task_key, 'group', c.group_concurrency_limit, c.command, c.queue_id
    from (select h.task_key from queues.slot_held h where h.task_key like '%/%'
          union select t.gate from queues.timer t where t.gate like '%/%') k
    join worker.command_registry c on c.command = split_part(k.task_key, '/', 1)
   where c.group_concurrency_limit is not null;

create or replace view worker.concurrency_slots as
  select g.task_key, g.slot_group_number, g.capacity,
         (select count(*) from queues.slot_held h cross join lateral unnest(h.slot_groups) n(n)
           where h.task_key = g.task_key and n.n = g.slot_group_number)::integer as used
    from queues.slot_group g
  union all
  -- Those of a group key are numbered as they are taken.
  select k.task_key, l.slot_group_number, l.capacity,
         case when l.slot_group_number = l.groups
                then greatest(h.used - l.before, 0)
              else least(l.capacity, greatest(h.used - l.before, 0)) end::integer
    from queues.limited_key k
   cross join lateral (
     select s.slot_group_number, s.capacity, count(*) over () as groups,
            sum(s.capacity) over (order by s.slot_group_number) - s.capacity as before
       from queues.slot_layout(k.concurrency_limit) s) l
   cross join lateral (
     select coalesce(sum(cardinality(h.task_ids)), 0) as used from queues.slot_held h
      where h.task_key = k.task_key) h
   where k.kind = 'group';

comment on view worker.concurrency_slots is 'the slots of every limit, and how many are in use';

create or replace view worker.slot_usage as
  select k.task_key, k.kind, k.concurrency_limit as "limit", h.used, h.holders,
         case k.kind
           when 'group' then (select count(*) from queues.timer t where t.gate = k.task_key)
           when 'queue' then (select coalesce(sum(cardinality(r.task_ids)), 0) from queues.ready r
                               where r.queue_id = k.queue_id)
           else (select coalesce(sum(cardinality(r.task_ids)), 0)
                   from (select distinct g.queue_id, g.command_id from queues.gated g
                           join worker.command_registry c using (command_id)
                          where c.command = k.command) q
                  cross join lateral (
                    select l.live[1] as first from queues.generation_ledger l
                     where l.queue_id = q.queue_id order by l.version desc limit 1) live
                   join queues.ready r on r.queue_id = q.queue_id and r.generation >= live.first
                    and r.lane in (2 * q.command_id, 2 * q.command_id + 1))
              + (select count(*) from queues.timer t
                  where starts_with(t.gate, k.command || '/')
                     or starts_with(t.gate, k.command || '>')) end::bigint as waiting
    from queues.limited_key k
   cross join lateral (
     select count(u.id) as used,
            coalesce(jsonb_agg(jsonb_build_object(
              'task', u.id, 'lease', h.lease_id, 'worker', l.worker_id, 'pid', l.backend_pid,
              'since', h.since) order by h.since, u.id) filter (where u.id is not null), '[]') as holders
       from queues.slot_holder h
       left join queues.lease l on l.lease_id = h.lease_id
      cross join lateral (select unnest(h.task_ids) as id) u
      where h.task_key = k.task_key) h;

comment on view worker.slot_usage is
  'every limit of how many may run at once: in use, by whom since when, and how many wait';

-- What is wrong with the slots; there should be nothing. A slot and its lease come
-- and go in one transaction, so what one statement sees is no matter of time.
create or replace view worker.slot_problem as
  select h.task_key, h.lease_id, h.task_ids, 'its lease has ended' as problem
    from queues.slot_holder h
   where not exists (select from queues.lease_open o where o.lease_id = h.lease_id)
  union all
  select k.task_key, o.lease_id, array_agg(t.task_id), 'runs without a slot'
    from queues.lease_open o
    join queues.lease l on l.lease_id = o.lease_id
   cross join lateral unnest(l.task_ids) u(id)
    join queues.task t on t.task_id = u.id
    join worker.command_registry c on c.command = t.task_type
    join worker.queue_registry q on q.queue_id = l.queue_id
   cross join lateral (values
     (case when c.concurrency_limit is not null then t.task_type end),
     (case when c.group_concurrency_limit is not null then t.task_type || '/' || t.group_key end),
     (case when q.concurrency_limit is not null then 'queue:' || q.queue end)) k(task_key)
   where k.task_key is not null
     and (select true from queues.task_completed d where d.task_id = u.id) is null
     and (select true from queues.attempt_end e
           where e.task_id = u.id and e.lease_id = o.lease_id) is null
     and not exists (select from queues.slot_holder h
                      where h.lease_id = o.lease_id and h.task_key = k.task_key)
   group by k.task_key, o.lease_id;

comment on view worker.slot_problem is
  'slots without a lease, and tasks that run without a slot; there should be none';

-- Lists these problems and, with p_repair, puts them right.
create or replace function worker.reconcile_slots(p_repair boolean default false)
returns table (task_key text, lease_id bigint, task_ids bigint[], problem text)
language plpgsql security definer
set search_path = pg_catalog, pg_temp
as $$
#variable_conflict use_column
declare
  v_bad worker.slot_problem;
begin
  for v_bad in select p.* from worker.slot_problem p order by p.task_key, p.lease_id loop
    return query select v_bad.task_key, v_bad.lease_id, v_bad.task_ids, v_bad.problem;
    continue when not p_repair;
    if v_bad.problem = 'its lease has ended' then
      delete from queues.slot_held h
       where h.lease_id = v_bad.lease_id and h.task_key = v_bad.task_key;
      insert into queues.gate_check (gate) select v_bad.task_key where v_bad.task_key ~ '[/>]';
    else
      perform queues.adopt_running(case when v_bad.task_key like '%/%'
                                        then split_part(v_bad.task_key, '/', 1) || '/'
                                        else v_bad.task_key end, worker.now());
    end if;
  end loop;
end
$$;

comment on function worker.reconcile_slots(boolean) is
  'lists what worker.slot_problem has; with true, puts it right';

-- The net: slots that leaked, keys whose followers nobody would wake any more, and
-- what is left of limits that are over.
create or replace function queues.maintain_limits(p_now timestamptz) returns void
language plpgsql
as $$
declare
  v_from bigint := coalesce(pg_sequence_last_value('queues.gate_cursor'), 0);
  v_parked record;
  v_last bigint;
begin
  if random() < 0.1 then
    perform queues.find_lost_lanes();
    perform queues.forget_gated(p_now);
    perform worker.reconcile_slots(true);
    delete from queues.gate_floor f
     where not exists (select from queues.slot_held h where h.task_key = f.task_key)
       and not exists (select from queues.slot_group g where g.task_key = f.task_key);
  end if;
  if not exists (select from queues.gated) and not exists (select from queues.slot_group) then
    return;
  end if;
  perform queues.drop_empty_groups(null);
  v_last := coalesce(pg_sequence_last_value('queues.gate_check_check_id_seq'), 0);
  perform queues.check_gates(0);
  perform setval('queues.gate_check_floor',
                 coalesce((select min(c.check_id) from queues.gate_check c), v_last + 1));
  -- Round and round over all that is parked. Nobody holds the key: then one that was
  -- let go stands in the line, or there was one and it is gone. Which of the two is
  -- only sure when the line is empty.
  select array_agg(s.first_id) as ids, max(s.first_id) as last into v_parked
    from (select t.first_id
            from worker.queue_registry q
           cross join lateral (
             select t.first_id from queues.timer t
              where t.queue_id = q.queue_id and t.run_at = queues.never() and t.first_id > v_from
              order by t.first_id limit 200) t
           order by t.first_id limit 200) s;
  perform queues.unpark(g.gate, 1)
     from (select t.gate, bool_or(queues.has_in_lane(t.queue_id, t.lane)) as busy
             from queues.timer t
            where t.first_id = any(v_parked.ids) and t.run_at = queues.never()
              and t.queue_id = any(array(select q.queue_id from worker.queue_registry q))
            group by t.gate) g
    where queues.count_held(g.gate) = 0 and (not g.busy or random() < 0.02);
  perform setval('queues.gate_cursor', coalesce(v_parked.last, 0));
end
$$;

-- Has every transaction ended that ran at this time? One that read the registry
-- before may still put a task into a lane that was right then.
create or replace function queues.all_ended_since(p_at timestamptz) returns boolean
language plpgsql
as $$
begin
  return not exists (
    select from pg_stat_get_activity(null) a join pg_database d on d.oid = a.datid
     where a.pid <> pg_backend_pid() and d.datname = current_database()
       and coalesce(a.backend_type, 'client backend') = 'client backend'
       -- Another role's, and not ours to see, or older.
       and (a.backend_start is null or a.xact_start < p_at));
end
$$;

-- Are there tasks of a command in these lanes of a queue?
create or replace function queues.has_in_lanes(p_queue_id integer, p_command text, p_lanes int4range)
returns boolean
language plpgsql
as $$
declare
  v_generations integer[] := queues.live_generations(p_queue_id) || (
    select l.limbo from queues.generation_ledger l where l.queue_id = p_queue_id
     order by l.version desc limit 1);
begin
  return exists (
    select from (select r.first_id from queues.ready r
                  where r.queue_id = p_queue_id and r.generation = any(v_generations)
                    and r.lane >= lower(p_lanes) and r.lane < upper(p_lanes)
                 union all
                 select t.first_id from queues.timer t
                  where t.queue_id = p_queue_id and t.lane >= lower(p_lanes)
                    and t.lane < upper(p_lanes) and t.task_ids <> '{}') s
      join queues.task t on t.task_id = s.first_id and t.task_type = p_command);
end
$$;

create or replace function queues.has_in_lane(p_queue_id integer, p_lane integer) returns boolean
language plpgsql
as $$
begin
  return exists (select from queues.ready r
                  where r.queue_id = p_queue_id and r.lane = p_lane
                    and r.generation = any(queues.live_generations(p_queue_id)));
end
$$;

-- What claims need not look out for any more, an hour after it was over: tasks of
-- the command in shared lanes, and lanes of its own.
create or replace function queues.forget_gated(p_now timestamptz) returns void
language plpgsql
as $$
declare
  v_row record;
  v_idle boolean;
begin
  for v_row in
    select g.ctid as place, g.*, c.command, c as registered, c.queue_id = g.queue_id and worker.is_limited(c) as limited
      from queues.gated g join worker.command_registry c using (command_id)
     where g.strays_since is null or g.strays_since < p_now - interval '1 hour'
     order by g.queue_id, g.command_id for update of g skip locked
  loop
    if (v_row.simple, v_row.shared_lane)
         is distinct from ((v_row.registered).simple, (v_row.registered).shared_lane) then
      perform queues.describe_gated(v_row.registered);
    end if;
    if v_row.strays_since is not null then
      if queues.all_ended_since(v_row.strays_since)
         and not queues.has_in_lanes(v_row.queue_id, v_row.command,
                                     case (v_row.registered).lane when 0 then '[2,4)'::int4range
                                       when 2 then '[0,2)' else '[0,4)' end) then
        update queues.gated g set strays_since = null where g.ctid = v_row.place;
      end if;
      continue;
    end if;
    if exists (select from queues.gated g
                where g.queue_id = v_row.queue_id and g.command_id = v_row.command_id
                  and g.ctid < v_row.place) then
      delete from queues.gated g where g.ctid = v_row.place;  -- said twice
      continue;
    end if;
    v_idle := not v_row.limited
      and not exists (select from queues.ordered o where o.task_type = v_row.command)
      and not queues.has_in_lanes(v_row.queue_id, v_row.command,
                                  int4range(2 * v_row.command_id, 2 * v_row.command_id + 2));
    if v_idle and v_row.idle_since < p_now - interval '1 hour'
       and queues.all_ended_since(v_row.idle_since) then
      delete from queues.gated g where g.ctid = v_row.place;
    elsif v_idle <> (v_row.idle_since is not null) then
      update queues.gated g set idle_since = case when v_idle then p_now end
       where g.ctid = v_row.place;
    end if;
  end loop;
end
$$;

-- Tasks in a lane of a command's own that no claim would open. There should be
-- none; this is the net.
create or replace function queues.find_lost_lanes() returns integer
language plpgsql
as $$
declare
  v_lane record;
  v_found integer := 0;
begin
  for v_lane in
    with recursive lanes as (
      select q.queue_id, g.generation, l.lane
        from worker.queue_registry q
       cross join lateral unnest(queues.live_generations(q.queue_id)) g(generation)
       cross join lateral (select min(r.lane) as lane from queues.ready r
                            where r.queue_id = q.queue_id and r.generation = g.generation
                              and r.lane > 3) l
       where l.lane is not null
      union all
      select s.queue_id, s.generation, l.lane
        from lanes s
       cross join lateral (select min(r.lane) as lane from queues.ready r
                            where r.queue_id = s.queue_id and r.generation = s.generation
                              and r.lane > s.lane) l
       where l.lane is not null)
    select distinct l.queue_id, c.command_id
      from lanes l join worker.command_registry c on c.command_id = l.lane / 2
     where c.lane <> 2 * c.command_id or worker.is_limited(c)
  loop
    if not exists (select from queues.gated g where g.queue_id = v_lane.queue_id
                      and g.command_id = v_lane.command_id) then
      perform queues.add_gated(v_lane.queue_id, v_lane.command_id);
      perform queues.wake(v_lane.queue_id);
      v_found := v_found + 1;
    end if;
  end loop;
  return v_found;
end
$$;
