-- Schedules: what is to be enqueued again and again, and what was.

-- A cron expression, taken apart: the values of its fields in order.
create type worker.cron as (
  minutes integer[],
  hours integer[],
  days integer[],
  months integer[],
  weekdays integer[],      -- 0: Sunday
  either_day boolean,      -- day of month or day of week; else both must fit
  elapsed boolean          -- minute or hour is a wildcard: follows elapsed time
);

create table worker.schedule_registry (
  schedule_id bigint generated always as identity unique,
  name text primary key check (name <> '' and length(name) <= 200),
  -- Counts the changes of when it fires: each begins a new series of fires.
  revision integer not null default 1,
  cron text,
  fields worker.cron,
  every interval check (every >= '1 second'),
  anchor timestamptz not null,     -- from where intervals are counted
  time_zone text not null,
  command text not null references worker.command_registry on update cascade,
  payload jsonb not null check (jsonb_typeof(payload) = 'object'),
  priority bigint,
  missed text not null check (missed in ('skip', 'one', 'all')),
  missed_window interval not null check (missed_window >= '0'),
  overlap text not null check (overlap in ('allow', 'skip')),
  jitter interval not null check (jitter >= '0'),
  enabled boolean not null default true,
  created_at timestamptz not null,
  changed_at timestamptz not null,
  check ((cron is null) <> (every is null)),
  check ((cron is null) = (fields is null))
);
create index schedule_registry_command_idx on worker.schedule_registry (command);

-- When each enabled schedule fires next. Whoever makes that fire replaces the
-- row. Looked up from the time in the cell worker.schedule_floor on (ms), below
-- which there are only dead ones.
create table worker.schedule_due (
  schedule_id bigint primary key,
  due_at timestamptz not null
);
create index schedule_due_idx on worker.schedule_due (due_at);
create sequence worker.schedule_floor minvalue 0 start 0;

-- What came of each time. Only ever added to; the primary key lets a fire
-- happen once.
create table worker.schedule_fire (
  schedule_id bigint not null,
  revision integer not null,
  fire_at timestamptz not null,
  made_at timestamptz not null,
  outcome text not null check (outcome in ('fired', 'overlap', 'missed', 'failed')),
  task_id bigint,             -- of this fire
  last_task_id bigint,        -- of this fire or else of the one before it
  error text,
  primary key (schedule_id, revision, fire_at)
);

-- Progress of handlers outside the database, the newest row being the truth.
-- Handlers in SQL leave no rows: see sql/functions/84_progress.sql.
create table worker.progress_report (
  task_id bigint not null,
  reported_at timestamptz not null,
  fraction double precision,
  message text,
  primary key (task_id, reported_at)
);

-- How many tasks have ended, and how. Added once per lease that ends, never per
-- task; summed up by the minute soon after, and older days in one row of each
-- queue, at '-infinity'. Read from the time in the cell worker.stat_floor on (ms).
create table worker.stat_raw (
  recorded_at timestamptz not null,
  queue_id integer not null,
  succeeded bigint not null,
  failed bigint not null,
  canceled bigint not null,
  retries bigint not null,       -- attempts that failed and are made again
  recovered bigint not null      -- attempts lost with their worker
);
create index stat_raw_idx on worker.stat_raw (recorded_at);
create sequence worker.stat_floor minvalue 0 start 0;
create table worker.stat (
  queue_id integer not null,
  minute timestamptz not null,
  succeeded bigint not null,
  failed bigint not null,
  canceled bigint not null,
  retries bigint not null,
  recovered bigint not null,
  primary key (queue_id, minute)
);
