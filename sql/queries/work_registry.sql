-- Queues and commands as a worker needs them, in this order of columns.
select queue, queue_id, default_concurrency, top_concurrency, command, kind, handler, lane,
       timeout_ms, url, http_headers, signing_secret, to_jsonb(allow_private), max_redirects,
       max_response_bytes, program, to_jsonb(arguments), installation_id
from worker.work_registry()
