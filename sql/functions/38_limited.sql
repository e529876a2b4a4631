-- The claim of a queue in which something is limited: as the plain one, but each
-- limited command has its own lanes, which are opened for as many tasks as it may
-- start now. Order is the same: all open lanes are merged by priority, time and
-- id, so neither kind of work starves the other.

-- Is the command within its hours at this time?
create or replace function queues.in_window(p_start time, p_end time, p_zone text,
                                            p_at timestamptz) returns boolean
language sql immutable
as $$
  select case when p_start < p_end then s.local >= p_start and s.local < p_end
              else s.local >= p_start or s.local < p_end end
    from (select (p_at at time zone coalesce(p_zone, 'UTC'))::time as local) s
$$;

-- When they begin again, seen from outside. On the day the clocks change an hour
-- may be missing, or come twice: the first moment on the wall counts.
create or replace function queues.window_opens(p_start time, p_end time, p_zone text,
                                               p_at timestamptz) returns timestamptz
language plpgsql immutable
as $$
declare
  v_zone text := coalesce(p_zone, 'UTC');
  v_at timestamptz;
  v_step interval;
begin
  for v_day in 0..3 loop
    v_at := ((p_at at time zone v_zone)::date + v_day + p_start) at time zone v_zone;
    exit when v_at > p_at and queues.in_window(p_start, p_end, v_zone, v_at);
  end loop;
  foreach v_step in array '{1 hour,30 minutes}'::interval[] loop
    if v_at - v_step > p_at
       and queues.in_window(p_start, p_end, v_zone, v_at - v_step)
       and not queues.in_window(p_start, p_end, v_zone, v_at - v_step - interval '1 microsecond') then
      return v_at - v_step;
    end if;
  end loop;
  while v_at - interval '1 minute' > p_at
        and queues.in_window(p_start, p_end, v_zone, v_at - interval '1 minute') loop
    v_at := v_at - interval '1 minute';
  end loop;
  return v_at;
end
$$;

-- When tasks of this command may start: null for now, 'infinity' if nobody knows.
create or replace function queues.opens_at(p_command worker.command_registry, p_now timestamptz)
returns timestamptz
language plpgsql immutable
as $$
begin
  if p_command.paused and (p_command.paused_until is null or p_command.paused_until > p_now) then
    return coalesce(p_command.paused_until, 'infinity');
  elsif p_command.window_start is not null
        and not queues.in_window(p_command.window_start, p_command.window_end,
                                 p_command.window_zone, p_now) then
    return queues.window_opens(p_command.window_start, p_command.window_end,
                               p_command.window_zone, p_now);
  end if;
  return null;
end
$$;

-- A timer without a task: whoever sleeps until the next one wakes up then.
create or replace function queues.set_alarm(p_queue_id integer, p_at timestamptz,
                                            p_now timestamptz) returns void
language plpgsql
as $$
begin
  if p_at < 'infinity'
     and not exists (select from queues.timer t
                      where t.queue_id = p_queue_id and t.run_at > p_now and t.run_at <= p_at) then
    insert into queues.timer (queue_id, run_at, first_id, lane, priority, task_ids)
      values (p_queue_id, p_at, 0, 0, 0, '{}');
  end if;
end
$$;

-- How many tasks of a command may start, up to p_want, and the slots that are locked for
-- them. p_lane: the one in which the first of them stands, of the caller's p_lanes.
-- Null: this command has other limits than the caller knows, or other workers.
create or replace function queues.open_pair(
  p_queue_id integer, p_pair integer, p_want integer, p_serial boolean, p_now timestamptz,
  p_spare queues.free_slots[], p_lane integer default null, p_lanes integer[] default null,
  out quota integer, out slots queues.free_slots[])
language plpgsql
as $$
declare
  c_soon constant interval := '10 milliseconds';
  c_dice constant double precision := 0.005;  -- see queues.get_slots
  v_command record;
begin
  -- In another queue than its own nothing is settled: who changes the limit might not
  -- know yet that there are tasks.
  select c.command, c.concurrency_limit, case when c.queue_id = p_queue_id then g.settled end as settled,
         case when cardinality(p_spare) = 1 and (p_spare[1]).task_key = c.command
                   and c.queue_id = p_queue_id and (p_spare[1]).lease_id > g.settled
              then cardinality((p_spare[1]).slot_groups) end as reusable,
         p_lane is null or c.simple and (c.shared_lane is null
           or c.shared_lane + p_lane % 2 = any(p_lanes)) as as_known
    into v_command
    from worker.command_registry c
    left join queues.slot_group g on g.task_key = c.command and g.slot_group_number = 1
   where c.command_id = p_pair;
  if not v_command.as_known then
    perform queues.describe_gated(c) from worker.command_registry c where c.command_id = p_pair;
    perform queues.set_alarm(p_queue_id, p_now + c_soon, p_now);
    quota := 0;
    return;
  elsif v_command.concurrency_limit is null then
    quota := p_want;
    return;
  end if;
  quota := case when p_serial then 1 else least(p_want, v_command.concurrency_limit) end;
  -- The slots of the batch before, as they are: what a busy worker does.
  if v_command.reusable >= quota and random() > c_dice then
    slots := p_spare;
    slots[1].pair := p_pair;
    if p_serial then
      quota := p_want;
    end if;
    return;
  end if;
  slots := queues.get_slots(v_command.command, quota, p_pair, p_spare, v_command.settled);
  if slots is null then
    perform queues.set_alarm(p_queue_id, p_now + c_soon, p_now);
  end if;
  quota := case when slots = '{}' is not false then 0
                when p_serial then p_want
                else least(p_want, queues.count_free(slots)) end;
end
$$;

-- The lanes that a claim may look into now, and for how many tasks.
--   lanes           those of the caller without limits, and the open ones
--   pairs, quotas   per limited command (its two lanes): how many may start; null:
--                   as many as there are slots, which queues.take finds out
--   slots           what is locked already
--   keyed           pairs whose tasks may have a gate
--   strays          commands that may still have tasks in shared lanes where they do
--                   not belong any more
--   rated           commands whose starts are to be spent
create or replace function queues.open_lanes(
  p_queue_id integer, p_lanes integer[], p_want integer, p_serial boolean, p_now timestamptz,
  p_spare queues.free_slots[], out lanes integer[], out pairs integer[], out quotas integer[], out slots queues.free_slots[],
  out keyed integer[], out strays text[], out rated text[])
language plpgsql
as $$
declare
  c_soon constant interval := '10 milliseconds';
  v_generations integer[] := queues.live_generations(p_queue_id);
  v_gated record;
  v_command worker.command_registry;
  v_quota integer;
  v_keyed boolean;
  v_room record;
  v_opened record;
  v_at timestamptz;
begin
  lanes := p_lanes;
  pairs := '{}';
  quotas := '{}';
  slots := '{}';
  keyed := '{}';
  rated := '{}';
  -- Who serves the shared lane of its kind serves a command's own as well.
  for v_gated in
    select c as command,
           exists (select from queues.gated g
                    where g.queue_id = p_queue_id and g.command_id = c.command_id
                      and g.strays_since is not null) as strays,
           array(select 2 * c.command_id + s from unnest('{0,1}'::integer[]) s
                  where (2 * c.command_id + s = any(p_lanes)
                         or c.shared_lane + s = any(p_lanes))
                    and exists (select from queues.ready r
                                 where r.queue_id = p_queue_id
                                   and r.generation = any(v_generations)
                                   and r.lane = 2 * c.command_id + s)) as mine
      from worker.command_registry c
     where c.command_id = any(array(select g.command_id from queues.gated g
                                     where g.queue_id = p_queue_id))
     order by c.command
  loop
    v_command := v_gated.command;
    lanes := array_remove(array_remove(lanes, 2 * v_command.command_id),
                          2 * v_command.command_id + 1);
    if v_gated.strays then
      strays := strays || v_command.command;
    end if;
    continue when v_gated.mine = '{}';
    v_at := queues.opens_at(v_command, p_now);
    if v_at is not null then
      perform queues.set_alarm(p_queue_id, v_at, p_now);
      continue;
    end if;
    v_quota := p_want;
    if v_command.rate_limit is not null then
      if not pg_try_advisory_xact_lock(queues.gate_key(v_command.command)) then
        perform queues.set_alarm(p_queue_id, p_now + c_soon, p_now);
        continue;
      end if;
      v_room := queues.rate_room(v_command.command, v_command.rate_limit, v_command.rate_period,
                                 p_now);
      if v_room.n = 0 then
        perform queues.set_alarm(p_queue_id, v_room.next_at, p_now);
        continue;
      end if;
      v_quota := least(v_quota, v_room.n);
      rated := rated || v_command.command;
    end if;
    v_keyed := v_command.group_concurrency_limit is not null
               or v_command.group_rate_limit is not null
               or pg_sequence_last_value('queues.order_used') is not null;
    if v_command.concurrency_limit is not null then
      if v_keyed or v_command.rate_limit is not null then
        v_opened := queues.open_pair(p_queue_id, v_command.command_id, v_quota, p_serial, p_now,
                                     p_spare);
        continue when v_opened.quota = 0;
        slots := slots || v_opened.slots;
        v_quota := v_opened.quota;
      else
        v_quota := null;
      end if;
    end if;
    lanes := lanes || v_gated.mine;
    pairs := pairs || v_command.command_id;
    quotas := quotas || v_quota;
    if v_keyed then
      keyed := keyed || v_command.command_id;
      perform queues.spread_keys(p_queue_id, l, v_command) from unnest(v_gated.mine) l;
    end if;
  end loop;
end
$$;

-- Takes what may start of the given lanes, and leases it. The same as queues.take
-- and queues.open_lease together. p_spare: see queues.get_slots; reused: all of it
-- has gone over to the new lease.
create or replace function queues.admit(
  p_queue worker.queue_registry, p_want integer, p_lanes integer[], p_max_priority bigint,
  p_worker_id bigint, p_backend_pid integer, p_backend_start timestamptz,
  p_expires_at timestamptz, p_now timestamptz, p_auto boolean, p_serial boolean,
  p_spare queues.free_slots[], p_top boolean default false, p_each boolean default false,
  p_again boolean default true,
  out lease_ids bigint[], out task_ids bigint[], out attempts smallint[],
  out parent_ids bigint[], out stretches bigint[], out reused boolean)
language plpgsql
as $$
declare
  c_soon constant interval := '10 milliseconds';
  c_rounds constant integer := 5;
  v_want integer := p_want;
  v_have integer := 0;
  v_slots queues.free_slots[] := '{}';
  v_open record;
  v_taken record;
  v_case record;
  v_away record;
  v_n integer;
  v_got record;
  v_gates text[] := '{}';      -- of the tasks that go on, one for each
  v_gate_tasks bigint[] := '{}';
  v_parked text[];
  v_back boolean := false;
  v_check bigint := pg_sequence_last_value('queues.gate_check_check_id_seq');
  v_checks_from bigint;
begin
  if v_check is not null then  -- there was one, ever
    v_checks_from := coalesce(pg_sequence_last_value('queues.gate_check_floor'), 0);
    if v_check >= v_checks_from then
      perform queues.check_gates(v_checks_from);
    end if;
  end if;
  perform queues.promote_timers(p_queue.queue_id, queues.timer_floor(p_queue.queue_id), p_now,
                                greatest(p_want, 200));
  if p_queue.concurrency_limit is not null then
    v_slots := queues.get_slots(
      'queue:' || p_queue.queue,
      case when p_serial then 1 else least(p_want, p_queue.concurrency_limit) end, -1, p_spare,
      (select g.settled from queues.slot_group g
        where g.task_key = 'queue:' || p_queue.queue and g.slot_group_number = 1));
    if v_slots is null then
      perform queues.set_alarm(p_queue.queue_id, p_now + c_soon, p_now);
      return;
    elsif v_slots = '{}' then
      return;
    elsif not p_serial then
      v_want := least(p_want, queues.count_free(v_slots));
    end if;
  end if;
  v_open := queues.open_lanes(p_queue.queue_id, p_lanes, v_want, p_serial, p_now, p_spare);
  v_slots := v_slots || v_open.slots;

  -- What is parked on the way makes room for what is behind it.
  for v_round in 1..c_rounds loop
    v_taken := queues.take(p_queue.queue_id, v_open.lanes, v_want - v_have,
                           p_max_priority, p_auto, v_open.pairs, v_open.quotas, p_serial,
                           p_spare);
    v_open.quotas := v_taken.quotas;
    v_slots := v_slots || v_taken.slots;
    v_n := cardinality(v_taken.task_ids);
    if v_round = 1 then
      if v_n = 0 or v_open.keyed = '{}' and v_open.strays is null then
        v_got := v_taken;  -- nothing to decide
        exit;
      end if;
      select '{}'::bigint[] as task_ids, '{}'::integer[] as lanes, '{}'::smallint[] as attempts,
             '{}'::smallint[] as failures, '{}'::smallint[] as crashes, '{}'::boolean[] as solo,
             null::bigint[] as parent_ids, null::bigint as from_id, null::bigint as to_id,
             null::bigint[] as stretches into v_got;
    end if;
    exit when v_n = 0;
    select array_agg(coalesce(c.verdict, 'go') order by u.i) as verdicts,
           array_agg(c.gate order by u.i) as gates,
           array_agg(coalesce(c.lane, u.lane) order by u.i) as lanes,
           array_agg(c.group_gate order by u.i) as group_gates,
           array_agg(c.order_gate order by u.i) as order_gates
      into v_case
      from unnest(v_taken.lanes) with ordinality u(lane, i)
      left join (
        select g.place, g.verdict, g.gate, null::integer as lane, g.group_gate, g.order_gate
          from queues.pass_gates(v_taken.task_ids, v_taken.lanes, v_open.keyed, v_gates,
                                 p_serial, p_now) g
         where v_open.keyed <> '{}'
        union all
        select s.i::integer, 'back', null, c.lane + s.lane % 2, null, null
          from unnest(v_taken.task_ids, v_taken.lanes) with ordinality s(id, lane, i)
          join queues.task t on t.task_id = s.id
          join worker.command_registry c on c.command = t.task_type
         where v_open.strays is not null and s.lane < 4 and t.task_type = any(v_open.strays)
           and c.lane <> s.lane - s.lane % 2) c
        on c.place = u.i;
    select array_agg(u.id) as ids, array_agg(u.lane) as lanes, array_agg(u.gate) as gates,
           array_agg(coalesce(u.attempts, 0::smallint)) as attempts,
           array_agg(coalesce(u.failures, 0::smallint)) as failures,
           array_agg(coalesce(u.crashes, 0::smallint)) as crashes,
           array_agg(coalesce(u.solo, false)) as solo
      into v_away
      from unnest(v_taken.task_ids, v_case.verdicts, v_case.lanes, v_case.gates,
                  v_taken.attempts, v_taken.failures, v_taken.crashes, v_taken.solo)
             u(id, verdict, lane, gate, attempts, failures, crashes, solo)
     where u.verdict <> 'go';
    perform queues.turn_away(p_queue.queue_id, v_away.ids, v_away.lanes, v_away.gates,
                             v_away.attempts, v_away.failures, v_away.crashes, v_away.solo, p_now);
    v_parked := v_parked || v_away.gates;
    select v_got.task_ids || array_agg(u.id order by u.i) as task_ids,
           v_got.lanes || array_agg(u.lane order by u.i) as lanes,
           v_got.attempts || array_agg(coalesce(u.attempts, 0::smallint) order by u.i) as attempts,
           v_got.failures || array_agg(coalesce(u.failures, 0::smallint) order by u.i) as failures,
           v_got.crashes || array_agg(coalesce(u.crashes, 0::smallint) order by u.i) as crashes,
           v_got.solo || array_agg(coalesce(u.solo, false) order by u.i) as solo,
           v_got.parent_ids || v_taken.parent_ids as parent_ids,
           least(v_got.from_id, v_taken.from_id) as from_id,
           greatest(v_got.to_id, v_taken.to_id) as to_id, null::bigint[] as stretches,
           v_gates || array_remove(array_agg(u.group_gate order by u.i), null)
                   || array_remove(array_agg(u.order_gate order by u.i), null) as gates,
           v_gate_tasks
             || array_agg(u.id order by u.i) filter (where u.group_gate is not null)
             || array_agg(u.id order by u.i) filter (where u.order_gate is not null) as gate_tasks
      into v_got
      from unnest(v_taken.task_ids, v_taken.lanes, v_case.verdicts, v_case.group_gates,
                  v_case.order_gates, v_taken.attempts, v_taken.failures, v_taken.crashes,
                  v_taken.solo)
             with ordinality u(id, lane, verdict, group_gate, order_gate, attempts, failures,
                               crashes, solo, i)
     where u.verdict = 'go';
    v_gates := v_got.gates;
    v_gate_tasks := v_got.gate_tasks;
    v_have := cardinality(v_got.task_ids);
    v_back := v_back or 'back' = any(v_case.verdicts);
    exit when v_away.ids is null or v_have >= v_want
           or 'back' = any(v_case.verdicts) and v_open.strays is null;
    v_open.quotas := array(
      select q.quota - (select count(*) from unnest(v_case.verdicts, v_taken.lanes) t(verdict, lane)
                         where t.verdict = 'go' and t.lane / 2 = q.pair)
        from unnest(v_open.pairs, v_open.quotas) with ordinality q(pair, quota, i) order by q.i);
  end loop;

  if v_got.task_ids <> '{}' then
    if v_got.attempts is not null and 0 = all(v_got.attempts) and not true = any(v_got.solo) then
      v_got.attempts := null;
      v_got.failures := null;
      v_got.crashes := null;
      v_got.solo := null;
    end if;
    lease_ids := queues.open_lease(p_queue.queue_id, v_got, p_worker_id, p_backend_pid,
                                   p_backend_start, p_now, p_expires_at, p_top, p_each,
                                   p_limited => v_slots <> '{}' or v_gates <> '{}');
    task_ids := v_got.task_ids;
    attempts := v_got.attempts;
    parent_ids := v_got.parent_ids;
    stretches := v_got.stretches;
    if v_slots <> '{}' then
      reused := queues.hold_slots(v_slots, lease_ids, task_ids, v_got.lanes, p_serial, p_now)
                and cardinality(p_spare) = 1;
    end if;
    if v_gates <> '{}' then
      perform queues.hold_gates(v_gates, v_gate_tasks, lease_ids, task_ids, p_serial, p_now);
    end if;
    if v_open.rated <> '{}' then
      perform queues.spend_rate(c.command, s.n::integer, c.rate_limit, c.rate_period, p_now),
              queues.set_alarm(p_queue.queue_id,
                (queues.rate_room(c.command, c.rate_limit, c.rate_period, p_now)).next_at, p_now)
         from (select l / 2 as pair, count(*) as n from unnest(v_got.lanes) l group by l / 2) s
         join worker.command_registry c on c.command_id = s.pair
        where c.command = any(v_open.rated);
    end if;
  end if;
  -- Some were moved to where they belong, or another had the lock on their key:
  -- look again, now and then soon.
  if v_got.task_ids = '{}' and v_back then
    if p_again then
      select * into lease_ids, task_ids, attempts, parent_ids, stretches, reused
        from queues.admit(p_queue, p_want, p_lanes, p_max_priority, p_worker_id, p_backend_pid,
                          p_backend_start, p_expires_at, p_now, p_auto, p_serial, p_spare, p_top,
                          p_each, p_again => false);
    else
      perform queues.set_alarm(p_queue.queue_id, p_now + c_soon, p_now);
    end if;
  end if;
  -- Behind a rate one stands by for the time when the next may start.
  if v_parked is not null then
    perform queues.unpark(g.gate, 1)
       from (select distinct p.gate from unnest(v_parked) p(gate)
               join worker.command_registry c on c.command = split_part(p.gate, '/', 1)
              where c.group_rate_limit is not null order by p.gate) g;
  end if;
end
$$;

-- Writes down which gates the tasks of new leases have passed, and spends the
-- rates of group keys.
create or replace function queues.hold_gates(
  p_gates text[], p_gate_tasks bigint[], p_lease_ids bigint[], p_task_ids bigint[],
  p_serial boolean, p_now timestamptz)
returns void
language plpgsql
as $$
declare
  c_dice constant double precision := 0.01;
  v_gate record;
begin
  insert into queues.slot_held (task_key, lease_id, task_ids, since)
    select s.gate, s.lease_id,
           case when p_serial then (array_agg(s.task_id order by s.i desc))[1:1]
                else array_agg(s.task_id order by s.i) end, p_now
      from (select g.gate, t.lease_id, t.task_id, t.i
              from unnest(p_gates, p_gate_tasks) g(gate, task_id)
              join unnest(p_lease_ids, p_task_ids) with ordinality t(lease_id, task_id, i)
                using (task_id)) s
     group by s.gate, s.lease_id;
  -- Now and then the floor follows. The caller has the lock on the gates, so nobody
  -- else is adding to them.
  insert into queues.gate_floor as f (task_key, floor)
    select g.gate, (select min(h.lease_id) from queues.slot_held h
                     where h.task_key = g.gate
                       and h.lease_id >= coalesce((select o.floor from queues.gate_floor o
                                                    where o.task_key = g.gate), 0))
      from (select u.gate from unnest(p_gates) u(gate)
             group by u.gate having random() < c_dice order by u.gate) g
    on conflict (task_key) do update set floor = excluded.floor;
  for v_gate in
    select g.gate, count(*)::integer as n, c.group_rate_limit, c.rate_period
      from unnest(p_gates) g(gate)
      join worker.command_registry c on c.command = split_part(g.gate, '/', 1)
     where c.group_rate_limit is not null
     group by g.gate, c.group_rate_limit, c.rate_period order by g.gate
  loop
    perform queues.spend_rate(v_gate.gate, v_gate.n, v_gate.group_rate_limit,
                              v_gate.rate_period, p_now);
    perform queues.unpark(v_gate.gate, 1);
  end loop;
end
$$;

-- queues.hand_out for a queue with limits of all kinds.
create or replace function queues.hand_out_limited(
  p_queue worker.queue_registry, p_want integer, p_lanes integer[], p_max_priority bigint,
  p_worker_id bigint, p_backend_pid integer, p_backend_start timestamptz,
  p_expires_at timestamptz, p_now timestamptz, p_auto boolean, p_serial boolean,
  p_spare queues.free_slots[],
  out lease_ids bigint[], out task_ids bigint[], out attempts smallint[],
  out parent_ids bigint[], out stretches bigint[], out reused boolean)
language plpgsql
as $$
declare
  v_got record;
  v_places integer;
  v_lanes integer[];
begin
  if current_setting('transaction_isolation') <> 'read committed' then
    raise exception 'queue limits need isolation level read committed, not %',
      current_setting('transaction_isolation')
      using errcode = 'invalid_transaction_state';
  end if;
  if p_queue.top_concurrency is null then
    v_got := queues.admit(p_queue, p_want, p_lanes, p_max_priority, p_worker_id, p_backend_pid,
                          p_backend_start, p_expires_at, p_now, p_auto, p_serial, p_spare);
  else
    -- Children belong to a tree that has its place already.
    v_lanes := array(select l from unnest(p_lanes) l where l % 2 = 1);
    if v_lanes <> '{}' then
      v_got := queues.admit(p_queue, p_want, v_lanes, p_max_priority, p_worker_id, p_backend_pid,
                            p_backend_start, p_expires_at, p_now, p_auto, p_serial, p_spare);
    else
      select null::bigint[] as task_ids into v_got;
    end if;
    v_lanes := array(select l from unnest(p_lanes) l where l % 2 = 0);
    if v_got.task_ids is null and v_lanes <> '{}' then
      v_places := queues.free_places(p_queue.queue_id, p_queue.top_concurrency);
      if v_places > 0 then
        v_got := queues.admit(p_queue, case when p_serial then p_want
                                            else least(p_want, v_places) end,
                              v_lanes, p_max_priority, p_worker_id, p_backend_pid,
                              p_backend_start, p_expires_at, p_now, p_auto, p_serial, p_spare,
                              p_top => true, p_each => not p_serial);
      end if;
    end if;
  end if;
  if v_got.task_ids is not null then
    lease_ids := v_got.lease_ids;
    task_ids := v_got.task_ids;
    attempts := v_got.attempts;
    parent_ids := v_got.parent_ids;
    stretches := v_got.stretches;
    reused := v_got.reused;
  end if;
end
$$;
