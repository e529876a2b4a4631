-- $1 commands, of which the first $2 may run $3 tasks at once each. Of a kind whose
-- tasks share a lane when they have no limit, as those of most commands do.
insert into worker.command_registry (command, queue, kind, program, description, concurrency_limit)
select 'bench_limit_' || g, 'bench', 'exec', '/bin/true', 'pgkin bench',
       case when g <= $2::integer then $3::integer end
from generate_series(1, $1::integer) g
