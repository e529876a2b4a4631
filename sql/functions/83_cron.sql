-- Cron expressions: five fields, and the times they stand for.
--
-- Clock changes, as in Vixie cron:
-- - An expression whose minute or hour field begins with '*' follows elapsed
--   time: it fires at every instant at which the local clock shows a time that
--   fits. Hours that the clock skips do not exist for it, and hours that the
--   clock shows twice count twice.
-- - Any other fires once per time on the calendar, at the first instant at which
--   the local clock shows that time or a later one: a time that is skipped fires
--   at once after the gap, a time that comes twice fires the first time.

create or replace function worker.refuse_cron(p_cron text, p_why text) returns void
language plpgsql
set search_path = pg_catalog, pg_temp
as $$
begin
  raise exception 'cron expression "%": %', p_cron, p_why
    using errcode = 'invalid_parameter_value',
          hint = 'minute hour day month weekday, as in */5 8-17 * * mon-fri, or @hourly, @daily, @weekly, @monthly, @yearly; for an interval, interval ''5 minutes''';
end
$$;

-- One value of a field: a number or a name.
create or replace function worker.cron_value(
  p_cron text, p_value text, p_field text, p_least integer, p_most integer, p_names text[])
returns integer
language plpgsql
set search_path = pg_catalog, pg_temp
as $$
declare
  v_value integer := array_position(p_names, left(p_value, 3)) - 1 + p_least;
begin
  if v_value is null or length(p_value) <> 3 then
    if p_value !~ '^\d{1,4}$' or p_value::integer not between p_least and p_most then
      perform worker.refuse_cron(p_cron, format('%s "%s" is not in %s to %s', p_field, p_value,
                                                p_least, p_most));
    end if;
    v_value := p_value::integer;
  end if;
  return v_value;
end
$$;

-- One field as the sorted list of its values.
create or replace function worker.cron_field(
  p_cron text, p_text text, p_field text, p_least integer, p_most integer,
  p_names text[] default null)
returns integer[]
language plpgsql
set search_path = pg_catalog, pg_temp
as $$
declare
  v_item text;
  v_parts text[];
  v_from integer;
  v_to integer;
  v_step integer;
  v_values integer[] := '{}';
begin
  foreach v_item in array string_to_array(p_text, ',') loop
    v_parts := regexp_match(v_item, '^(\*|[a-z0-9]+)(?:-([a-z0-9]+))?(?:/(\d{1,4}))?$');
    if v_parts is null or (v_parts[1] = '*' and v_parts[2] is not null) then
      perform worker.refuse_cron(p_cron, format('%s "%s" is not a value, a range, * or one of these with /step',
                                                p_field, v_item));
    elsif v_parts[3] is not null and v_parts[1] <> '*' and v_parts[2] is null then
      perform worker.refuse_cron(p_cron, format('%s "%s" has a step but no range: write %s-%s/%s',
                                                p_field, v_item, v_parts[1], p_most, v_parts[3]));
    end if;
    v_step := coalesce(v_parts[3]::integer, 1);
    if v_step = 0 then
      perform worker.refuse_cron(p_cron, format('%s "%s" has a step of 0', p_field, v_item));
    end if;
    if v_parts[1] = '*' then
      v_from := p_least;
      v_to := p_most - (p_field = 'weekday')::integer;
    else
      v_from := worker.cron_value(p_cron, v_parts[1], p_field, p_least, p_most, p_names);
      v_to := coalesce(worker.cron_value(p_cron, v_parts[2], p_field, p_least, p_most, p_names),
                       v_from);
      if p_field = 'weekday' and v_to = 0 then
        v_to := case when v_from > 0 then 7 else 0 end;  -- fri-sun
      end if;
      if v_from > v_to then
        perform worker.refuse_cron(p_cron, format('%s "%s" ends before it begins', p_field, v_item));
      end if;
    end if;
    v_values := v_values || array(select generate_series(v_from, v_to, v_step));
  end loop;
  if p_field = 'weekday' then
    v_values := array(select v % 7 from unnest(v_values) v);
  end if;
  return array(select distinct v from unnest(v_values) v order by v);
end
$$;

create or replace function worker.parse_cron(p_cron text) returns worker.cron
language plpgsql
set search_path = pg_catalog, pg_temp
as $$
declare
  v_text text := lower(btrim(p_cron, E' \t'));
  v_fields text[];
  v_cron worker.cron;
begin
  if p_cron is null then
    raise exception 'a cron expression is needed, not null'
      using errcode = 'invalid_parameter_value';
  end if;
  if v_text like '@%' then
    v_text := case v_text
      when '@hourly' then '0 * * * *'
      when '@daily' then '0 0 * * *'
      when '@midnight' then '0 0 * * *'
      when '@weekly' then '0 0 * * 0'
      when '@monthly' then '0 0 1 * *'
      when '@yearly' then '0 0 1 1 *'
      when '@annually' then '0 0 1 1 *' end;
    if v_text is null then
      perform worker.refuse_cron(p_cron, 'there is no such word');
    end if;
  end if;
  v_fields := regexp_split_to_array(v_text, '[ \t]+');
  if cardinality(v_fields) <> 5 or v_text = '' then
    perform worker.refuse_cron(p_cron, format('it has %s fields, not 5',
      case when v_text = '' then 0 else cardinality(v_fields) end));
  end if;
  v_cron.minutes := worker.cron_field(p_cron, v_fields[1], 'minute', 0, 59);
  v_cron.hours := worker.cron_field(p_cron, v_fields[2], 'hour', 0, 23);
  v_cron.days := worker.cron_field(p_cron, v_fields[3], 'day', 1, 31);
  v_cron.months := worker.cron_field(p_cron, v_fields[4], 'month', 1, 12,
    '{jan,feb,mar,apr,may,jun,jul,aug,sep,oct,nov,dec}');
  v_cron.weekdays := worker.cron_field(p_cron, v_fields[5], 'weekday', 0, 7,
    '{sun,mon,tue,wed,thu,fri,sat}');
  -- With one of the two open the other decides; '*/2' is open in this sense and
  -- still has to fit.
  v_cron.either_day := not (v_fields[3] like '*%' or v_fields[5] like '*%');
  v_cron.elapsed := v_fields[1] like '*%' or v_fields[2] like '*%';
  if not v_cron.either_day
     and not exists (select from unnest(v_cron.months) m, unnest(v_cron.days) d
                      where d <= (array[31,29,31,30,31,30,31,31,30,31,30,31])[m]) then
    perform worker.refuse_cron(p_cron, 'no month has such a day');
  end if;
  return v_cron;
end
$$;

-- The first time on the calendar, from p_from on, that fits.
create or replace function worker.cron_next_local(p_cron worker.cron, p_from timestamp)
returns timestamp
language plpgsql immutable
set search_path = pg_catalog, pg_temp
as $$
declare
  v_day date := p_from::date;
  v_hour integer := extract(hour from p_from);
  v_minute integer := extract(minute from p_from);
  v_at_hour integer;
  v_last_minute integer := p_cron.minutes[cardinality(p_cron.minutes)];
begin
  loop
    if not extract(month from v_day) = any(p_cron.months) then
      v_day := (date_trunc('month', v_day::timestamp) + interval '1 month')::date;
      v_hour := 0;
      v_minute := 0;
      continue;
    end if;
    if (p_cron.either_day and (extract(day from v_day) = any(p_cron.days)
                               or extract(dow from v_day) = any(p_cron.weekdays)))
       or (extract(day from v_day) = any(p_cron.days)
           and extract(dow from v_day) = any(p_cron.weekdays)) then
      select min(h) into v_at_hour from unnest(p_cron.hours) h
       where h > v_hour or (h = v_hour and v_last_minute >= v_minute);
      if v_at_hour is not null then
        return v_day + make_interval(hours => v_at_hour, mins => (
          select min(m) from unnest(p_cron.minutes) m
           where v_at_hour > v_hour or m >= v_minute));
      end if;
    end if;
    v_day := v_day + 1;
    v_hour := 0;
    v_minute := 0;
  end loop;
end
$$;

-- The instant in (p_from, p_to], to the minute, at which the clock of a zone
-- changes to what it is at p_to. There is one change in between.
create or replace function worker.clock_change(p_zone text, p_from timestamptz, p_to timestamptz)
returns timestamptz
language plpgsql immutable
set search_path = pg_catalog, pg_temp
as $$
declare
  v_after interval := (p_to at time zone p_zone) - (p_to at time zone 'UTC');
  v_low timestamptz := p_from;
  v_high timestamptz := p_to;
  v_middle timestamptz;
begin
  while v_high - v_low > interval '1 minute' loop
    v_middle := date_trunc('minute', v_low + (v_high - v_low) / 2, 'UTC');
    if v_middle <= v_low then
      v_middle := v_low + interval '1 minute';
    end if;
    if (v_middle at time zone p_zone) - (v_middle at time zone 'UTC') = v_after then
      v_high := v_middle;
    else
      v_low := v_middle;
    end if;
  end loop;
  return v_high;
end
$$;

-- The first instant at which the clock of a zone shows this time or a later one.
-- Called with the session in UTC.
create or replace function worker.first_instant(p_zone text, p_local timestamp)
returns timestamptz
language plpgsql immutable
set search_path = pg_catalog, pg_temp
as $$
declare
  -- Of a time that is skipped: as if by the clock before the change. Of a time
  -- that comes twice: the second.
  v_at timestamptz := p_local at time zone p_zone;
  v_before timestamptz;
begin
  if v_at at time zone p_zone <> p_local then
    return worker.clock_change(p_zone, v_at - ((v_at at time zone p_zone) - p_local), v_at);
  end if;
  -- By the clock of the day before.
  v_before := (p_local - (((v_at - interval '1 day') at time zone p_zone)
                          - ((v_at - interval '1 day') at time zone 'UTC'))) at time zone 'UTC';
  if v_before < v_at and v_before at time zone p_zone = p_local then
    return v_before;
  end if;
  return v_at;
end
$$;

-- The next time after p_after. In UTC, so that a day has 24 hours here.
create or replace function worker.cron_next(
  p_cron worker.cron, p_zone text, p_after timestamptz)
returns timestamptz
language plpgsql immutable
set search_path = pg_catalog, pg_temp
set timezone = 'UTC'
as $$
declare
  v_at timestamptz := date_trunc('minute', p_after, 'UTC') + interval '1 minute';
  v_local timestamp := date_trunc('minute', p_after at time zone p_zone);
  v_next timestamp;
  v_to timestamptz;
begin
  if not p_cron.elapsed then
    -- A later time on the calendar never comes at an earlier instant.
    loop
      v_next := worker.cron_next_local(p_cron, v_local);
      v_at := worker.first_instant(p_zone, v_next);
      if v_at > p_after then
        return v_at;
      end if;
      v_local := v_next + interval '1 minute';
    end loop;
  end if;
  loop
    v_local := v_at at time zone p_zone;
    v_next := worker.cron_next_local(p_cron, v_local);
    v_to := v_at + least(v_next - v_local, interval '1 day');
    if (v_to at time zone p_zone) - v_local <> v_to - v_at then
      v_at := worker.clock_change(p_zone, v_at, v_to);
    elsif v_next - v_local <= interval '1 day' then
      return v_to;
    else
      -- Far away: no clock is put back by so much that this skips anything.
      v_at := greatest(v_to, (v_next - interval '2 days') at time zone p_zone);
    end if;
  end loop;
end
$$;

-- What an expression means, before it is used.
create or replace function worker.cron_times(
  p_cron text, p_time_zone text default 'UTC', p_count integer default 5,
  p_after timestamptz default null)
returns setof timestamptz
language plpgsql stable security definer
set search_path = pg_catalog, pg_temp
as $$
declare
  v_cron worker.cron := worker.parse_cron(p_cron);
  v_at timestamptz := coalesce(p_after, worker.now());
begin
  perform worker.refuse_time_zone(p_time_zone);
  for i in 1..coalesce(p_count, 5) loop
    v_at := worker.cron_next(v_cron, p_time_zone, v_at);
    return next v_at;
  end loop;
end
$$;

comment on function worker.cron_times is
  'the next times of a cron expression';

create or replace function worker.refuse_time_zone(p_time_zone text) returns void
language plpgsql stable
set search_path = pg_catalog, pg_temp
as $$
begin
  if (now() at time zone p_time_zone) is not null then
    return;
  end if;
  raise exception 'a time zone is needed, not null' using errcode = 'null_value_not_allowed';
exception when invalid_parameter_value then
  raise exception 'there is no time zone "%"', p_time_zone
    using errcode = 'invalid_parameter_value', hint = 'see pg_timezone_names';
end
$$;
