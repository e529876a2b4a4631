-- The benchmark's own queue and command, and its schema for everything that is
-- not pgkin's: the tables of the baselines, and one for a holder to write to.

insert into worker.queue_registry (queue, description, top_concurrency)
values ('bench', 'pgkin bench', null)
on conflict (queue) do update set top_concurrency = null;

-- Of a kind that runs outside the database, in the line that such kinds share.
insert into worker.command_registry (command, queue, kind, url, description)
values ('bench_noop', 'bench', 'http', 'http://127.0.0.1/', 'pgkin bench')
on conflict (command) do nothing;

drop schema if exists pgkin_bench cascade;
create schema pgkin_bench;

-- A queue as one mutable row per job, done well: the claim reads a partial
-- index in the order of claiming, and jobs that nobody ends any more are found by
-- another.
create table pgkin_bench.job (
  id bigint generated always as identity primary key,
  command text not null,
  payload jsonb not null,
  priority bigint not null default 0,
  run_at timestamptz not null default now(),
  state text not null default 'ready',
  attempt smallint not null default 0,
  created_at timestamptz not null default now(),
  locked_at timestamptz,
  locked_by integer,
  completed_at timestamptz
);
create index job_ready_idx on pgkin_bench.job (priority, run_at, id) where state = 'ready';
create index job_running_idx on pgkin_bench.job (locked_at) where state = 'running';

-- What a bare INSERT of the same facts costs.
create table pgkin_bench.plain (
  id bigint generated always as identity primary key,
  command text not null,
  payload jsonb not null,
  priority bigint not null,
  run_at timestamptz not null,
  created_at timestamptz not null
);

create table pgkin_bench.held (at timestamptz not null);
