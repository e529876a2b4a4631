-- Gates: group keys with a limit or a rate, and order keys. There may be many
-- thousands, so none has rows of its own while it is idle.
--
-- A task whose gate is closed is parked: it waits in queues.timer under the name
-- of the gate, at a time that never comes, and is not looked at again until a
-- slot of the gate is given back. Whoever parks, and whoever lets go, holds the
-- lock on the gate, so a task cannot be parked behind somebody who has just left.
-- The lock is never waited for: what cannot be decided now is left to a row in
-- queues.gate_check.

-- Few enough that a claim of many keys does not fill the server's table of locks.
-- Who meets another's key there comes back later.
create or replace function queues.gate_key(p_gate text) returns bigint
language sql immutable
as $$ select 8106760804243603456 | (hashtextextended(p_gate, 0) & 4095) $$;

-- When parked tasks would run by the clock.
create or replace function queues.never() returns timestamptz
language sql immutable
as $$ select '9999-01-01 00:00:00+00'::timestamptz $$;

-- How many tasks of a rate may start now, and when the next may if none. Starts
-- are spread evenly; what was missed in the last moment may be made up for. The
-- caller holds the lock on the gate. A time that is further off than the rate
-- explains was written under another clock.
create or replace function queues.rate_room(
  p_key text, p_limit integer, p_period interval, p_now timestamptz,
  out n integer, out next_at timestamptz)
language plpgsql
as $$
declare
  v_slack interval := least(p_period / 20, interval '50 milliseconds');
  v_step double precision := extract(epoch from p_period) / p_limit;
begin
  select greatest(r.next_at, p_now - v_slack) into next_at
    from queues.rate_tick r where r.task_key = p_key order by r.next_at desc limit 1;
  if next_at is null or next_at > p_now + p_period then
    next_at := p_now;
  end if;
  n := case when next_at > p_now then 0
            else 1 + floor(extract(epoch from p_now - next_at) / v_step) end;
end
$$;

-- So many have started.
create or replace function queues.spend_rate(
  p_key text, p_n integer, p_limit integer, p_period interval, p_now timestamptz) returns void
language plpgsql
as $$
declare
  v_room record := queues.rate_room(p_key, p_limit, p_period, p_now);
begin
  delete from queues.rate_tick where ctid = any(array(
    select r.ctid from queues.rate_tick r
     where r.task_key = p_key order by r.next_at desc limit 1));
  insert into queues.rate_tick (task_key, next_at)
    values (p_key, v_room.next_at
                   + make_interval(secs => p_n * extract(epoch from p_period) / p_limit));
end
$$;

-- How many slots of a gate are held. The caller holds the lock on it.
create or replace function queues.count_held(p_gate text) returns bigint
language plpgsql
as $$
declare
  v_floor bigint := coalesce((select f.floor from queues.gate_floor f where f.task_key = p_gate), 0);
begin
  return (select coalesce(sum(cardinality(h.task_ids)), 0) from queues.slot_held h
           where h.task_key = p_gate and h.lease_id >= v_floor);
end
$$;

-- Of tasks that a claim has taken: which may go on, which are to be parked, and
-- which go back because another has the lock on their gate. One row for each that
-- has a gate. p_gone: gates that tasks of the same claim have passed before.
create or replace function queues.pass_gates(
  p_ids bigint[], p_lanes integer[], p_pairs integer[], p_gone text[], p_serial boolean,
  p_now timestamptz)
returns table (place integer, verdict text, gate text, group_gate text, order_gate text)
language plpgsql
as $$
#variable_conflict use_column
declare
  v_at record;
  v_locked text[];
begin
  select array_agg(u.i::integer) as place, array_agg(t.task_id) as id, array_agg(t.task_type) as command,
         array_agg(t.order_key) as order_key,
         array_agg(case when c.group_concurrency_limit is not null
                          or c.group_rate_limit is not null
                        then t.task_type || '/' || t.group_key end) as group_gate,
         array_agg(t.task_type || '>' || t.order_key) as order_gate
    into v_at
    from unnest(p_ids, p_lanes) with ordinality u(id, lane, i)
   cross join lateral (select * from queues.task t where t.task_id = u.id offset 0) t
    join worker.command_registry c on c.command = t.task_type
   where u.lane / 2 = any(p_pairs)
     and (t.order_key is not null
          or (t.group_key is not null and (c.group_concurrency_limit is not null
                                           or c.group_rate_limit is not null)));
  if v_at.place is null then
    return;
  end if;
  v_locked := array(
    select s.gate from (select distinct unnest(v_at.group_gate || v_at.order_gate) as gate) s
     where s.gate is not null and pg_try_advisory_xact_lock(queues.gate_key(s.gate)));
  -- One that was tried again by hand after its end stands in the order again.
  insert into queues.ordered (task_type, order_key, task_id)
    select u.command, u.order_key, u.id
      from unnest(v_at.command, v_at.order_key, v_at.id) u(command, order_key, id)
     where u.order_key is not null
       and not exists (select from queues.ordered o where o.task_id = u.id)
    on conflict do nothing;

  return query
    with tasks as (
      select t.*, case
               when t.order_gate is null then 'go'
               when not t.order_gate = any(v_locked) then 'back'
               when t.order_gate = any(p_gone)
                 or exists (select from queues.ordered o
                             where o.task_type = t.command and o.order_key = t.order_key
                               and o.task_id < t.id)
                 or queues.count_held(t.order_gate) > 0 then 'park'
               else 'go' end as order_says
        from unnest(v_at.place, v_at.id, v_at.command, v_at.order_key, v_at.group_gate,
                    v_at.order_gate)
               t(place, id, command, order_key, group_gate, order_gate)),
    rooms as (
      select g.group_gate, least(
               case when c.group_concurrency_limit is null then 2147483647
                    when p_serial then case when h.used < c.group_concurrency_limit or a.n > 0
                                            then 2147483647 else 0 end
                    else c.group_concurrency_limit - h.used - a.n end,
               case when c.group_rate_limit is not null
                    then (queues.rate_room(g.group_gate, c.group_rate_limit, c.rate_period,
                                           p_now)).n - a.n end) as room
        from (select distinct t.group_gate, t.command from tasks t
               where t.group_gate = any(v_locked)) g
        join worker.command_registry c on c.command = g.command
       cross join lateral (
         -- queues.count_held in place: there may be many gates.
         select coalesce(sum(cardinality(h.task_ids)), 0) as used from queues.slot_held h
          where h.task_key = g.group_gate
            and h.lease_id >= coalesce((select f.floor from queues.gate_floor f
                                         where f.task_key = g.group_gate), 0)) h
       cross join lateral (select count(*) as n from unnest(p_gone) p(gate)
                            where p.gate = g.group_gate) a),
    ranked as (
      select t.*, row_number() over (partition by t.group_gate, t.order_says order by t.place) as n
        from tasks t),
    decided as (
      select t.*, case when t.order_says <> 'go' then t.order_says
                       when t.group_gate is null then 'go'
                       when r.room is null then 'back'
                       when t.n <= r.room then 'go' else 'park' end as verdict
        from ranked t left join rooms r on r.group_gate = t.group_gate)
    select d.place, d.verdict,
           case when d.verdict = 'park' then
             case when d.order_says = 'park' then d.order_gate else d.group_gate end end,
           d.group_gate, d.order_gate
      from decided d;
end
$$;

-- Puts tasks that a claim has taken away again: back to where they were, into
-- another lane, or, with a gate, behind it. Arrays are parallel; p_counts has
-- attempts, failures and crashes.
create or replace function queues.turn_away(
  p_queue_id integer, p_ids bigint[], p_lanes integer[], p_gates text[], p_attempts smallint[],
  p_failures smallint[], p_crashes smallint[], p_solo boolean[], p_now timestamptz)
returns void
language plpgsql
as $$
declare
  v_generation integer;
begin
  if p_ids is null then
    return;
  end if;
  v_generation := queues.join_generation(p_queue_id);
  with away as materialized (
    select u.*, t.priority, t.scheduled_at, t.parent_id,
           t.dedup_key is not null and queues.regain_key(t.task_id) as keyed
      from unnest(p_ids, p_lanes, p_gates, p_attempts, p_failures, p_crashes, p_solo)
             u(id, lane, gate, attempts, failures, crashes, solo)
      join queues.task t on t.task_id = u.id),
  parked as (
    insert into queues.timer (queue_id, run_at, first_id, lane, priority, parent_id, attempts,
                              failures, crashes, keyed, solo, task_ids, gate)
      select p_queue_id, queues.never(), a.id, a.lane, a.priority, a.parent_id, a.attempts,
             a.failures, a.crashes, a.keyed, a.solo, array[a.id], a.gate
        from away a where a.gate is not null)
  insert into queues.ready (queue_id, lane, generation, priority, run_at, first_id, parent_id,
                            attempts, failures, crashes, keyed, solo, task_ids)
    select p_queue_id, a.lane, v_generation, a.priority, least(a.scheduled_at, p_now), a.id,
           a.parent_id, a.attempts, a.failures, a.crashes, a.keyed, a.solo, array[a.id]
      from away a where a.gate is null;
end
$$;

-- Lets up to p_most parked tasks of a gate go on, if it has room for them. They go
-- to the end of the line, which makes the keys take turns. p_after: the task that
-- gave the key back. Those behind it come next; to look from the beginning is to
-- walk over all that were parked before it, so that is done now and then, for
-- those that are more urgent.
create or replace function queues.unpark(p_gate text, p_most integer, p_after bigint default null)
returns integer
language plpgsql
as $$
declare
  c_soon constant interval := '10 milliseconds';
  v_now timestamptz := worker.now();
  v_command worker.command_registry;
  v_most integer := p_most;
  v_priority bigint;
  v_room record;
  v_at timestamptz := v_now;
  v_rows tid[];
begin
  if current_setting('transaction_isolation') <> 'read committed'
     or not pg_try_advisory_xact_lock(queues.gate_key(p_gate)) then
    insert into queues.gate_check (gate) values (p_gate);
    perform queues.set_alarm(c.queue_id, v_now + c_soon, v_now) from worker.command_registry c
      where c.command = substring(p_gate from '^[^/>]*');
    return 0;
  end if;
  select * into v_command from worker.command_registry c
   where c.command = substring(p_gate from '^[^/>]*');
  if substr(p_gate, length(v_command.command) + 1, 1) = '>' then
    v_rows := array(
      select t.ctid from queues.timer t
       where t.gate = p_gate
         and t.first_id = (select min(o.task_id) from queues.ordered o
                            where o.task_type = v_command.command
                              and o.order_key = substr(p_gate, length(v_command.command) + 2))
         for update skip locked);
  else
    if v_command.group_concurrency_limit is not null then
      v_most := least(v_most, v_command.group_concurrency_limit - queues.count_held(p_gate));
    end if;
    if v_command.group_rate_limit is not null then
      v_room := queues.rate_room(p_gate, v_command.group_rate_limit, v_command.rate_period, v_now);
      v_most := least(v_most, greatest(v_room.n, 1));
      if v_room.n = 0 then
        -- One comes when the time does, and brings the next.
        v_at := v_room.next_at;
        if exists (select from queues.timer t where t.gate = p_gate and t.run_at < queues.never()) then
          return 0;
        end if;
      end if;
    end if;
    if v_most < 1 then
      return 0;
    end if;
    if random() < 0.95 then
      select t.priority into v_priority from queues.task t where t.task_id = p_after;
      v_rows := array(
        select t.ctid from queues.timer t
         where t.gate = p_gate and t.run_at = queues.never()
           and (t.priority, t.first_id) > (v_priority, p_after)
         order by t.priority, t.first_id limit v_most for update skip locked);
    end if;
    if cardinality(v_rows) > 0 is not true then
      v_rows := array(
        select t.ctid from queues.timer t
         where t.gate = p_gate and t.run_at = queues.never()
         order by t.priority, t.first_id limit v_most for update skip locked);
    end if;
  end if;
  if v_at > v_now then
    update queues.timer t set run_at = v_at where t.ctid = any(v_rows);
    return cardinality(v_rows);
  end if;
  perform queues.make_ready(v_rows, v_now);
  return cardinality(v_rows);
end
$$;

-- The same for many gates whose slots have been given back, p_counts of each, in a
-- few statements. Those with a rate go one by one.
create or replace function queues.unpark_all(p_gates text[], p_counts integer[], p_after bigint[])
returns void
language plpgsql
as $$
declare
  v_now timestamptz := worker.now();
  v_free record;
  v_next record;
  v_rest record;
begin
  perform queues.unpark(u.gate, u.n, u.after)
     from unnest(p_gates, p_counts, p_after) u(gate, n, after)
    where u.gate ~ '^[^/]*>' or current_setting('transaction_isolation') <> 'read committed'
       or exists (select from worker.command_registry c
                   where c.command = split_part(u.gate, '/', 1) and c.group_rate_limit is not null)
       or not pg_try_advisory_xact_lock(queues.gate_key(u.gate));
  select array_agg(u.gate) as gates, array_agg(u.n) as counts, array_agg(u.after) as after
    into v_free
    from unnest(p_gates, p_counts, p_after) u(gate, n, after)
   where u.gate !~ '^[^/]*>' and current_setting('transaction_isolation') = 'read committed'
     and pg_try_advisory_xact_lock(queues.gate_key(u.gate))
     and not exists (select from worker.command_registry c
                      where c.command = split_part(u.gate, '/', 1)
                        and c.group_rate_limit is not null);
  select array_agg(r.ctid) as rows, array_agg(distinct u.gate) as gates into v_next
    from unnest(v_free.gates, v_free.counts, v_free.after) u(gate, n, after)
    join queues.task d on d.task_id = u.after
   cross join lateral (
     select t.ctid from queues.timer t
      where t.gate = u.gate and t.run_at = queues.never()
        and (t.priority, t.first_id) > (d.priority, u.after)
      order by t.priority, t.first_id limit u.n for update skip locked) r
   where random() < 0.95;
  select array_agg(r.ctid) as rows into v_rest
    from unnest(v_free.gates, v_free.counts) u(gate, n)
    left join unnest(v_next.gates) f(gate) on f.gate = u.gate
   cross join lateral (
     select t.ctid from queues.timer t
      where t.gate = u.gate and t.run_at = queues.never()
      order by t.priority, t.first_id limit u.n for update skip locked) r
   where f.gate is null;
  perform queues.make_ready(v_next.rows || v_rest.rows, v_now);
end
$$;

-- Moves rows of timer, which the caller has locked, into the line. p_run_at: as if
-- enqueued then.
create or replace function queues.make_ready(p_rows tid[], p_run_at timestamptz)
returns void
language plpgsql
as $$
declare
  v_queue_id integer;
  v_generation integer;
begin
  for v_queue_id in
    select distinct t.queue_id from queues.timer t where t.ctid = any(p_rows)
  loop
    v_generation := queues.join_generation(v_queue_id);
    with due as (
      delete from queues.timer t where t.ctid = any(p_rows) and t.queue_id = v_queue_id
      returning t.*)
    insert into queues.ready (queue_id, lane, generation, priority, run_at, first_id, parent_id,
                              attempts, failures, crashes, keyed, solo, task_ids)
      select d.queue_id, d.lane, v_generation, d.priority, p_run_at, d.first_id, d.parent_id,
             d.attempts, d.failures, d.crashes, d.keyed, d.solo, d.task_ids
        from due d;
    perform queues.wake(v_queue_id);
  end loop;
end
$$;

-- Gates that somebody could not decide about. Returns how many there were. p_from:
-- nothing is expected below; one that commits late is found by maintenance.
create or replace function queues.check_gates(p_from bigint) returns integer
language plpgsql
as $$
declare
  v_checks bigint[];
  v_gates text[];
begin
  select array_agg(s.check_id), array_agg(s.gate) into v_checks, v_gates
    from (select c.check_id, c.gate from queues.gate_check c where c.check_id >= p_from
           order by c.check_id limit 100 for update skip locked) s;
  if v_checks is null or current_setting('transaction_isolation') <> 'read committed' then
    return 0;
  end if;
  delete from queues.gate_check c where c.check_id = any(v_checks);
  perform queues.unpark(g.gate, 1000000)
     from (select distinct u.gate from unnest(v_gates) u(gate) order by u.gate) g;
  return cardinality(v_checks);
end
$$;

-- Tasks with an order key that have ended: the next may run. A failed one keeps
-- the others waiting if its command says so.
create or replace function queues.end_ordered(p_ids bigint[], p_anyway boolean default false)
returns integer
language plpgsql
as $$
declare
  v_gates text[];
begin
  with gone as (
    delete from queues.ordered o
     where o.task_id = any(p_ids)
       and (p_anyway
            or exists (select from queues.task_completed d
                        where d.task_id = o.task_id
                          and not (d.state = 'failed'
                                   and exists (select from worker.command_registry c
                                                where c.command = o.task_type and c.order_blocks))))
    returning o.task_type || '>' || o.order_key as gate)
  select array_agg(distinct g.gate) into v_gates from gone g;
  perform queues.unpark(g.gate, 1) from unnest(v_gates) g(gate);
  return coalesce(cardinality(v_gates), 0);
end
$$;

-- A failed task that keeps those behind it waiting does so no longer.
create or replace function worker.unblock(p_task_id bigint) returns boolean
language plpgsql security definer
set search_path = pg_catalog, pg_temp
as $$
begin
  return exists (select from queues.task_completed c where c.task_id = p_task_id)
     and queues.end_ordered(array[p_task_id], true) > 0;
end
$$;

comment on function worker.unblock(bigint) is
  'lets those go on that wait behind a failed task with the same order key; false when none does';

-- The lane of a task that comes back, or that was asked for with an order key: such
-- tasks never stand in a shared lane, where nobody looks at keys.
create or replace function queues.order_lane(p_task_id bigint, p_lane integer) returns integer
language plpgsql
as $$
begin
  return coalesce((select 2 * c.command_id + p_lane % 2
                     from queues.task t join worker.command_registry c on c.command = t.task_type
                    where t.task_id = p_task_id and t.order_key is not null), p_lane);
end
$$;

-- Keys take turns: when the head of a lane is one key's, those of its tasks that
-- could not all run at once are parked behind the first ones, which the others
-- then come before. Each task is looked at once for this. What they are parked
-- behind is locked here, so it cannot leave before they are seen.
create or replace function queues.spread_keys(p_queue_id integer, p_lane integer,
                                              p_command worker.command_registry) returns void
language plpgsql
as $$
declare
  c_most constant integer := 500;
  v_generations integer[] := queues.live_generations(p_queue_id);
  v_places tid[];
  v_heads text[];
begin
  select array_agg(coalesce(t.order_key, t.group_key)) into v_heads
    from (select r.task_ids[1:2] as ids
            from unnest(v_generations) g(generation)
           cross join lateral (
             select r.task_ids, r.priority, r.run_at, r.first_id from queues.ready r
              where r.queue_id = p_queue_id and r.generation = g.generation and r.lane = p_lane
              order by r.priority, r.run_at, r.first_id limit 2) r
           order by r.priority, r.run_at, r.first_id limit 2) h
   cross join lateral unnest(h.ids) u(id)
    join queues.task t on t.task_id = u.id;
  if v_heads[1] is null or v_heads[1] is distinct from v_heads[2] then
    return;
  end if;
  v_places := array(
    select r.ctid
      from unnest(v_generations) g(generation)
     cross join lateral (
       select r.ctid from queues.ready r
        where r.queue_id = p_queue_id and r.generation = g.generation and r.lane = p_lane
          and not r.keyed and r.run_at < queues.never()
        order by r.priority, r.run_at, r.first_id limit c_most for update skip locked) r);
  with tasks as (
    select r.ctid as place, r.priority, r.parent_id, r.attempts, r.failures, r.crashes, r.solo,
           u.id, u.i, p_command.command
             || coalesce('>' || t.order_key, '/' || t.group_key) as gate,
           case when t.order_key is not null
                  then row_number() over (partition by t.order_key order by u.id) > 1
                when t.group_key is not null and p_command.group_concurrency_limit is not null
                  then row_number() over (partition by t.order_key is null, t.group_key
                                          order by r.priority, r.run_at, r.first_id, u.i)
                       > p_command.group_concurrency_limit
                else false end as extra
      from queues.ready r
     cross join lateral unnest(r.task_ids) with ordinality u(id, i)
      join queues.task t on t.task_id = u.id
     where r.ctid = any(v_places)),
  parked as (
    insert into queues.timer (queue_id, run_at, first_id, lane, priority, parent_id, attempts,
                              failures, crashes, solo, task_ids, gate)
      select p_queue_id, queues.never(), t.id, p_lane, t.priority, t.parent_id, t.attempts,
             t.failures, t.crashes, t.solo, array[t.id], t.gate
        from tasks t where t.extra),
  left_over as (
    select t.place, array_agg(t.id order by t.i) filter (where not t.extra) as ids
      from tasks t group by t.place having bool_or(t.extra)),
  cut as (
    update queues.ready r set task_ids = l.ids, first_id = l.ids[1]
      from left_over l where r.ctid = l.place and l.ids is not null)
  delete from queues.ready r using left_over l where r.ctid = l.place and l.ids is null;
end
$$;
