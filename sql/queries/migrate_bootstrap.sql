-- What the migration runner itself needs: the schema and its records. It is
-- run once, when they are not there. A schema of that name that somebody else
-- made is an error: pgkin does not move into it.

create schema worker;

create table worker.schema_migration (
  version int primary key,
  name text not null,
  checksum text not null,
  applied_at timestamptz not null default now(),
  applied_by text not null
);

comment on table worker.schema_migration is
  'migrations that were applied; applied_by is the version of pgkin';

create table worker.schema_function (
  name text primary key,
  checksum text not null,
  applied_at timestamptz not null default now()
);

comment on table worker.schema_function is
  'files of functions and what they were when last applied';
