-- With them goes what the queue knows of their limits: without, it is as if there
-- never had been one.
delete from worker.command_registry where queue = 'bench' and command like 'bench\_limit\_%'
