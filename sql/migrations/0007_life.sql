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
alter table worker.command_registry add column moved boolean not null default false;
create index command_registry_moved_idx on worker.command_registry (command) where moved;
create index command_registry_lane_idx on worker.command_registry (lane) where lane > 3;

-- These have other arguments or another result now.
drop function if exists queues.retry_at(worker.command_registry, integer, timestamptz),
  queues.end_canceled(bigint, bigint, integer, smallint, timestamptz, real, integer),
  queues.end_tasks(queues.lease, boolean, timestamptz, integer, bigint[], text[], text[],
                   jsonb[], real[]),
  queues.finish_tasks(bigint, timestamptz, integer, bigint[], text[], text[], jsonb[], real[]),
  queues.check_parents(), queues.cancel_children(bigint, timestamptz, text),
  queues.remove_pending(queues.task, boolean), queues.lock_pending(queues.task, boolean),
  queues.request_cancel(bigint, text, timestamptz);
