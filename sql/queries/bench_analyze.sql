analyze queues.task, queues.ready
