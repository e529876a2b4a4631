delete from worker.command_registry where command = 'bench_noop';
delete from worker.queue_registry where queue = 'bench';
drop schema pgkin_bench cascade;
