-- The life of a task beyond the happy path: put off, given up, ended and begun
-- again.

alter table queues.attempt_end
  drop constraint attempt_end_outcome_check,
  add constraint attempt_end_outcome_check check
    (outcome in ('failed', 'lost', 'released', 'waiting', 'snoozed', 'canceled')),
  add column reason text;    -- why it was put off

-- How a task had ended before worker.retry put it back.
create table queues.past_end (
  past_end_id bigint generated always as identity primary key,
  task_id bigint not null,
  ended_at timestamptz not null,
  state queues.task_state not null,
  lease_id bigint,
  attempt smallint not null,
  duration_ms real,
  worker_pid integer,
  reason text,
  retried_at timestamptz not null,
  -- Its children up to this id belong to what had ended.
  last_task_id bigint not null
);
create index past_end_task_idx on queues.past_end (task_id);

create index command_registry_on_complete_idx on worker.command_registry (command)
  where on_complete is not null;

-- Tasks of this command may stand in a line that it has left: a hand-out looks.
