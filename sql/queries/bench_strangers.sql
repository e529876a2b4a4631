-- Does this database hold work that is not the benchmark's?
select exists (select from queues.task t where t.task_type <> 'bench_noop')
    or exists (select from worker.command_registry c
                where c.queue = 'bench' and c.command <> 'bench_noop')
    or exists (select from worker.command_registry c
                where c.command = 'bench_noop' and c.queue <> 'bench')
