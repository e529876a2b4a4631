-- Execution in SQL: what is to be done after a task has ended.

-- Ended tasks whose command has an after hook that has not run yet.
create table queues.after_due (
  task_id bigint primary key,
  queue_id integer not null
);
create index after_due_queue_idx on queues.after_due (queue_id, task_id);

-- Parents that a transaction with an old snapshot could not decide about.
create table queues.parent_check (
  check_id bigint generated always as identity primary key,
  parent_id bigint not null
);

-- How often a net had to catch something. Append-only; a test can say that
-- there was nothing.
create table worker.rescue (
  rescue_id bigint generated always as identity primary key,
  kind text not null check (kind in ('abandoned', 'parent')),
  task_id bigint not null,
  rescued_at timestamptz not null
);

-- Running tasks that were asked to stop: never tried again.
create table queues.cancel_request (
  task_id bigint primary key,
  reason text,
  requested_at timestamptz not null
);
