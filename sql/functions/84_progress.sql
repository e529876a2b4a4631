-- How far a task is, and waiting for its end.
--
-- A handler in SQL runs in a transaction of which nobody sees anything until it
-- commits. What others do see at once is the session's application_name: it is
-- no row, costs no log, and is the server's to clean up. So the progress of such
-- a handler is there, for as long as it runs:
--
--     pgkin 42 37.5% 1767225600 until 1767225660000 resizing
--           task fraction  when     deadline, in ms     message, as far as 63 bytes reach
--
-- The deadline, of those that have one, is put there by worker.run_handler and
-- read by worker.stop_overdue.
--
-- A handler outside the database has no transaction open, and its reports are
-- plain rows of worker.progress_report.

create or replace function worker.progress(
  p_fraction double precision, p_message text default null)
returns void
language plpgsql
set search_path = pg_catalog, pg_temp
as $$
declare
  v_task_id bigint := worker.current_task_id();
begin
  if v_task_id is null then
    raise exception 'there is no task here whose progress this could be'
      using errcode = 'object_not_in_prerequisite_state',
            hint = 'call it inside a handler, or worker.report_progress with a lease';
  end if;
  perform set_config('application_name', left(format('pgkin %s %s %s%s%s', v_task_id,
    case when p_fraction is null then '-'
         else round(least(greatest(p_fraction, 0), 1)::numeric * 100, 1) || '%' end,
    extract(epoch from worker.now())::bigint,
    ' until ' || nullif(current_setting('worker.until', true), ''),
    ' ' || regexp_replace(regexp_replace(p_message, '\s+', ' ', 'g'), '[^ -~]', '?', 'g')), 63), true);
end
$$;

comment on function worker.progress(double precision, text) is
  'says how far the task of this handler is, 0 to 1; others see it at once';

-- For whoever runs handlers outside the database. False: the lease is not in
-- force any more, or not the task's.
create or replace function worker.report_progress(
  p_task_id bigint, p_lease_id bigint, p_fraction double precision, p_message text default null)
returns boolean
language plpgsql security definer
set search_path = pg_catalog, pg_temp
set enable_seqscan = off
set enable_bitmapscan = off
set plan_cache_mode = force_generic_plan
set jit = off
as $$
begin
  insert into worker.progress_report (task_id, reported_at, fraction, message)
    select p_task_id, worker.now(),
           case when p_fraction is not null then least(greatest(p_fraction, 0), 1) end,
           left(p_message, 1000)
      from queues.lease_open o join queues.lease l using (lease_id)
     where o.lease_id = p_lease_id and p_task_id = any(l.task_ids)
       and (select true from queues.task_completed c where c.task_id = p_task_id) is null
       and (select true from queues.attempt_end e
             where e.task_id = p_task_id and e.lease_id = p_lease_id) is null
    on conflict (task_id, reported_at)
      do update set fraction = excluded.fraction, message = excluded.message;
  if not found then
    return false;
  end if;
  if random() < 0.01 then
    perform worker.prune_progress();
  end if;
  return true;
end
$$;

comment on function worker.report_progress(bigint, bigint, double precision, text) is
  'says how far a task is that runs outside the database; false when the lease is over';

-- Reports that a newer one has replaced.
create or replace function worker.prune_progress() returns void
language plpgsql
as $$
begin
  delete from worker.progress_report p where p.ctid = any(array(
    select o.ctid from worker.progress_report o
     where exists (select from worker.progress_report n
                    where n.task_id = o.task_id and n.reported_at > o.reported_at)
     limit 1000 for update skip locked));
end
$$;

create or replace function worker.progress_of(
  p_task_id bigint, out fraction double precision, out message text,
  out reported_at timestamptz)
language plpgsql security definer
set search_path = pg_catalog, pg_temp
set enable_seqscan = off
set enable_bitmapscan = off
set plan_cache_mode = force_generic_plan
set jit = off
as $$
#variable_conflict use_column
declare
  v_lease queues.lease;
  v_name text[];
begin
  select p.fraction, p.message, p.reported_at into fraction, message, reported_at
    from worker.progress_report p where p.task_id = p_task_id
   order by p.reported_at desc limit 1;
  if exists (select from queues.task_completed c
              where c.task_id = p_task_id and c.state = 'completed') then
    fraction := 1;
    return;
  end if;
  select * into v_lease from queues.lease l where l.lease_id = queues.lease_of(p_task_id);
  if v_lease.backend_pid is not null then
    perform pg_stat_clear_snapshot();  -- else the same all through a transaction
    select regexp_match(a.application_name, '^pgkin (\d+) (?:([\d.]+)%|-) (\d+)(?: until \d+)?(?: (.*))?$')
      into v_name
      from pg_stat_get_activity(v_lease.backend_pid) a
     where a.backend_start is null or a.backend_start = v_lease.backend_start;
    if v_name[1]::bigint = p_task_id then
      fraction := v_name[2]::numeric / 100;
      reported_at := to_timestamp(v_name[3]::bigint);
      message := v_name[4];
    end if;
  end if;
end
$$;

comment on function worker.progress_of(bigint) is
  'how far a task is, as its handler said last; nulls when it said nothing';

-- Is this the number of the current transaction or of a part of it? Of a row
-- that is visible: then a number that is still in progress is our own.
create or replace function queues.is_own_xid(p_xid xid) returns boolean
language plpgsql
as $$
declare
  v_top bigint := pg_current_xact_id_if_assigned()::text::bigint;
  v_xid bigint := (v_top & ~4294967295) | p_xid::text::bigint;
begin
  if v_xid < v_top - 2147483648 then
    v_xid := v_xid + 4294967296;
  end if;
  return coalesce(v_xid = v_top
                  or (v_xid > v_top and v_xid < v_top + 2147483648
                      and pg_xact_status(v_xid::text::xid8) = 'in progress'), false);
end
$$;

-- Waits by looking: each look is a statement with a snapshot of its own, holds
-- no lock, and can be canceled.
create or replace function worker.wait(p_task_id bigint, p_timeout interval default null)
returns text
language plpgsql security definer
set search_path = pg_catalog, pg_temp
set enable_seqscan = off
set enable_bitmapscan = off
set plan_cache_mode = force_generic_plan
set jit = off
as $$
declare
  v_until timestamptz := clock_timestamp() + p_timeout;
  v_pause double precision := 0.005;
  v_own boolean;
  v_state text;
begin
  if current_setting('transaction_isolation') <> 'read committed' then
    raise exception 'to wait for a task needs isolation level read committed, not %',
      current_setting('transaction_isolation')
      using errcode = 'invalid_transaction_state',
            hint = 'another one never sees that the task has ended';
  end if;
  select queues.is_own_xid(t.xmin) into v_own from queues.task t where t.task_id = p_task_id;
  if not found then
    raise exception 'there is no task %', p_task_id using errcode = 'no_data_found';
  elsif v_own and not exists (select from queues.task_completed c where c.task_id = p_task_id)
        or exists (select from queues.pending_key k where k.task_id = p_task_id
                      and (queues.is_own_xid(k.xmin)
                           or k.xmax::text = (pg_current_xact_id_if_assigned()::text::bigint
                                              & 4294967295)::text)) then
    raise exception 'task % was enqueued in this transaction and cannot run before it commits', p_task_id
      using errcode = 'object_not_in_prerequisite_state', hint = 'commit, then wait';
  elsif exists (
      with recursive up as (
        select worker.current_task_id() as id
        union
        select t.parent_id from up join queues.task t on t.task_id = up.id)
      select from up where up.id = p_task_id) then
    raise exception 'task % cannot end before this handler does', p_task_id
      using errcode = 'object_not_in_prerequisite_state',
            hint = 'a handler cannot wait for its own task nor for its parent';
  end if;
  loop
    select c.state::text into v_state from queues.task_completed c where c.task_id = p_task_id;
    if found then
      return v_state;
    end if;
    if clock_timestamp() >= v_until then
      return null;
    end if;
    perform pg_sleep(least(v_pause, extract(epoch from v_until - clock_timestamp())));
    v_pause := least(v_pause * 1.5, 0.25);
    if not exists (select from queues.task t where t.task_id = p_task_id) then
      raise exception 'task % was removed', p_task_id using errcode = 'no_data_found';
    end if;
  end loop;
end
$$;

comment on function worker.wait(bigint, interval) is
  'waits until a task has ended: completed, failed or canceled; null when the time is over';
