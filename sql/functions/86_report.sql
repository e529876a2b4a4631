-- Reports and events.
--
-- Ends are counted where a lease ends, one row of worker.stat_raw for all its
-- tasks, in the same commit: so the counts are as right as the queue itself,
-- over crashes and restarts, and cost nothing per task. What is waiting and
-- running is counted at the time of asking, up to a bound and estimated beyond
-- it, so that the cost of a report does not depend on the number of tasks.

-- Counts ends. Internal.
create or replace function queues.count_ends(
  p_queue_id integer, p_now timestamptz, p_succeeded bigint, p_failed bigint default 0,
  p_canceled bigint default 0, p_retries bigint default 0, p_recovered bigint default 0)
returns void
language plpgsql
as $$
begin
  insert into worker.stat_raw (recorded_at, queue_id, succeeded, failed, canceled, retries,
                               recovered)
    values (p_now, p_queue_id, p_succeeded, p_failed, p_canceled, p_retries, p_recovered);
end
$$;

-- Counts how these tasks have fared under a lease, which the caller has just
-- ended for them. A parent that waits is counted when it ends, and what goes on
-- under another lease with that one.
create or replace function queues.count_tasks(
  p_queue_id integer, p_now timestamptz, p_lease_id bigint, p_ids bigint[])
returns void
language plpgsql
as $$
begin
  insert into worker.stat_raw (recorded_at, queue_id, succeeded, failed, canceled, retries,
                               recovered)
    select p_now, p_queue_id, count(*) filter (where s.state = 'completed'),
           count(*) filter (where s.state = 'failed'),
           count(*) filter (where s.state = 'canceled'),
           count(*) filter (where s.outcome = 'failed'),
           count(*) filter (where s.outcome = 'lost')
      from (select e.outcome, case when coalesce(e.outcome, 'lost') = 'lost' then
                     (select c.state from queues.task_completed c where c.task_id = u.id) end as state
              from unnest(p_ids) u(id)
              left join lateral (select e.outcome from queues.attempt_end e
                                  where e.task_id = u.id and e.lease_id = p_lease_id
                                 offset 0) e on true) s
    having count(s.state) > 0 or count(*) filter (where s.outcome in ('failed', 'lost')) > 0;
end
$$;

-- The same at the end of a lease, of those tasks that have just ended. Those of a
-- session that runs SQL handlers are only counted then, all at once: they end one
-- by one, each in a commit of its own, which is not to cost a row each.
create or replace function queues.count_lease(
  p_lease queues.lease, p_now timestamptz, p_ids bigint[], p_over boolean default true)
returns void
language plpgsql
as $$
begin
  if p_lease.backend_pid is null then
    perform queues.count_tasks(p_lease.queue_id, p_now, p_lease.lease_id, p_ids);
  elsif p_over then
    perform queues.count_tasks(p_lease.queue_id, p_now, p_lease.lease_id, p_lease.task_ids);
  end if;
end
$$;

-- Sums up by the minute what is older than ten seconds, and in one row what is
-- older than a day. Rows that come late, from a long transaction, lie below the
-- floor; now and then somebody looks there, too.
create or replace function worker.roll_stats() returns void
language plpgsql
as $$
declare
  v_now timestamptz := worker.now();
  v_floor timestamptz := case when random() < 0.02 then '-infinity' else worker.stat_floor() end;
begin
  if not exists (select from worker.stat_raw r
                  where r.recorded_at >= v_floor and r.recorded_at < v_now - interval '10 seconds')
     or not pg_try_advisory_xact_lock(8101694254662811657) then
    return;
  end if;
  begin
    with moved as (
      delete from worker.stat_raw r
       where r.recorded_at >= v_floor and r.recorded_at < v_now - interval '10 seconds'
      returning *)
    insert into worker.stat as s (queue_id, minute, succeeded, failed, canceled, retries, recovered)
      select m.queue_id, date_trunc('minute', m.recorded_at), sum(m.succeeded), sum(m.failed),
             sum(m.canceled), sum(m.retries), sum(m.recovered)
        from moved m group by 1, 2 order by 1, 2
      on conflict (queue_id, minute) do update
        set succeeded = s.succeeded + excluded.succeeded, failed = s.failed + excluded.failed,
            canceled = s.canceled + excluded.canceled, retries = s.retries + excluded.retries,
            recovered = s.recovered + excluded.recovered;
    -- An hour at a time.
    if exists (select from worker.stat s where s.minute > '-infinity'
                  and s.minute < v_now - interval '25 hours') then
      with moved as (
        delete from worker.stat s
         where s.minute > '-infinity' and s.minute < v_now - interval '24 hours'
        returning *)
      insert into worker.stat as s (queue_id, minute, succeeded, failed, canceled, retries,
                                    recovered)
        select m.queue_id, '-infinity', sum(m.succeeded), sum(m.failed), sum(m.canceled),
               sum(m.retries), sum(m.recovered)
          from moved m group by 1 order by 1
        on conflict (queue_id, minute) do update
          set succeeded = s.succeeded + excluded.succeeded, failed = s.failed + excluded.failed,
              canceled = s.canceled + excluded.canceled, retries = s.retries + excluded.retries,
              recovered = s.recovered + excluded.recovered;
    end if;
  exception when serialization_failure then
    return;  -- an old snapshot, and somebody else has done it
  end;
end
$$;

-- Now and then the floor follows, so that the dead rows of what was summed up are
-- not walked over. Only to what has committed: so not with an old snapshot, nor
-- after this transaction has changed anything.
create or replace function worker.raise_stat_floor() returns void
language plpgsql
as $$
declare
  v_now timestamptz := worker.now();
  v_floor timestamptz := worker.stat_floor();
begin
  if v_now - v_floor > interval '100 seconds' and pg_current_xact_id_if_assigned() is null
     and current_setting('transaction_isolation') = 'read committed'
     and coalesce(current_setting('worker.fake_now', true), '') = '' then
    perform setval('worker.stat_floor', (extract(epoch from least(v_now - interval '70 seconds',
      (select min(r.recorded_at) from worker.stat_raw r
        where r.recorded_at >= v_floor))) * 1000)::bigint - 1);
  end if;
end
$$;

create or replace function worker.stat_floor() returns timestamptz
language plpgsql
as $$
begin
  return to_timestamp(coalesce(pg_sequence_last_value('worker.stat_floor'), 0) / 1000.0);
end
$$;

-- How many rows the planner expects of a table for a queue: by its statistics
-- and by the size that the table has now.
create or replace function queues.estimated_rows(p_table text, p_queue_id integer) returns bigint
language plpgsql
as $$
declare
  v_plan jsonb;
begin
  execute format('explain (format json) select from queues.%I where queue_id = %s', p_table,
                 p_queue_id) into v_plan;
  return (v_plan -> 0 -> 'Plan' ->> 'Plan Rows')::bigint;
end
$$;

-- Tasks that could be claimed now, and tasks for later. Counted when they are in
-- up to a thousand rows; beyond that estimated, and exact is false. Does not walk
-- over what was claimed, as claims do not.
create or replace function queues.count_backlog(
  p_queue_id integer, out ready bigint, out later bigint, out exact boolean)
language plpgsql
as $$
declare
  c_rows constant integer := 1000;
  v_live integer[] := queues.live_generations(p_queue_id);
  v_lanes integer[] := queues.all_lanes();
  v_timer_floor timestamptz := queues.timer_floor(p_queue_id);
  v_rows bigint;
begin
  select coalesce(sum(cardinality(s.task_ids)), 0), count(*) into ready, v_rows
    from (select r.task_ids
            from unnest(v_live) g cross join unnest(v_lanes) l
            left join lateral (
              select m.priority, m.run_at, m.first_id from queues.cursor_mark m
               where m.queue_id = p_queue_id and m.generation = g and m.lane = l
               order by m.mark_no desc limit 1) m on true
           cross join lateral (
              select r.task_ids from queues.ready r
               where r.queue_id = p_queue_id and r.generation = g and r.lane = l
                 and (r.priority, r.run_at, r.first_id)
                     >= (coalesce(m.priority, -9223372036854775808),
                         coalesce(m.run_at, '-infinity'), coalesce(m.first_id, 0))
               order by r.priority, r.run_at, r.first_id limit c_rows + 1) r
           limit c_rows + 1) s;
  exact := v_rows <= c_rows;
  if v_rows > c_rows then
    ready := greatest(ready, queues.estimated_rows('ready', p_queue_id) * ready / v_rows);
  end if;
  select coalesce(sum(cardinality(s.task_ids)), 0), count(*) into later, v_rows
    from (select t.task_ids from queues.timer t
           where t.queue_id = p_queue_id and t.run_at >= v_timer_floor
           order by t.run_at, t.first_id limit c_rows + 1) s;
  exact := exact and v_rows <= c_rows;
  if v_rows > c_rows then
    later := greatest(later, queues.estimated_rows('timer', p_queue_id) * later / v_rows);
  end if;
end
$$;

-- Tasks in the hands of workers and sessions. Leases in force are few; the floor
-- keeps the walk off those that have ended.
create or replace function queues.count_running()
returns table (queue_id integer, running bigint)
language plpgsql
as $$
#variable_conflict use_column
declare
  v_floor bigint := coalesce(pg_sequence_last_value('queues.lease_floor'), 0);
begin
  return query
    select s.queue_id, sum(s.n) from (
      select o.queue_id, case when o.partial then cardinality(queues.unfinished(l))
                              else cardinality(l.task_ids) end as n
        from (select * from queues.lease_open o where o.lease_id >= v_floor limit 10000) o
       cross join lateral (select * from queues.lease l
                            where l.lease_id = o.lease_id offset 0) l) s
     group by s.queue_id;
end
$$;

create or replace function worker.report(p_interval interval default '1 hour')
returns table (queue text, completed bigint, succeeded bigint, failed bigint, canceled bigint,
               retries bigint, recovered bigint, failure_rate double precision, running bigint,
               waiting bigint, backlog bigint, scheduled bigint, backlog_exact boolean,
               total_completed bigint, total_succeeded bigint, total_failed bigint,
               total_canceled bigint, total_retries bigint, total_recovered bigint)
language plpgsql security definer
set search_path = pg_catalog, pg_temp
set enable_seqscan = off
set enable_bitmapscan = off
set enable_hashjoin = off
set enable_mergejoin = off
set plan_cache_mode = force_generic_plan
set jit = off
as $$
#variable_conflict use_column
declare
  v_from timestamptz := worker.now() - p_interval;
  v_floor timestamptz := worker.stat_floor();
begin
  if p_interval is null or p_interval <= interval '0' or p_interval > interval '1 day' then
    raise exception 'a report is of more than nothing and at most a day, not of %', p_interval
      using errcode = 'invalid_parameter_value';
  end if;
  return query
    with counted as materialized (
      select s.queue_id, s.minute as at, s.succeeded, s.failed, s.canceled, s.retries, s.recovered
        from worker.stat s
      union all
      select r.queue_id, r.recorded_at, r.succeeded, r.failed, r.canceled, r.retries, r.recovered
        from worker.stat_raw r where r.recorded_at >= v_floor),
    summed as materialized (
      select c.queue_id,
             sum(c.succeeded) filter (where c.at >= v_from) as succeeded,
             sum(c.failed) filter (where c.at >= v_from) as failed,
             sum(c.canceled) filter (where c.at >= v_from) as canceled,
             sum(c.retries) filter (where c.at >= v_from) as retries,
             sum(c.recovered) filter (where c.at >= v_from) as recovered,
             sum(c.succeeded) as total_succeeded, sum(c.failed) as total_failed,
             sum(c.canceled) as total_canceled, sum(c.retries) as total_retries,
             sum(c.recovered) as total_recovered
        from counted c group by c.queue_id),
    running as materialized (select * from queues.count_running())
    select q.queue,
           coalesce(s.succeeded + s.failed + s.canceled, 0)::bigint,
           coalesce(s.succeeded, 0)::bigint, coalesce(s.failed, 0)::bigint,
           coalesce(s.canceled, 0)::bigint, coalesce(s.retries, 0)::bigint,
           coalesce(s.recovered, 0)::bigint,
           (s.failed / nullif(s.succeeded + s.failed, 0))::double precision,
           coalesce(r.running, 0), w.n, b.ready, b.later, b.exact,
           coalesce(s.total_succeeded + s.total_failed + s.total_canceled, 0)::bigint,
           coalesce(s.total_succeeded, 0)::bigint, coalesce(s.total_failed, 0)::bigint,
           coalesce(s.total_canceled, 0)::bigint, coalesce(s.total_retries, 0)::bigint,
           coalesce(s.total_recovered, 0)::bigint
      from worker.queue_registry q
      left join summed s on s.queue_id = q.queue_id
      left join running r on r.queue_id = q.queue_id
     cross join lateral queues.count_backlog(q.queue_id) b
     cross join lateral (
       select count(*) as n from (select from queues.waiting w
                                   where w.queue_id = q.queue_id limit 10000) w) w
     order by q.queue;
end
$$;

comment on function worker.report(interval) is
  'what each queue has done in the last interval and in all, and what it has before it';

create or replace view worker.report as select * from worker.report(interval '1 hour');

-- What happened to tasks, as far as it is stored. Ask for a task, or for a range
-- of ids; all branches have an index on the id.
create or replace view worker.events as
  select t.task_id, t.enqueued_at as at, 'enqueued' as event, null::smallint as attempt,
         null::text as detail
    from queues.task t
  union all
  select l.task_id, l.leased_at, 'started', l.attempt, null from queues.task_lease l
  union all
  select e.task_id, e.ended_at,
         case e.outcome when 'failed' then 'retried' when 'lost' then 'recovered'
                        else e.outcome end,
         e.attempt,
         case when e.outcome = 'failed' then
           (select r.error_message from queues.error r
             where r.task_id = e.task_id and r.attempt = e.attempt
             order by r.error_id desc limit 1) end
    from queues.attempt_end e
  union all
  select c.task_id, c.completed_at, c.state::text, nullif(c.attempt, 0),
         case c.state when 'canceled' then c.reason when 'failed' then
           (select r.error_message from queues.error r
             where r.task_id = c.task_id and r.attempt = c.attempt
             order by r.error_id desc limit 1) end
    from queues.task_completed c;

-- What happened to the newest tasks, newest first. p_tasks bounds the cost.
create or replace function worker.recent_events(p_tasks integer default 100)
returns setof worker.events
language plpgsql stable security definer
set search_path = pg_catalog, pg_temp
set enable_seqscan = off
set enable_bitmapscan = off
set enable_hashjoin = off
set enable_mergejoin = off
set plan_cache_mode = force_generic_plan
set jit = off
as $$
declare
  v_from bigint := (select min(s.task_id) from (
    select t.task_id from queues.task t order by t.task_id desc
     limit least(greatest(p_tasks, 1), 10000)) s);
begin
  return query
    select * from worker.events e where e.task_id >= v_from order by e.at desc, e.task_id desc;
end
$$;

comment on function worker.recent_events(integer) is
  'what happened to the newest tasks, newest first';
