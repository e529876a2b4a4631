-- What can be run: queues and commands. Small tables that change rarely; the
-- hot tables refer to a queue by its number. Plain INSERT, UPDATE and DELETE
-- work: triggers (sql/functions/12_registry.sql) keep the rules.

create type queues.task_state as enum
  ('pending', 'processing', 'waiting', 'completed', 'failed', 'canceled');

create table worker.queue_registry (
  queue text primary key
    check (queue ~ '^[a-z_][a-z0-9_.-]{0,62}$'),
  description text,
  default_concurrency integer not null default 4 check (default_concurrency between 1 and 10000),
  -- How many top-level trees may be active at once over all workers. 1 makes
  -- the queue strictly sequential; null means no limit.
  top_concurrency integer default 1 check (top_concurrency between 1 and 1000000),
  -- How many tasks of this queue may run at once over all workers: 0 none, null
  -- any number.
  concurrency_limit integer check (concurrency_limit between 0 and 1000000),
  paused boolean not null default false,
  paused_until timestamptz,
  queue_id integer generated always as identity unique,
  created_at timestamptz not null default now()
);

create table worker.command_registry (
  command text primary key
    check (command ~ '^[A-Za-z_][A-Za-z0-9_.-]{0,62}$'),
  queue text not null default 'default'
    references worker.queue_registry on update cascade,
  -- That queue's number and cells, kept by a trigger: an enqueue reads one row.
  queue_id integer not null,
  -- The line that its top-level tasks wait in, always even; children in the one
  -- after it. 0: run by SQL, 2: run elsewhere, more: a line of this command's own.
  lane integer not null,
  -- Who serves this one can run it: 0 or 2; null: not everybody can.
  shared_lane integer,
  generation_cell regclass not null,
  wake_cell regclass not null,
  handler_procedure text,
  before_procedure text,
  after_procedure text,
  description text,
  -- How the handler is called, made from its name by a trigger: a statement
  -- with the payload as $1, or null when no SQL runs it.
  handler_call text,
  before_call text,
  after_call text,
  kind text not null default 'procedure'
    check (kind in ('procedure', 'db_function', 'http', 'exec', 'email', 'sms',
                    'file_delete', 'native')),
  priority bigint not null default 0,
  max_attempts integer not null default 1 check (max_attempts between 1 and 10000),
  backoff_initial interval not null default '1 second' check (backoff_initial >= '0'),
  backoff_base double precision not null default 2 check (backoff_base between 1 and 100),
  backoff_max interval not null default '1 hour' check (backoff_max >= '0'),
  timeout interval check (timeout > '0'),
  max_leases integer not null default 5 check (max_leases between 1 and 10000),
  group_commit integer not null default 1 check (group_commit between 1 and 1000),
  allow_nested boolean not null default false,
  on_complete text,
  -- Limits over all workers; null: none.
  concurrency_limit integer check (concurrency_limit between 0 and 1000000),
  group_concurrency_limit integer check (group_concurrency_limit between 1 and 1000000),
  rate_limit integer check (rate_limit between 1 and 1000000),
  group_rate_limit integer check (group_rate_limit between 1 and 1000000),
  rate_period interval not null default '1 second'
    check (rate_period between '10 milliseconds' and '31 days'),
  -- The hours in which it may start, in this time zone; over midnight when the
  -- end comes before the start.
  window_start time,
  window_end time,
  window_zone text,
  -- A failed task with an order key keeps those behind it waiting.
  order_blocks boolean not null default false,
  paused boolean not null default false,
  paused_until timestamptz,
  -- What kind http needs.
  url text,
  http_headers jsonb check (jsonb_typeof(http_headers) = 'object'),
  signing_secret text,           -- secret:NAME, of the worker's credentials
  allow_private text[],          -- networks (CIDR) it may call although they are private
  max_redirects integer not null default 0 check (max_redirects between 0 and 10),
  max_response_bytes integer not null default 1048576
    check (max_response_bytes between 0 and 104857600),
  -- What kind exec needs.
  program text,
  arguments text[],
  retain_completed interval not null default '7 days' check (retain_completed >= '0'),
  retain_failed interval not null default '30 days' check (retain_failed >= '0'),
  command_id integer generated always as identity (start with 8) unique,
  created_at timestamptz not null default now(),
  check ((window_start is null) = (window_end is null)),
  check (window_start <> window_end)
);
create index command_registry_after_idx on worker.command_registry (command)
  where after_procedure is not null;

-- Those who hand out leases to themselves and say every second that they live.
create table worker.worker (
  worker_id bigint generated always as identity primary key,
  name text not null,
  host text,
  pid integer,
  backend_pid integer,
  backend_start timestamptz,
  started_at timestamptz not null,
  stopped_at timestamptz,
  listening boolean      -- false: it polls; null: it has not said
);

-- Append-only, pruned from the old end: a row that is updated every second
-- would grow a chain of versions for as long as any snapshot is open.
create table worker.heartbeat (
  worker_id bigint not null,
  beat_at timestamptz not null,
  primary key (worker_id, beat_at)
);

-- Names this installation in the idempotency keys that other systems are given.
create table worker.installation (
  installation_id uuid primary key default gen_random_uuid()
);
insert into worker.installation default values;
