-- Limits that hold over all workers: slots, rates, keys.
--
-- What is in use is never counted in a row that changes: it is the rows of
-- queues.slot_held, each of which belongs to a lease and goes with it. A claim
-- counts them while it holds the lock on the slot group.

-- The commands whose tasks a claim must look at more closely, per queue that they
-- were ever put into. Append-only, read as a set; maintenance removes what is over.
create table queues.gated (
  queue_id integer not null,
  command_id integer not null,
  -- Since then its tasks stand in another lane; some may still be found in a shared
  -- one. Null: none can be.
  strays_since timestamptz,
  -- Since then it has neither a limit nor a task in a lane of its own.
  idle_since timestamptz,
  -- What the registry says of the command; may be out of date for a moment, so that
  -- whoever takes one of its tasks looks there.
  simple boolean not null,
  shared_lane integer
);
-- There is no limit but that of how many of the command run at once.
alter table worker.command_registry add column simple boolean not null;
create index gated_queue_idx on queues.gated (queue_id, command_id);

-- The slots of a command ('COMMAND') or a queue ('queue:QUEUE') in at most 50
-- groups. Locked by a claim that needs more than it has, updated only when a limit
-- changes.
create table queues.slot_group (
  task_key text not null,
  slot_group_number integer not null,
  capacity integer not null check (capacity >= 0),
  -- Of the first group: leases after this one were made under the limit as it is
  -- now. Older ones may be more than it allows.
  settled bigint not null default 0,
  primary key (task_key, slot_group_number)
) with (fillfactor = 50);

-- Who holds what, one row per key and lease. Keys without slot groups are those of
-- group keys ('COMMAND/GROUPKEY') and order keys ('COMMAND>ORDERKEY').
create table queues.slot_held (
  task_key text not null,
  lease_id bigint not null,
  task_ids bigint[] not null,    -- one slot each,
  slot_groups integer[],         -- of these groups
  since timestamptz not null
) with (autovacuum_vacuum_scale_factor = 0.0, autovacuum_vacuum_threshold = 2000, fillfactor = 80);
create index slot_held_key_idx on queues.slot_held (task_key, lease_id);
create index slot_held_lease_idx on queues.slot_held (lease_id);

-- When the next task of a rate may start. The newest row counts; read from that
-- end, so the dead ones behind it are in nobody's way.
create table queues.rate_tick (
  task_key text not null,
  next_at timestamptz not null
) with (autovacuum_vacuum_scale_factor = 0.0, autovacuum_vacuum_threshold = 2000);
create index rate_tick_key_idx on queues.rate_tick (task_key, next_at);

-- Unfinished tasks with an order key; the first of a key may run.
create table queues.ordered (
  task_type text not null,
  order_key text not null,
  task_id bigint not null unique,
  primary key (task_type, order_key, task_id)
);
-- Has a value once there was such a task.
create sequence queues.order_used;
-- The same of queues.gated: without any limit, claims need not look there.
create sequence queues.gated_used;

-- No lease below the floor holds any of the key; missing: 0. There for keys that are
-- used much, so that the dead rows of what was given back are not walked over.
-- Written under the lock on the key (queues.gate_key).
create table queues.gate_floor (
  task_key text primary key,
  floor bigint not null
) with (fillfactor = 50);

-- Keys that somebody gave back while another had the lock on them.
create table queues.gate_check (
  check_id bigint generated always as identity primary key,
  gate text not null
);
-- Claims look for them from here on, maintenance everywhere.
create sequence queues.gate_check_floor minvalue 0 start 0;

-- Followers of a key that is in use wait in `timer`, at a time that never comes.
alter table queues.timer add column gate text;
create index timer_gate_idx on queues.timer (gate, priority, first_id) where gate is not null;
-- How far maintenance has looked through them.
create sequence queues.gate_cursor minvalue 0 start 0;

-- Holds slots.
alter table queues.lease_open add column limited boolean not null default false;

-- Slots that a claim may fill: of a command (pair: its two lanes) or of the whole
-- queue (pair -1). Those of groups it has locked, or (lease_id) those of a lease that
-- has ended in the same transaction. slot_groups has the group of each.
create type queues.free_slots as (
  task_key text,
  slot_groups integer[],
  pair integer,
  lease_id bigint
);

-- The slots of a lease all of whose tasks have one limit in common. With a lease_id they
-- are those of a lease that has ended, which their row in queues.slot_held still names:
-- a worker that is busy goes on with its slots without writing. Counts while the lease
-- is not partial.
alter table queues.lease_open add column kept queues.free_slots;

-- Lanes of commands' own, for a claim that names none.
create index command_registry_lane_idx on worker.command_registry (lane) where lane > 3;
