-- As autovacuum would have done by now.
vacuum (analyze) queues.task, queues.ready, queues.timer, queues.lease, queues.lease_open,
  queues.task_completed
