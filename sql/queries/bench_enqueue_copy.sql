copy queues.staging (task_type, payload) from stdin
