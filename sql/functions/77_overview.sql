-- What people look at first: lists and counts. Their cost does not grow with the
-- history, nor with the backlog: each looks at a window of so many rows, and says
-- when that was not all.

-- Rows of a queue that a claim could take, the last of each line first, until
-- they have p_most tasks per line and generation. Limbo too: a sweep will find
-- what is there. The marks keep it off the part that has been read already.
create or replace function queues.ready_window(p_queue_id integer, p_most integer)
returns table (run_at timestamptz, task_ids bigint[])
language plpgsql
as $$
declare
  v_generations integer[] := queues.live_generations(p_queue_id) || (
    select l.limbo from queues.generation_ledger l
     where l.queue_id = p_queue_id order by l.version desc limit 1);
begin
  return query
    select r.run_at, r.task_ids
      from unnest(v_generations) g(generation)
     cross join unnest(queues.all_lanes()) l(lane)
      left join lateral (
        select m.priority, m.run_at, m.first_id from queues.cursor_mark m
         where m.queue_id = p_queue_id and m.generation = g.generation and m.lane = l.lane
         order by m.mark_no desc limit 1) m on true
     cross join lateral (
        select r.run_at, r.task_ids,
               sum(cardinality(r.task_ids)) over (
                 order by r.priority desc, r.run_at desc, r.first_id desc
                 rows between unbounded preceding and 1 preceding) as before
          from queues.ready r
         where r.queue_id = p_queue_id and r.generation = g.generation and r.lane = l.lane
           and (r.priority, r.run_at, r.first_id) >=
               (coalesce(m.priority, -9223372036854775808), coalesce(m.run_at, '-infinity'),
                coalesce(m.first_id, 0))
         order by r.priority desc, r.run_at desc, r.first_id desc
         limit p_most) r
     where coalesce(r.before, 0) < p_most;
end
$$;

-- Since when the first task of each line has been due: with ready_window, which
-- sees the other end, as good as the oldest of all.
create or replace function queues.oldest_head(p_queue_id integer) returns timestamptz
language plpgsql
as $$
declare
  v_generations integer[] := queues.live_generations(p_queue_id);
begin
  return (
    select min(r.run_at)
      from unnest(v_generations) g(generation)
     cross join unnest(queues.all_lanes()) l(lane)
      left join lateral (
        select m.priority, m.run_at, m.first_id from queues.cursor_mark m
         where m.queue_id = p_queue_id and m.generation = g.generation and m.lane = l.lane
         order by m.mark_no desc limit 1) m on true
     cross join lateral (
        select r.run_at from queues.ready r
         where r.queue_id = p_queue_id and r.generation = g.generation and r.lane = l.lane
           and (r.priority, r.run_at, r.first_id) >=
               (coalesce(m.priority, -9223372036854775808), coalesce(m.run_at, '-infinity'),
                coalesce(m.first_id, 0))
         order by r.priority, r.run_at, r.first_id
         limit 1) r);
end
$$;

-- A window onto the newest tasks that may be in a state and of a queue, by the
-- index that comes nearest to it; `fits` says which of them are. There may be
-- more than p_window: it is per queue, or per line.
create or replace function queues.newest_tasks(
  p_state queues.task_state, p_queue_id integer, p_command text, p_window integer)
returns table (task_id bigint, fits boolean)
language plpgsql
as $$
begin
  if p_state in ('failed', 'canceled') then
    return query
      select s.task_id, s.state = p_state
        from worker.queue_registry q
       cross join lateral (
          select c.task_id, c.state from queues.task_completed c
           where c.queue_id = q.queue_id and c.state <> 'completed'
           order by c.task_id desc limit p_window) s
       where p_queue_id is null or q.queue_id = p_queue_id;
  elsif p_state = 'completed' then
    return query
      select c.task_id, c.state = p_state and (p_queue_id is null or c.queue_id = p_queue_id)
        from queues.task_completed c order by c.task_id desc limit p_window;
  elsif p_state = 'waiting' then
    return query
      select s.task_id, true
        from worker.queue_registry q
       cross join lateral (
          select w.task_id from queues.waiting w
           where w.queue_id = q.queue_id order by w.task_id desc limit p_window) s
       where p_queue_id is null or q.queue_id = p_queue_id;
  elsif p_state = 'processing' then
    return query
      select f.task_id, true from queues.in_flight f
       where p_queue_id is null or f.queue_id = p_queue_id;
  elsif p_state = 'pending' then
    return query
      select unnest(s.task_ids), true
        from worker.queue_registry q
       cross join lateral (
          (select r.task_ids from queues.ready_window(q.queue_id, p_window) r)
          union all
          (select t.task_ids from queues.timer t
            where t.queue_id = q.queue_id order by t.run_at desc, t.first_id desc
            limit p_window)) s
       where p_queue_id is null or q.queue_id = p_queue_id;
  else
    return query
      select t.task_id, (p_queue_id is null or t.queue_id = p_queue_id)
                        and (p_command is null or t.task_type = p_command)
        from queues.task t order by t.task_id desc limit p_window;
  end if;
end
$$;

create or replace function queues.check_filter(p_state text, p_queue text, p_command text)
returns void
language plpgsql
as $$
begin
  if p_state <> all(enum_range(null::queues.task_state)::text[]) then
    raise exception 'there is no state "%"', p_state
      using errcode = 'invalid_parameter_value',
            hint = 'states are ' || array_to_string(enum_range(null::queues.task_state), ', ');
  elsif p_queue is not null and not exists (
          select from worker.queue_registry q where q.queue = p_queue) then
    raise exception 'there is no queue "%"', p_queue using errcode = 'undefined_object';
  elsif p_command is not null and not exists (
          select from worker.command_registry c where c.command = p_command) then
    raise exception 'unknown command "%"', p_command using errcode = 'undefined_object';
  end if;
end
$$;

-- The newest tasks in a state, of a queue, of a command: whichever are given.
-- `cut`: there are fewer than p_limit, but not everything was looked at. The
-- window is the setting worker.list_window.
create or replace function worker.find_tasks(
  p_state text default null, p_queue text default null, p_command text default null,
  p_limit integer default 20, out task_ids bigint[], out cut boolean)
language plpgsql stable security definer
set search_path = pg_catalog, pg_temp
set enable_seqscan = off
set jit = off
set enable_bitmapscan = off
set plan_cache_mode = force_generic_plan
as $$
declare
  v_window integer := greatest(coalesce(
    nullif(current_setting('worker.list_window', true), '')::integer, 10000), p_limit);
  v_queue_id integer;
begin
  perform queues.check_filter(p_state, p_queue, p_command);
  select q.queue_id into v_queue_id from worker.queue_registry q where q.queue = p_queue;
  -- Where an index answers the whole question, as many as are wanted will do.
  if p_command is null and (p_state in ('processing', 'waiting')
                            or (p_state is null and p_queue is null)) then
    v_window := p_limit;
  end if;
  with looked_at as materialized (
    select n.task_id, n.fits
      from queues.newest_tasks(p_state::queues.task_state, v_queue_id, p_command, v_window) n
     order by n.task_id desc limit v_window)
  select array(
           select l.task_id from looked_at l
            where l.fits
              and (p_command is null or p_state is null
                   or (select t.task_type from queues.task t
                        where t.task_id = l.task_id) = p_command)
            order by l.task_id desc limit p_limit),
         (select count(*) = v_window from looked_at)
    into task_ids, cut;
  cut := cut and cardinality(task_ids) < p_limit;
end
$$;

comment on function worker.find_tasks is
  'ids of the newest tasks in a state, of a queue, of a command; cut: not all was looked at';

-- How each queue is doing. No number goes above p_most + 1: more is not counted.
create or replace function worker.queue_overview(p_most integer default 10000)
returns table (queue text, paused boolean, paused_until timestamptz, top_concurrency integer,
               pending bigint, scheduled bigint, processing bigint, waiting bigint,
               failed_last_hour bigint, oldest_due timestamptz)
language plpgsql stable security definer
set search_path = pg_catalog, pg_temp
set enable_seqscan = off
set jit = off
set enable_bitmapscan = off
set plan_cache_mode = force_generic_plan
as $$
#variable_conflict use_column
declare
  -- Timers for a time that never comes: these tasks wait for somebody, not for it.
  c_never constant timestamptz := '9999-01-01 00:00:00+00';
  v_now timestamptz := worker.now();
  v_queue worker.queue_registry;
  v_due record;
begin
  for v_queue in select * from worker.queue_registry order by queue loop
    queue := v_queue.queue;
    paused := v_queue.paused
              and (v_queue.paused_until is null or v_queue.paused_until > v_now);
    paused_until := case when paused then v_queue.paused_until end;
    top_concurrency := v_queue.top_concurrency;
    -- What is due but has not left the timers yet is pending like the rest.
    select coalesce(sum(cardinality(r.task_ids)), 0) as n,
           min(r.run_at) filter (where r.run_at < c_never) as oldest into v_due
      from (select w.run_at, w.task_ids from queues.ready_window(v_queue.queue_id, p_most + 1) w
            union all
            (select t.run_at, t.task_ids from queues.timer t
              where t.queue_id = v_queue.queue_id and t.run_at <= v_now
              order by t.run_at limit p_most + 1)
            union all
            (select t.run_at, t.task_ids from queues.timer t
              where t.queue_id = v_queue.queue_id and t.run_at >= c_never
              order by t.run_at limit p_most + 1)) r;
    pending := least(v_due.n, p_most + 1);
    oldest_due := least(v_due.oldest, queues.oldest_head(v_queue.queue_id));
    select least(coalesce(sum(cardinality(s.task_ids)), 0), p_most + 1) into scheduled
      from (select t.task_ids from queues.timer t
             where t.queue_id = v_queue.queue_id and t.run_at > v_now and t.run_at < c_never
             order by t.run_at limit p_most + 1) s;
    select count(*) into processing
      from (select from queues.in_flight f
             where f.queue_id = v_queue.queue_id limit p_most + 1) s;
    select count(*) into waiting
      from (select from queues.waiting w
             where w.queue_id = v_queue.queue_id limit p_most + 1) s;
    select count(*) into failed_last_hour
      from (select c.state, c.completed_at from queues.task_completed c
             where c.queue_id = v_queue.queue_id and c.state <> 'completed'
             order by c.task_id desc limit p_most + 1) s
     where s.state = 'failed' and s.completed_at > v_now - interval '1 hour';
    return next;
  end loop;
end
$$;

comment on function worker.queue_overview is
  'one row per queue: what is pending, running, waiting, and failed; counts up to p_most';
