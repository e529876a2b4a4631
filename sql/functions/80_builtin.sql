-- What every installation has: queue `default`, without a limit, and the
-- commands that supervisors enqueue.

insert into worker.queue_registry (queue, description, top_concurrency)
  values ('default', 'tasks of commands that name no other queue', null)
  on conflict do nothing;

insert into worker.command_registry (command, queue, kind, description)
  values ('db_function', 'default', 'db_function', 'runs the function that the payload names'),
         ('email', 'default', 'email', 'sends an e-mail'),
         ('sms', 'default', 'sms', 'sends a text message'),
         ('file_delete', 'default', 'file_delete', 'deletes a stored file')
  on conflict do nothing;
