-- What a worker process asks for that is not a task.

-- Queues and commands as a worker needs them: one row per command, and one
-- without a command for a queue that has none. installation_id goes into
-- idempotency keys.
create or replace function worker.work_registry()
returns table (queue text, queue_id integer, default_concurrency integer,
               top_concurrency integer, command text, kind text, lane integer,
               timeout_ms bigint, url text, http_headers jsonb, signing_secret text,
               allow_private text[], max_redirects integer, max_response_bytes integer,
               program text, arguments text[], installation_id uuid)
language plpgsql stable security definer
set search_path = pg_catalog, pg_temp
as $$
#variable_conflict use_column
begin
  return query
    select q.queue, q.queue_id, q.default_concurrency, q.top_concurrency, c.command, c.kind,
           c.lane, (extract(epoch from c.timeout) * 1000)::bigint, c.url, c.http_headers,
           c.signing_secret, c.allow_private, c.max_redirects, c.max_response_bytes,
           c.program, c.arguments, i.installation_id
      from worker.queue_registry q
      left join worker.command_registry c on c.queue = q.queue
     cross join worker.installation i
     order by q.queue, c.command;
end
$$;

comment on function worker.work_registry() is
  'queues and commands as a worker process needs them';
