-- The baseline's hot path: completes the jobs of the last batch and claims the
-- next, in one round trip and one commit as well.
with done as (
  update pgkin_bench.job
     set state = 'completed', completed_at = now()
   where id = any($1::bigint[]) and state = 'running')
update pgkin_bench.job
   set state = 'running', attempt = attempt + 1, locked_at = now(), locked_by = $3::integer
 where id = any(array(
   select j.id from pgkin_bench.job j
    where j.state = 'ready' and j.run_at <= now()
    order by j.priority, j.run_at, j.id
    limit $2::integer for update skip locked))
returning id, attempt, command, payload
