delete from worker.command_registry where queue = 'bench' and command ~ '^bench_(noop|limit_[0-9]+)$';
delete from worker.queue_registry where queue = 'bench';
drop schema pgkin_bench cascade;
