-- The durable queue. Facts are only ever added; the one thing that is deleted
-- on the hot path is a narrow row of `ready`, by the claim that takes it.
-- No foreign keys here: the functions keep these tables consistent, and a
-- foreign key would cost a lock and a probe per row.

create sequence queues.task_id_seq;

-- What was asked.
create table queues.task (
  task_id bigint primary key default nextval('queues.task_id_seq'),
  task_type text not null,
  payload jsonb not null,
  enqueued_at timestamptz not null,
  scheduled_at timestamptz not null,
  priority bigint not null,
  queue_id integer not null,
  -- Which of the queue's lines it was put in: see command_registry.lane.
  lane integer not null default 0,
  parent_id bigint,
  dedup_key text,
  group_key text,
  order_key text,
  headers jsonb,   -- traceparent and the like
  context jsonb,   -- handed to on_complete
  options jsonb    -- what this task has otherwise than its command
);
create index task_parent_idx on queues.task (parent_id, task_id) where parent_id is not null;

-- What can be claimed: a bundle of tasks that are alike in all that matters to
-- a claim. `generation` is the segment it was written into; see
-- queues.generation_ledger.
create table queues.ready (
  queue_id integer not null,
  lane integer not null,
  generation integer not null,
  priority bigint not null,
  run_at timestamptz not null,
  first_id bigint not null,            -- task_ids[1], to order by
  parent_id bigint,
  attempts smallint not null default 0,  -- hand-outs so far
  failures smallint not null default 0,  -- of these, ended by a failure
  crashes smallint not null default 0,   -- of these, lost with their worker
  keyed boolean not null default false,  -- has a row in queues.pending_key
  -- Was in a lease of several that was lost: leased alone from now on, so that
  -- the task that kills its worker is found and only it is charged.
  solo boolean not null default false,
  task_ids bigint[] not null
) with (autovacuum_vacuum_scale_factor = 0.0, autovacuum_vacuum_threshold = 5000,
        autovacuum_vacuum_insert_scale_factor = 0.2, autovacuum_analyze_threshold = 10000);
create index ready_claim_idx
  on queues.ready (queue_id, generation, lane, priority, run_at, first_id);
create index ready_parent_idx
  on queues.ready (parent_id, generation) where parent_id is not null;

-- What can be claimed later. Costs a claim one probe that finds nothing.
create table queues.timer (
  queue_id integer not null,
  run_at timestamptz not null,
  first_id bigint not null,
  lane integer not null,
  priority bigint not null,
  parent_id bigint,
  attempts smallint not null default 0,
  failures smallint not null default 0,
  crashes smallint not null default 0,
  keyed boolean not null default false,
  solo boolean not null default false,
  task_ids bigint[] not null
) with (autovacuum_vacuum_scale_factor = 0.0, autovacuum_vacuum_threshold = 5000);
create index timer_due_idx on queues.timer (queue_id, run_at, first_id);
create index timer_parent_idx on queues.timer (parent_id) where parent_id is not null;

-- Which generations of a queue hold anything: the newest version is the truth.
-- Never updated: whoever adds version n + 1 has won (the primary key decides),
-- and a leader with an old view loses. Which generation is current is the last
-- value of the sequence queues.qN_generation.
--   live   claims look here, and into everything after the newest of these
--   limbo  claims no longer look here, but a producer that began before the
--          generation was closed may still commit into it; sweeps find that
create table queues.generation_ledger (
  queue_id integer not null,
  version bigint not null,
  live integer[] not null,
  limbo integer[] not null,
  written_at timestamptz not null,
  primary key (queue_id, version)
);

-- How far a closed generation has been read: a claim starts here. Only a hint:
-- what comes to lie before it (a claim rolled back) is found by a sweep.
create table queues.cursor_mark (
  queue_id integer not null,
  lane integer not null,
  generation integer not null,
  mark_no bigint generated always as identity,
  priority bigint not null,
  run_at timestamptz not null,
  first_id bigint not null,
  primary key (queue_id, generation, lane, mark_no)
);

-- Who was handed what. Stays as history.
create sequence queues.lease_id_seq;
create table queues.lease (
  lease_id bigint primary key,
  worker_id bigint,              -- a registered worker, or
  backend_pid integer,           -- a session that runs SQL handlers, or
  backend_start timestamptz,     -- neither: then expires_at decides
  queue_id integer not null,
  leased_at timestamptz not null,
  expires_at timestamptz,
  task_ids bigint[] not null,
  from_id bigint not null,       -- none of them is below,
  to_id bigint not null,         -- or above
  -- Parallel to task_ids; null when all of them are at their first hand-out.
  attempts smallint[],
  failures smallint[],
  crashes smallint[],
  parent_ids bigint[]            -- whose children these are; null when none
);

-- Compressing the ids of a batch costs more than writing them.
alter table queues.lease alter column task_ids set storage external;

-- The leases in force: the fence. Finishing takes a key-share lock on the row,
-- recovery deletes it, so a late finish finds nothing to lock.
create table queues.lease_open (
  lease_id bigint primary key,
  queue_id integer not null,
  worker_id bigint,
  backend_pid integer,
  expires_at timestamptz,
  task_id bigint,                          -- of a lease of one task
  top boolean not null default false,      -- holds a place of top_concurrency
  partial boolean not null default false   -- some of its tasks have ended
) with (autovacuum_vacuum_scale_factor = 0.0, autovacuum_vacuum_threshold = 2000, fillfactor = 70);
create index lease_open_expires_idx on queues.lease_open (queue_id, expires_at)
  where expires_at is not null;
create index lease_open_task_idx on queues.lease_open (task_id) where task_id is not null;
create index lease_open_worker_idx on queues.lease_open (worker_id) where worker_id is not null;
create index lease_open_session_idx on queues.lease_open (backend_pid)
  where backend_pid is not null;
create index lease_open_top_idx on queues.lease_open (queue_id, lease_id) where top;

-- A hand-out that ended without ending its task.
create table queues.attempt_end (
  task_id bigint not null,
  lease_id bigint not null,
  attempt smallint not null,
  ended_at timestamptz not null,
  outcome text not null check (outcome in ('failed', 'lost', 'released', 'waiting')),
  primary key (task_id, lease_id)
);

-- Parents whose own work is done and whose children are not.
create table queues.waiting (
  task_id bigint primary key,
  queue_id integer not null,
  since timestamptz not null,
  lease_id bigint,
  worker_pid integer,
  duration_ms real,
  attempt smallint not null,
  top boolean not null,     -- keeps its place of top_concurrency
  result jsonb
);
create index waiting_queue_idx on queues.waiting (queue_id, task_id);
create index waiting_top_idx on queues.waiting (queue_id, lease_id) where top;

-- How the task ended. The primary key is the last fence.
create table queues.task_completed (
  task_id bigint primary key,
  completed_at timestamptz not null,
  lease_id bigint,
  queue_id integer not null,
  state queues.task_state not null check (state >= 'completed'),  -- or failed, or canceled
  duration_ms real,
  worker_pid integer,
  attempt smallint not null default 0,
  result jsonb,
  reason text        -- of a cancellation
) with (autovacuum_vacuum_insert_scale_factor = 0.1);
create index task_completed_failed_idx on queues.task_completed (queue_id, task_id)
  where state <> 'completed';

create table queues.error (
  error_id bigint generated always as identity primary key,
  task_id bigint,
  error_message text not null,
  created_at timestamptz not null,
  attempt smallint,
  context jsonb      -- sqlstate, detail, hint, where
);
create index error_task_idx on queues.error (task_id, error_id);

-- At most one pending task per command and key, and what was merged into it.
create table queues.pending_key (
  task_type text not null,
  dedup_key text not null,
  task_id bigint not null unique,
  payload jsonb,     -- merged; null while it is the task's own
  primary key (task_type, dedup_key)
);
create table queues.merged_payload (
  task_id bigint primary key,
  payload jsonb not null
);

-- COPY lands here; a statement trigger turns the rows into tasks. The rows
-- themselves are of no further use and nobody reads them: maintenance truncates.
create unlogged table queues.staging (
  task_type text not null,
  payload jsonb not null default '{}',
  priority bigint,
  scheduled_at timestamptz,
  group_key text,
  headers jsonb
);

-- Written by retention for the length of its own transaction: the pass that
-- lets it delete from queues.task.
create table queues.retention_pass (
  xid xid8 primary key
);
create sequence queues.retention_cursor minvalue 0 start 0;
create sequence queues.lease_cursor minvalue 0 start 0;
create sequence queues.lease_floor minvalue 0 start 0;
