-- Retention: ended tasks go after their time, whole trees at once, in bounded
-- batches. It walks the tasks in order of id, round and round; the cell
-- queues.retention_cursor says where it is, so that it never walks the dead
-- rows it has left behind.

-- Removes the trees below these tasks, less those of which some task has not
-- ended, or is being put back by worker.retry at this moment: the rows of the
-- ends are locked first, so that one that is retried is not removed and one that
-- is removed is not retried.
create or replace function queues.remove_trees(
  p_roots bigint[], out trees integer, out tasks integer)
language plpgsql
as $$
declare
  v_root_ids bigint[];
  v_ids bigint[];
  v_locked bigint[];
begin
  with recursive tree as (
    select r.id as root_id, r.id as task_id from unnest(p_roots) r(id)
    union all
    select p.root_id, t.task_id from tree p join queues.task t on t.parent_id = p.task_id)
  select array_agg(r.root_id), array_agg(r.task_id) into v_root_ids, v_ids from tree r;
  v_locked := array(select c.task_id from queues.task_completed c
                     where c.task_id = any(v_ids) order by c.task_id for update skip locked);
  with tree as (
    select * from unnest(v_root_ids, v_ids) r(root_id, task_id)),
  unfinished as (
    select distinct r.root_id from tree r
      left join unnest(v_locked) l(task_id) using (task_id) where l.task_id is null)
  select coalesce(array_agg(r.task_id), '{}'), count(distinct r.root_id)
    into v_ids, trees from tree r
   where not exists (select from unfinished u where u.root_id = r.root_id);
  tasks := cardinality(v_ids);
  if tasks > 0 then
    insert into queues.retention_pass (xid) values (pg_current_xact_id());
    delete from queues.task t where t.task_id = any(v_ids);
    delete from queues.retention_pass p where p.xid = pg_current_xact_id();
    delete from queues.task_completed c where c.task_id = any(v_ids);
    delete from queues.attempt_end e where e.task_id = any(v_ids);
    delete from queues.past_end e where e.task_id = any(v_ids);
    delete from queues.error e where e.task_id = any(v_ids);
    delete from queues.merged_payload m where m.task_id = any(v_ids);
    delete from queues.after_due d where d.task_id = any(v_ids);
    delete from worker.progress_report p where p.task_id = any(v_ids);
    delete from worker.channel_outcome o where o.task_id = any(v_ids);
    perform queues.end_ordered(v_ids, true);
  end if;
end
$$;

create or replace function queues.remove_expired(p_most integer default 1000) returns integer
language plpgsql security definer
set search_path = pg_catalog, pg_temp
set enable_seqscan = off
set enable_bitmapscan = off
set plan_cache_mode = force_generic_plan
set jit = off
as $$
declare
  v_now timestamptz := worker.now();
  v_from bigint := coalesce(pg_sequence_last_value('queues.retention_cursor'), 0);
  v_last bigint;
  v_seen integer;
  v_roots bigint[];
  v_removed integer := 0;
begin
  if p_most is null or p_most < 1 or p_most > 100000 then
    raise exception 'a batch is 1 to 100000 tasks, not %', p_most
      using errcode = 'invalid_parameter_value';
  end if;
  if not pg_try_advisory_xact_lock(8101694254662811648) then
    return 0;
  end if;
  with page as (
    select t.task_id, t.task_type, t.parent_id, t.enqueued_at
      from queues.task t where t.task_id > v_from order by t.task_id limit p_most),
  expired as (
    select p.task_id from page p
      join queues.task_completed c using (task_id)
      left join worker.command_registry r on r.command = p.task_type
     where p.parent_id is null
       and c.completed_at < v_now - case when c.state = 'completed'
             then coalesce(r.retain_completed, interval '7 days')
             else coalesce(r.retain_failed, interval '30 days') end)
  select max(p.task_id), count(*), (select array_agg(e.task_id) from expired e)
    into v_last, v_seen, v_roots from page p;

  if v_roots is not null then
    select r.tasks into v_removed from queues.remove_trees(v_roots) r;
  end if;
  perform queues.remove_old_leases(v_now, p_most);
  -- At the end of the table the walk begins again.
  perform setval('queues.retention_cursor', case when v_seen < p_most then 0 else v_last end);
  return v_removed;
end
$$;

comment on function queues.remove_expired(integer) is
  'removes ended tasks whose time is over, looking at one batch per call';

-- A lease is history of tasks; it goes when no command keeps any that long.
create or replace function queues.remove_old_leases(p_now timestamptz, p_most integer)
returns integer
language plpgsql
as $$
declare
  v_from bigint := coalesce(pg_sequence_last_value('queues.lease_cursor'), 0);
  v_ids bigint[];
begin
  v_ids := array(
    select s.lease_id from (
      select l.lease_id, l.leased_at from queues.lease l
       where l.lease_id > v_from
       order by l.lease_id limit p_most) s
     where s.leased_at < p_now - (select max(greatest(c.retain_completed, c.retain_failed))
                                    from worker.command_registry c)
       and not exists (select from queues.lease_open o where o.lease_id = s.lease_id));
  delete from queues.lease l where l.lease_id = any(v_ids);
  if cardinality(v_ids) > 0 then
    -- Not beyond one that is still open: it is to be found when it has ended.
    perform setval('queues.lease_cursor', least(v_ids[cardinality(v_ids)],
      (select min(o.lease_id) - 1 from queues.lease_open o where o.lease_id > v_from)));
  end if;
  return cardinality(v_ids);
end
$$;
