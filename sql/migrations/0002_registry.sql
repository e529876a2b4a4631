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
  retain_completed interval not null default '7 days' check (retain_completed >= '0'),
  retain_failed interval not null default '30 days' check (retain_failed >= '0'),
  created_at timestamptz not null default now()
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
  stopped_at timestamptz
);

-- Append-only, pruned from the old end: a row that is updated every second
-- would grow a chain of versions for as long as any snapshot is open.
create table worker.heartbeat (
  worker_id bigint not null,
  beat_at timestamptz not null,
  primary key (worker_id, beat_at)
);
