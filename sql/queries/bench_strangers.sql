-- Does this database hold work that is not the benchmark's?
select exists (select from queues.task t where t.task_type !~ '^bench_(noop|limit_[0-9]+)$')
    or exists (select from worker.command_registry c
                where (c.queue = 'bench') <> (c.command ~ '^bench_(noop|limit_[0-9]+)$'))
