-- The schemas. `worker` itself is made by the migration runner, which keeps
-- its records there.

create schema queues;
create schema internal;

comment on schema worker is 'pgkin: execution of background tasks';
comment on schema queues is 'pgkin: the durable queue';
comment on schema internal is 'pgkin: the runner of named functions';
