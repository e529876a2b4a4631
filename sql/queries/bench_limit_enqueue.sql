select queues.enqueue(
  'bench_limit_' || 1 + ($1::jsonb -> 'n')::integer
                        % (select count(*) from worker.command_registry
                            where queue = 'bench' and command like 'bench\_limit\_%'),
  $1::jsonb)
