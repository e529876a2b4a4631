-- Dead letters: tasks that have failed for good, to look at, to put back, or to
-- throw away.

create or replace view worker.dead_letters as
  select c.task_id as id, t.task_type as command, q.queue,
         coalesce((select m.payload from queues.merged_payload m
                    where t.dedup_key is not null and m.task_id = t.task_id),
                  t.payload) as payload,
         t.parent_id, c.completed_at as failed_at, c.attempt as attempts,
         (select e.error_message from queues.error e
           where e.task_id = c.task_id and not coalesce(e.context ? 'hook', false)
           order by e.error_id desc limit 1) as error
    from queues.task_completed c
    join queues.task t on t.task_id = c.task_id
    left join worker.queue_registry q on q.queue_id = c.queue_id
   -- Said twice: the first is the condition of the index.
   where c.state <> 'completed' and c.state = 'failed';

-- Top-level tasks that have failed, oldest first. What failed below them goes
-- with them: it is theirs to do again. Null: all. With p_known only those that a
-- command of today can run.
create or replace function queues.failed_tasks(
  p_queue text, p_command text, p_before timestamptz, p_error_like text, p_limit integer,
  p_known boolean)
returns bigint[]
language plpgsql
as $$
begin
  if p_limit < 1 then
    raise exception 'a limit is at least 1, not %', p_limit
      using errcode = 'invalid_parameter_value';
  elsif p_queue is not null
        and not exists (select from worker.queue_registry q where q.queue = p_queue) then
    raise exception 'unknown queue "%"', p_queue using errcode = 'undefined_object';
  end if;
  return array(
    select d.id from worker.dead_letters d
     where d.parent_id is null
       and (p_queue is null or d.queue = p_queue)
       and (p_command is null or d.command = p_command)
       and (p_before is null or d.failed_at < p_before)
       and (p_error_like is null or d.error like p_error_like)
       and (not p_known or (d.queue is not null
                            and exists (select from worker.command_registry c
                                         where c.command = d.command)))
     order by d.id limit p_limit);
end
$$;

create or replace function worker.retry_failed(
  p_queue text default null, p_command text default null, p_before timestamptz default null,
  p_error_like text default null, p_limit integer default 1000,
  p_dry_run boolean default false)
returns bigint
language plpgsql security definer
set search_path = pg_catalog, pg_temp
as $$
declare
  v_ids bigint[] := queues.failed_tasks(p_queue, p_command, p_before, p_error_like, p_limit, true);
begin
  if p_dry_run then
    return cardinality(v_ids);
  end if;
  return (select count(*) from unnest(v_ids) u(id) where worker.retry(u.id));
end
$$;

comment on function worker.retry_failed is
  'puts back failed top-level tasks that fit, oldest first; returns how many';

-- Of failed trees those that can go: all of their tasks have ended.
create or replace function queues.ended_trees(p_roots bigint[]) returns bigint[]
language plpgsql
as $$
begin
  return array(
    select r.id from unnest(p_roots) r(id)
     where not exists (
       with recursive tree as (
         select r.id as task_id
         union all
         select t.task_id from tree p join queues.task t on t.parent_id = p.task_id)
       select from tree t
        where not exists (select from queues.task_completed c where c.task_id = t.task_id)));
end
$$;

create or replace function worker.discard_failed(
  p_queue text default null, p_command text default null, p_before timestamptz default null,
  p_error_like text default null, p_limit integer default 1000,
  p_dry_run boolean default false)
returns bigint
language plpgsql security definer
set search_path = pg_catalog, pg_temp
as $$
declare
  v_ids bigint[] := queues.failed_tasks(p_queue, p_command, p_before, p_error_like, p_limit, false);
begin
  if p_dry_run then
    return cardinality(queues.ended_trees(v_ids));
  end if;
  return (select r.trees from queues.remove_trees(v_ids) r);
end
$$;

comment on function worker.discard_failed is
  'removes failed top-level tasks that fit, and their trees; returns how many';

create or replace function worker.discard(p_task_id bigint) returns boolean
language plpgsql security definer
set search_path = pg_catalog, pg_temp
as $$
begin
  return exists (select from worker.dead_letters d
                  where d.id = p_task_id and d.parent_id is null)
     and (select r.trees from queues.remove_trees(array[p_task_id]) r) = 1;
end
$$;

comment on function worker.discard(bigint) is
  'removes a failed top-level task and its tree; false for any other';
