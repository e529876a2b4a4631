select queue_id from worker.queue_registry where queue = 'bench'
