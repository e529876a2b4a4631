-- Schedules: tasks that are enqueued again and again.
--
-- There is no leader. Every worker calls worker.fire_schedules() once a second,
-- through queues.maintain(). What is due is one probe into worker.schedule_due.
-- Whoever gets the lock on the schedule's row makes its fires: each is a row of
-- worker.schedule_fire, whose primary key lets it happen once, and a task, in
-- one commit, together with when it fires next.

-- The advisory lock between those who add a due time and those who raise the
-- floor below which nobody looks for one.
create or replace function worker.schedule_floor_key() returns bigint
language sql immutable
as $$ select 8101694254662811656 $$;

-- When a schedule fires next after p_after.
create or replace function worker.schedule_next(
  p_schedule worker.schedule_registry, p_after timestamptz)
returns timestamptz
language plpgsql stable
set search_path = pg_catalog, pg_temp
set timezone = 'UTC'
as $$
declare
  v_every interval := p_schedule.every;
  v_n bigint;
  v_at timestamptz;
begin
  if p_schedule.cron is not null then
    return worker.cron_next(p_schedule.fields, p_schedule.time_zone, p_after);
  end if;
  if extract(months from v_every) = 0 and extract(years from v_every) = 0
     and extract(days from v_every) = 0 then
    v_n := greatest(floor(extract(epoch from p_after - p_schedule.anchor)
                          / extract(epoch from v_every)), 0) + 1;
    return p_schedule.anchor + v_every * v_n;
  end if;
  -- Days and months are those of the calendar. Begins with a number that is
  -- surely not too large: a month has 30 days in an epoch, and up to 31 here.
  v_n := greatest(floor(extract(epoch from p_after - p_schedule.anchor)
                        / (extract(epoch from v_every) * 1.04 + 86400)) - 1, 0);
  loop
    v_n := v_n + 1;
    v_at := worker.first_instant(p_schedule.time_zone,
      (p_schedule.anchor at time zone p_schedule.time_zone) + v_every * v_n);
    exit when v_at > p_after;
  end loop;
  return v_at;
end
$$;

-- The last time of a schedule up to p_now; p_from is one of them. By halves:
-- after a long outage there may be very many in between.
create or replace function worker.schedule_latest(
  p_schedule worker.schedule_registry, p_from timestamptz, p_now timestamptz)
returns timestamptz
language plpgsql stable
set search_path = pg_catalog, pg_temp
set timezone = 'UTC'
as $$
declare
  v_low timestamptz := p_from;
  v_high timestamptz := p_now;
  v_next timestamptz;
begin
  while v_high - v_low >= interval '1 second' loop
    v_next := worker.schedule_next(p_schedule, v_low + (v_high - v_low) / 2);
    if v_next <= p_now then
      v_low := v_next;
    else
      v_high := v_low + (v_high - v_low) / 2;
    end if;
  end loop;
  return v_low;
end
$$;

-- Sets when a schedule fires next, or takes it away. The caller has locked its
-- row in the registry.
create or replace function worker.set_schedule_due(p_schedule_id bigint, p_due_at timestamptz)
returns void
language plpgsql
as $$
declare
  v_ms bigint := extract(epoch from p_due_at) * 1000 - 1;
begin
  delete from worker.schedule_due d where d.schedule_id = p_schedule_id;
  if p_due_at is null then
    return;
  end if;
  -- Until this has committed nobody raises the floor, so it stays as low as here.
  perform pg_advisory_xact_lock_shared(worker.schedule_floor_key());
  if v_ms < pg_sequence_last_value('worker.schedule_floor') then
    perform setval('worker.schedule_floor', v_ms);
  end if;
  insert into worker.schedule_due (schedule_id, due_at) values (p_schedule_id, p_due_at);
end
$$;

-- Adds a schedule or changes one. Changes of what is run leave its times alone;
-- so does saying the same again, as every deployment does.
create or replace function worker.put_schedule(
  p_name text, p_cron text, p_every interval, p_command text, p_payload jsonb,
  p_time_zone text, p_missed text, p_missed_window interval, p_overlap text,
  p_jitter interval, p_priority bigint)
returns timestamptz
language plpgsql
as $$
declare
  v_now timestamptz := worker.now();
  v_fields worker.cron;
  v_old worker.schedule_registry;
  v_new worker.schedule_registry;
  v_next timestamptz;
  v_same boolean;
begin
  if coalesce(p_name, '') = '' or length(p_name) > 200 then
    raise exception 'a schedule has a name of 1 to 200 characters'
      using errcode = 'invalid_parameter_value';
  elsif coalesce(p_missed, '') not in ('skip', 'one', 'all') then
    raise exception 'missed is skip, one or all, not "%"', p_missed
      using errcode = 'invalid_parameter_value';
  elsif coalesce(p_overlap, '') not in ('allow', 'skip') then
    raise exception 'overlap is allow or skip, not "%"', p_overlap
      using errcode = 'invalid_parameter_value';
  elsif p_jitter is null or p_jitter < interval '0' or p_missed_window is null
        or p_missed_window < interval '0' then
    raise exception 'jitter and missed window are 0 or more'
      using errcode = 'invalid_parameter_value';
  elsif p_cron is null and (p_every is null or p_every < interval '1 second') then
    raise exception 'an interval is 1 second or more, not %', coalesce(p_every::text, 'null')
      using errcode = 'invalid_parameter_value';
  elsif not exists (select from worker.command_registry c where c.command = p_command) then
    perform queues.refuse_command(p_command);
  end if;
  perform queues.refuse_payload(p_payload);
  perform worker.refuse_time_zone(p_time_zone);
  if p_cron is not null then
    v_fields := worker.parse_cron(p_cron);
  end if;

  loop
    select * into v_old from worker.schedule_registry s where s.name = p_name for update;
    exit when found;
    insert into worker.schedule_registry (
        name, cron, fields, every, anchor, time_zone, command, payload, priority, missed,
        missed_window, overlap, jitter, created_at, changed_at)
      values (p_name, p_cron, v_fields, p_every, date_trunc('second', v_now), p_time_zone,
              p_command, p_payload, p_priority, p_missed, p_missed_window, p_overlap, p_jitter,
              v_now, v_now)
      on conflict (name) do nothing
      returning * into v_new;
    exit when found;
  end loop;
  v_same := (v_old.cron, v_old.every, v_old.time_zone)
            is not distinct from (p_cron, p_every, p_time_zone);
  if v_old.name is not null then
    update worker.schedule_registry s
       set cron = p_cron, fields = v_fields, every = p_every, time_zone = p_time_zone,
           revision = s.revision + (not v_same)::integer,
           anchor = case when v_same then s.anchor else date_trunc('second', v_now) end,
           command = p_command, payload = p_payload, priority = p_priority, missed = p_missed,
           missed_window = p_missed_window, overlap = p_overlap, jitter = p_jitter,
           changed_at = v_now
     where s.name = p_name
    returning * into v_new;
  end if;
  if not v_new.enabled then
    return null;
  elsif v_same then
    return (select d.due_at from worker.schedule_due d where d.schedule_id = v_new.schedule_id);
  end if;
  v_next := worker.schedule_next(v_new, v_now);
  perform worker.set_schedule_due(v_new.schedule_id, v_next);
  return v_next;
end
$$;

create or replace function worker.schedule(
  p_name text, p_cron text, p_command text, p_payload jsonb default '{}',
  p_time_zone text default 'UTC', p_missed text default 'one',
  p_missed_window interval default '1 day', p_overlap text default 'allow',
  p_jitter interval default '0', p_priority bigint default null)
returns timestamptz
language plpgsql security definer
set search_path = pg_catalog, pg_temp
as $$
begin
  if p_cron is null then
    perform worker.parse_cron(null);
  end if;
  return worker.put_schedule(p_name, p_cron, null, p_command, p_payload, p_time_zone, p_missed,
                             p_missed_window, p_overlap, p_jitter, p_priority);
end
$$;

comment on function worker.schedule(text, text, text, jsonb, text, text, interval, text, interval, bigint) is
  'enqueues a command at the times of a cron expression; returns the first';

create or replace function worker.schedule(
  p_name text, p_every interval, p_command text, p_payload jsonb default '{}',
  p_time_zone text default 'UTC', p_missed text default 'one',
  p_missed_window interval default '1 day', p_overlap text default 'allow',
  p_jitter interval default '0', p_priority bigint default null)
returns timestamptz
language plpgsql security definer
set search_path = pg_catalog, pg_temp
as $$
begin
  return worker.put_schedule(p_name, null, p_every, p_command, p_payload, p_time_zone, p_missed,
                             p_missed_window, p_overlap, p_jitter, p_priority);
end
$$;

comment on function worker.schedule(text, interval, text, jsonb, text, text, interval, text, interval, bigint) is
  'enqueues a command once per interval; returns the first time';

-- The schedule of this name, locked.
create or replace function worker.hold_schedule(p_name text) returns worker.schedule_registry
language plpgsql
as $$
declare
  v_schedule worker.schedule_registry;
begin
  select * into v_schedule from worker.schedule_registry s where s.name = p_name for update;
  if not found then
    raise exception 'there is no schedule "%"', p_name
      using errcode = 'undefined_object', hint = 'see worker.schedules';
  end if;
  return v_schedule;
end
$$;

create or replace function worker.unschedule(p_name text) returns boolean
language plpgsql security definer
set search_path = pg_catalog, pg_temp
as $$
declare
  v_schedule_id bigint;
begin
  delete from worker.schedule_registry s where s.name = p_name
    returning s.schedule_id into v_schedule_id;
  delete from worker.schedule_due d where d.schedule_id = v_schedule_id;
  delete from worker.schedule_fire f where f.schedule_id = v_schedule_id;
  return v_schedule_id is not null;
end
$$;

comment on function worker.unschedule(text) is
  'removes a schedule; its tasks stay. False when there is none of this name';

create or replace function worker.disable_schedule(p_name text) returns boolean
language plpgsql security definer
set search_path = pg_catalog, pg_temp
as $$
declare
  v_schedule worker.schedule_registry := worker.hold_schedule(p_name);
begin
  update worker.schedule_registry s set enabled = false where s.name = p_name;
  perform worker.set_schedule_due(v_schedule.schedule_id, null);
  return v_schedule.enabled;
end
$$;

comment on function worker.disable_schedule(text) is
  'a schedule fires no more until it is enabled; false when it did not anyway';

create or replace function worker.enable_schedule(p_name text) returns boolean
language plpgsql security definer
set search_path = pg_catalog, pg_temp
as $$
declare
  v_schedule worker.schedule_registry := worker.hold_schedule(p_name);
begin
  if not v_schedule.enabled then
    update worker.schedule_registry s set enabled = true where s.name = p_name;
    perform worker.set_schedule_due(v_schedule.schedule_id,
                                    worker.schedule_next(v_schedule, worker.now()));
  end if;
  return not v_schedule.enabled;
end
$$;

comment on function worker.enable_schedule(text) is
  'a disabled schedule fires again from now on; what it would have fired meanwhile is not made up for';

create or replace function worker.run_schedule_now(p_name text) returns bigint
language plpgsql security definer
set search_path = pg_catalog, pg_temp
as $$
declare
  v_schedule worker.schedule_registry := worker.hold_schedule(p_name);
begin
  return queues.add_task(v_schedule.command, v_schedule.payload, v_schedule.priority,
                         p_context => jsonb_build_object('schedule', v_schedule.name));
end
$$;

comment on function worker.run_schedule_now(text) is
  'enqueues a task of a schedule at once, besides its times; returns its id';

-- One fire: a task, unless the one before it is still unfinished. False: this
-- time had its turn already. A schedule that cannot be fired is no reason for
-- the others not to be, so an error is recorded and goes no further.
create or replace function worker.make_fire(
  p_schedule worker.schedule_registry, p_fire_at timestamptz, p_now timestamptz)
returns boolean
language plpgsql
as $$
declare
  v_last bigint;
  v_task_id bigint;
  v_busy boolean := false;
begin
  select f.last_task_id into v_last from worker.schedule_fire f
   where f.schedule_id = p_schedule.schedule_id
   order by f.revision desc, f.fire_at desc limit 1;
  if p_schedule.overlap = 'skip' and v_last is not null then
    v_busy := exists (select from queues.task t where t.task_id = v_last)
      and not exists (select from queues.task_completed c where c.task_id = v_last);
  end if;
  if not v_busy then
    v_task_id := nextval('queues.task_id_seq');
  end if;
  insert into worker.schedule_fire (schedule_id, revision, fire_at, made_at, outcome, task_id,
                                    last_task_id)
    values (p_schedule.schedule_id, p_schedule.revision, p_fire_at, p_now,
            case when v_busy then 'overlap' else 'fired' end, v_task_id,
            coalesce(v_task_id, v_last))
    on conflict do nothing;
  if not found or v_busy then
    return found;
  end if;
  perform queues.add_task(p_schedule.command, p_schedule.payload, p_schedule.priority,
    -- Spread by a number that is always the same for this time.
    p_fire_at + p_schedule.jitter * ((hashtextextended(p_schedule.name,
      extract(epoch from p_fire_at)::bigint) & 1048575) / 1048576.0),
    p_context => jsonb_build_object('schedule', p_schedule.name, 'fire_at', p_fire_at),
    p_task_id => v_task_id);
  return true;
exception when serialization_failure or deadlock_detected then
  raise;
when others then
  insert into worker.schedule_fire (schedule_id, revision, fire_at, made_at, outcome,
                                    last_task_id, error)
    values (p_schedule.schedule_id, p_schedule.revision, p_fire_at, p_now, 'failed', v_last,
            sqlerrm)
    on conflict do nothing;
  raise warning 'schedule "%" could not be fired: %', p_schedule.name, sqlerrm;
  return true;
end
$$;

-- Makes what is due of one schedule, at most p_most fires. Up to a minute late
-- is on time: what is older was missed. Returns how many were made.
create or replace function worker.fire_schedule(
  p_schedule_id bigint, p_now timestamptz, p_most integer)
returns integer
language plpgsql
as $$
declare
  c_late constant interval := '1 minute';
  v_schedule worker.schedule_registry;
  v_due timestamptz;
  v_from timestamptz;   -- from here on every time has its fire
  v_at timestamptz;
  v_last timestamptz;
  v_made integer := 0;
begin
  select * into v_schedule from worker.schedule_registry s
   where s.schedule_id = p_schedule_id and s.enabled for no key update skip locked;
  if not found then
    return 0;  -- somebody else is at it
  end if;
  -- Only now that it is locked: what was due a moment ago may have been made.
  select d.due_at into v_due from worker.schedule_due d
   where d.schedule_id = p_schedule_id and d.due_at <= p_now;
  if not found then
    return 0;
  end if;
  v_from := p_now - case when v_schedule.missed = 'all'
    then greatest(v_schedule.missed_window, c_late) else c_late end;
  v_at := v_due;
  if v_due < v_from then
    v_at := worker.schedule_next(v_schedule, v_from - interval '1 microsecond');
    if v_schedule.missed = 'one' and v_at > p_now then
      v_last := worker.schedule_latest(v_schedule, v_due, p_now);
    end if;
    if v_last >= p_now - v_schedule.missed_window then
      v_made := worker.make_fire(v_schedule, v_last, p_now)::integer;
    else
      -- One row tells of all that were missed: the first of them.
      insert into worker.schedule_fire (schedule_id, revision, fire_at, made_at, outcome,
                                        last_task_id)
        values (p_schedule_id, v_schedule.revision, v_due, p_now, 'missed',
                (select f.last_task_id from worker.schedule_fire f
                  where f.schedule_id = p_schedule_id
                  order by f.revision desc, f.fire_at desc limit 1))
        on conflict do nothing;
    end if;
  end if;
  while v_at <= p_now and v_made < p_most loop
    v_made := v_made + worker.make_fire(v_schedule, v_at, p_now)::integer;
    v_at := worker.schedule_next(v_schedule, v_at);
  end loop;
  -- Later than the one before, so that it cannot lie below the floor.
  delete from worker.schedule_due d where d.schedule_id = p_schedule_id;
  insert into worker.schedule_due (schedule_id, due_at) values (p_schedule_id, v_at);
  if random() < 0.02 then
    perform worker.prune_fires(v_schedule, p_now);
  end if;
  return v_made;
exception when serialization_failure or deadlock_detected then
  return 0;  -- others have made what an old snapshot shows as due; nothing is lost
end
$$;

-- Old fires, but for the newest, which knows the last task.
create or replace function worker.prune_fires(
  p_schedule worker.schedule_registry, p_now timestamptz)
returns void
language plpgsql
as $$
begin
  delete from worker.schedule_fire f
   where (f.schedule_id, f.revision, f.fire_at) in (
     select o.schedule_id, o.revision, o.fire_at from worker.schedule_fire o
      where o.schedule_id = p_schedule.schedule_id
        and o.fire_at < p_now - greatest(p_schedule.missed_window, interval '30 days')
        and (o.revision, o.fire_at) < (
          select n.revision, n.fire_at from worker.schedule_fire n
           where n.schedule_id = p_schedule.schedule_id
           order by n.revision desc, n.fire_at desc limit 1)
      order by o.revision, o.fire_at limit 1000);
end
$$;

-- Makes what is due of all schedules. Nearly free when nothing is, waits for
-- nobody, and may be called by any number at once. Returns how many fires were
-- made; there may be more to make in the next call.
create or replace function worker.fire_schedules() returns integer
language plpgsql security definer
set search_path = pg_catalog, pg_temp
set enable_seqscan = off
set enable_bitmapscan = off
set plan_cache_mode = force_generic_plan
set jit = off
as $$
declare
  c_most constant integer := 1000;
  v_now timestamptz := worker.now();
  v_floor timestamptz := to_timestamp(
    coalesce(pg_sequence_last_value('worker.schedule_floor'), 0) / 1000.0);
  v_ids bigint[];
  v_id bigint;
  v_made integer := 0;
begin
  -- Now and then the floor follows, so that the dead rows of fires long made are
  -- not walked over. Only to what has committed, so not with an old snapshot, nor
  -- after this transaction has changed anything; and not in one that may stay
  -- open with the lock.
  if v_now - v_floor > interval '10 seconds' and queues.alone()
     and current_setting('transaction_isolation') = 'read committed'
     and pg_current_xact_id_if_assigned() is null
     and pg_try_advisory_xact_lock(worker.schedule_floor_key()) then
    perform setval('worker.schedule_floor', (extract(epoch from least(v_now,
      (select min(d.due_at) from worker.schedule_due d where d.due_at >= v_floor))) * 1000)::bigint - 1);
  end if;
  v_ids := array(select d.schedule_id from worker.schedule_due d
                  where d.due_at >= v_floor and d.due_at <= v_now
                  order by d.due_at limit 100);
  foreach v_id in array v_ids loop
    exit when v_made >= c_most;
    v_made := v_made + worker.fire_schedule(v_id, v_now, least(100, c_most - v_made));
  end loop;
  return v_made;
end
$$;

comment on function worker.fire_schedules() is
  'makes the fires that are due; part of queues.maintain()';

-- For the view, whose readers may not execute what this calls.
create or replace function worker.schedule_times(p_schedule_id bigint, p_count integer)
returns timestamptz[]
language plpgsql stable security definer
set search_path = pg_catalog, pg_temp
as $$
declare
  v_schedule worker.schedule_registry;
  v_at timestamptz := worker.now();
  v_times timestamptz[] := '{}';
begin
  select * into v_schedule from worker.schedule_registry s where s.schedule_id = p_schedule_id;
  for i in 1..p_count loop
    v_at := worker.schedule_next(v_schedule, v_at);
    v_times[i] := v_at;
  end loop;
  return v_times;
end
$$;

create or replace view worker.schedules as
  select s.name, s.cron, s.every, s.time_zone, s.command, s.payload, s.priority, s.missed,
         s.missed_window, s.overlap, s.jitter, s.enabled, d.due_at as next_at,
         case when s.enabled then worker.schedule_times(s.schedule_id, 5) end as next_times,
         f.fire_at as last_fire_at, f.outcome as last_outcome, f.last_task_id,
         f.error as last_error, s.created_at, s.changed_at
    from worker.schedule_registry s
    left join worker.schedule_due d on d.schedule_id = s.schedule_id
    left join lateral (select * from worker.schedule_fire f
                        where f.schedule_id = s.schedule_id
                        order by f.revision desc, f.fire_at desc limit 1) f on true;
