-- $1 task id. Its ancestors, itself, and of the tree below the first of them what
-- is found first, $2 tasks at most; `more` says that this was not all.
with recursive up as (
  select t.task_id, t.parent_id, 0 as height from queues.task t where t.task_id = $1::bigint
  union all
  select t.task_id, t.parent_id, u.height + 1 from up u
    join queues.task t on t.task_id = u.parent_id),
down as (
  select u.task_id, array[u.task_id] as path from up u
   where u.height = (select max(height) from up)
  union all
  select t.task_id, d.path || t.task_id from down d
    join queues.task t on t.parent_id = d.task_id),
kin as materialized (
  select task_id, path from down limit $2::integer + 1),
own as (
  select u.task_id,
         (select array_agg(a.task_id order by a.height desc) from up a
           where a.height >= u.height) as path
    from up u),
tree as (
  select task_id, path from (select * from kin limit $2::integer) k
  union
  select task_id, path from own)
select s.id, s.depth, s.command, s.state, s.here, s.error,
       (select count(*) > $2::integer from kin) as more, row_to_json(s) as json
  from (select t.id, cardinality(k.path) - 1 as depth, t.parent_id, t.command, t.state,
               t.id = $1::bigint as here, split_part(t.error, e'\n', 1) as error, k.path
          from worker.tasks t join tree k on k.task_id = t.id
         where t.id = any(array(select task_id from tree))) s
 order by s.path
