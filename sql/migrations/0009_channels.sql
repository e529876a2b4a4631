-- Channels: what is known of a provider's answer while its handler is still due,
-- and which functions a payload may name.

-- Append-only; the newest row of a task is the truth. Written only when a
-- success or error handler fails: otherwise the fact and the end of the task are
-- one commit, and nothing is left to remember.
--   succeeded, failed  the provider was called; its handler is due
--   handler_failed     that handler was tried and failed
--   handled            it held
--   given_up           it failed too often
create table worker.channel_outcome (
  task_id bigint not null,
  outcome_id bigint generated always as identity,
  kind text not null
    check (kind in ('succeeded', 'failed', 'handler_failed', 'handled', 'given_up')),
  worker_payload jsonb,   -- of succeeded
  error text,             -- of failed and handler_failed
  recorded_at timestamptz not null,
  primary key (task_id, outcome_id)
);

-- Functions that a payload may name. Which of them can be run is still decided
-- by the rights of the role that runs them.
create table worker.allowed_function (
  function_name text primary key,   -- schema.name, quoted where it must be
  allowed_by text not null,
  allowed_at timestamptz not null
);

-- What the administrator decided for the whole installation. No row: off.
create table worker.policy (
  name text primary key check (name in ('require_allowed')),
  enabled boolean not null
);
