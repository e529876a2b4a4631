insert into queues.staging (task_type, payload)
select 'bench_limit_' || 1 + (i - 1) % c.n, payload
from unnest($1::jsonb[]) with ordinality p(payload, i)
cross join (select count(*) as n from worker.command_registry
             where queue = 'bench' and command like 'bench\_limit\_%') c
order by i
