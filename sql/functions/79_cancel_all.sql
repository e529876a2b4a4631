-- worker.cancel_all: many pending tasks at once, a page at a time.
--
-- A walk over what is pending in a queue: first queues.timer, then queues.ready,
-- because that is the way tasks move; so what moves meanwhile is met later. The
-- rows of a page are locked without waiting, and deleted in the next statement,
-- as a claim does. What somebody holds is then canceled one by one, which waits:
-- so nothing is held here that such a one could be waiting for. Only one walks at
-- a time, keys are locked before the rows that they belong to, and whether a
-- parent may end is decided after the walk.

-- Cancels what fits on the next page of p_rows rows. p_from: where the walk is,
-- null at first and after the last page. p_last_id: tasks beyond it came later.
create or replace function queues.cancel_page(
  p_queue_id integer, p_command text, p_before timestamptz, p_last_id bigint, p_rows integer,
  inout p_from jsonb, out canceled bigint)
language plpgsql
as $$
declare
  c_reason constant text := 'canceled with others';
  c_least constant bigint := -9223372036854775808;
  v_now timestamptz := worker.now();
  v_table text := coalesce(p_from ->> 'at', 'timer');
  v_page record;
  v_keys bigint[];
  v_locked tid[];
  v_gone record;
  v_id bigint;
begin
  perform pg_advisory_xact_lock(8104790479406628864);
  if v_table = 'timer' then
    select array_agg(s.ctid) as places, count(*) as n,
           array_agg(s.first_id) filter (where s.keyed) as keyed,
           (array_agg(to_jsonb(s) - 'ctid' order by s.run_at desc, s.first_id desc))[1] as last
      into v_page
      from (select t.ctid, t.run_at, t.first_id, t.keyed from queues.timer t
             where t.queue_id = p_queue_id
               and (t.run_at, t.first_id) > (coalesce((p_from ->> 'run_at')::timestamptz, '-infinity'),
                                             coalesce((p_from ->> 'first_id')::bigint, c_least))
             order by t.run_at, t.first_id limit p_rows) s;
  else
    select array_agg(s.ctid) as places, count(*) as n,
           array_agg(s.first_id) filter (where s.keyed) as keyed,
           (array_agg(to_jsonb(s) - 'ctid' order by s.generation desc, s.lane desc,
                      s.priority desc, s.run_at desc, s.first_id desc))[1] as last
      into v_page
      from (select r.ctid, r.generation, r.lane, r.priority, r.run_at, r.first_id, r.keyed
              from queues.ready r
             where r.queue_id = p_queue_id
               and (r.generation, r.lane, r.priority, r.run_at, r.first_id) >
                   (coalesce((p_from ->> 'generation')::integer, 0),
                    coalesce((p_from ->> 'lane')::integer, 0),
                    coalesce((p_from ->> 'priority')::bigint, c_least),
                    coalesce((p_from ->> 'run_at')::timestamptz, '-infinity'),
                    coalesce((p_from ->> 'first_id')::bigint, c_least))
             order by r.generation, r.lane, r.priority, r.run_at, r.first_id limit p_rows) s;
  end if;
  p_from := case when v_page.n = p_rows then v_page.last || jsonb_build_object('at', v_table)
                 when v_table = 'timer' then '{"at": "ready"}' end;
  canceled := 0;
  if v_page.n = 0 then
    return;
  end if;

  v_keys := array(select k.task_id from queues.pending_key k
                   where k.task_id = any(v_page.keyed) for update skip locked);
  execute format('
    select array_agg(l.ctid)
      from (select r.ctid from queues.%I r
             where r.ctid = any($1) and (not r.keyed or r.first_id = any($2))
               for update skip locked) l', v_table)
    into v_locked using v_page.places, v_keys;
  execute format('
    with judged as materialized (
      select r.ctid as place, r.attempts, r.parent_id, u.id, u.i, r.ctid = any($2) as ours,
             u.id <= $4 and (
               select ($3 is null or t.task_type = $3) and ($5 is null or t.enqueued_at < $5)
                 from queues.task t where t.task_id = u.id) as hit
        from queues.%1$I r cross join lateral unnest(r.task_ids) with ordinality u(id, i)
       where r.ctid = any($1)),
    rest as (
      select j.place, array_agg(j.id order by j.i) filter (where not j.hit) as ids
        from judged j where j.ours group by j.place having bool_or(j.hit)),
    cut as (
      update queues.%1$I r set task_ids = s.ids, first_id = s.ids[1]
        from rest s where r.ctid = s.place and s.ids is not null),
    gone as (
      delete from queues.%1$I r using rest s where r.ctid = s.place and s.ids is null)
    select array_agg(j.id) filter (where j.ours) as ids,
           array_agg(j.attempts) filter (where j.ours) as attempts,
           array_agg(distinct j.parent_id) filter (where j.ours and j.parent_id is not null)
             as parent_ids,
           array_agg(j.id) filter (where not j.ours) as held
      from judged j where j.hit', v_table)
    into v_gone using v_page.places, coalesce(v_locked, '{}'), p_command, p_last_id, p_before;

  if v_gone.ids is not null then
    insert into queues.task_completed (task_id, completed_at, queue_id, state, attempt, reason)
      select u.id, v_now, p_queue_id, 'canceled', u.attempts, c_reason
        from unnest(v_gone.ids, v_gone.attempts) u(id, attempts);
    canceled := cardinality(v_gone.ids);
    perform queues.drop_keys(v_gone.ids);
    insert into queues.gate_check (gate)
      select distinct t.task_type || '/' || t.group_key from queues.task t
       where t.task_id = any(v_gone.ids) and t.group_key is not null and t.lane > 3;
    if queues.may_have_children((select min(i) from unnest(v_gone.ids) i)) then
      for v_id in
        select u.id from unnest(v_gone.ids) u(id)
         where exists (select from queues.task c where c.parent_id = u.id)
      loop
        canceled := canceled
          + queues.cancel_children(v_id, v_now, 'the parent task was canceled');
      end loop;
    end if;
    perform queues.note_ended(v_gone.ids);
    perform queues.count_ends(p_queue_id, v_now, 0, p_canceled => cardinality(v_gone.ids));
    insert into queues.parent_check (parent_id) select unnest(v_gone.parent_ids);
  end if;
  for v_id in select unnest(v_gone.held) loop
    canceled := canceled + (
      select queues.cancel_task(t, c_reason, v_now, false)::integer
        from queues.task t where t.task_id = v_id);
  end loop;
end
$$;

-- One page over all queues, or one. p_from as above, with the queue in it. For
-- worker.cancel_all and worker.cancel_all_in_pages.
create or replace function worker.cancel_page(
  p_queue text, p_command text, p_before timestamptz, p_last_id bigint, p_rows integer,
  inout p_from jsonb, out canceled bigint)
language plpgsql security definer
set search_path = pg_catalog, pg_temp
set enable_seqscan = off
set jit = off
set enable_bitmapscan = off
set plan_cache_mode = force_generic_plan
as $$
declare
  v_queue_id integer;
  v_page record;
begin
  if p_queue is not null
     and not exists (select from worker.queue_registry q where q.queue = p_queue) then
    raise exception 'unknown queue "%"', p_queue using errcode = 'undefined_object';
  end if;
  select min(q.queue_id) into v_queue_id from worker.queue_registry q
   where (p_queue is null or q.queue = p_queue)
     and q.queue_id >= coalesce((p_from ->> 'queue_id')::integer, 0);
  v_page := queues.cancel_page(v_queue_id, p_command, p_before, p_last_id, p_rows,
                               p_from - 'queue_id');
  canceled := v_page.canceled;
  p_from := v_page.p_from || jsonb_build_object('queue_id', v_queue_id);
  if p_from is null and p_queue is null then
    select jsonb_build_object('at', 'timer', 'queue_id', min(q.queue_id)) into p_from
      from worker.queue_registry q where q.queue_id > v_queue_id having min(q.queue_id) is not null;
  end if;
end
$$;

-- The newest task there is: what is enqueued from now on comes after it.
create or replace function worker.last_task_id() returns bigint
language plpgsql security definer
set search_path = pg_catalog, pg_temp
as $$
begin
  return coalesce(pg_sequence_last_value('queues.task_id_seq'), 0);
end
$$;

create or replace function worker.cancel_all(
  p_queue text default null, p_command text default null, p_before timestamptz default null)
returns bigint
language plpgsql
set search_path = pg_catalog, pg_temp
as $$
declare
  v_last_id bigint := worker.last_task_id();
  v_page record;
  v_canceled bigint := 0;
  v_from jsonb;
begin
  loop
    v_page := worker.cancel_page(p_queue, p_command, p_before, v_last_id, 100, v_from);
    v_canceled := v_canceled + v_page.canceled;
    v_from := v_page.p_from;
    exit when v_from is null;
  end loop;
  perform worker.check_parents();
  return v_canceled;
end
$$;

comment on function worker.cancel_all is
  'cancels pending and retrying tasks that were enqueued before the call; returns how many';

-- The same with a commit after each page, for when there are so many that one
-- transaction would last too long. Plain, because only such may commit.
create or replace procedure worker.cancel_all_in_pages(
  p_queue text default null, p_command text default null, p_before timestamptz default null,
  inout p_canceled bigint default 0)
language plpgsql
as $$
declare
  v_last_id bigint := worker.last_task_id();
  v_page record;
  v_from jsonb;
begin
  p_canceled := 0;
  loop
    v_page := worker.cancel_page(p_queue, p_command, p_before, v_last_id, 100, v_from);
    p_canceled := p_canceled + v_page.canceled;
    v_from := v_page.p_from;
    commit;
    perform worker.check_parents();
    commit;
    exit when v_from is null;
  end loop;
end
$$;

comment on procedure worker.cancel_all_in_pages is
  'worker.cancel_all with a commit after each page of up to 100 bundles';
