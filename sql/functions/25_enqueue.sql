-- Producing: what is asked becomes a row of queues.task and, in bundles, of
-- queues.ready (due) or queues.timer (later).

-- The one way into ready and timer: new tasks, retries, recovered and moved
-- ones. All of p_ids are alike. Internal.
create or replace function queues.put_ready(
  p_queue_id integer, p_lane integer, p_priority bigint, p_run_at timestamptz,
  p_now timestamptz, p_ids bigint[], p_parent_id bigint default null,
  p_attempts smallint default 0, p_failures smallint default 0, p_crashes smallint default 0,
  p_keyed boolean default false, p_solo boolean default false)
returns void
language plpgsql
as $$
declare
  v_bundle integer := case when p_solo or p_keyed then 1 else 100 end;
  v_lane integer := p_lane;
  v_generation integer;
begin
  if v_lane < 4 and pg_sequence_last_value('queues.order_used') is not null then
    v_lane := queues.order_lane(p_ids[1], p_lane);
  end if;
  if p_run_at > p_now then
    insert into queues.timer (queue_id, run_at, first_id, lane, priority, parent_id,
                              attempts, failures, crashes, keyed, solo, task_ids)
      select p_queue_id, p_run_at, p_ids[i + 1], v_lane, p_priority, p_parent_id,
             p_attempts, p_failures, p_crashes, p_keyed, p_solo, p_ids[i + 1:i + v_bundle]
        from generate_series(0, cardinality(p_ids) - 1, v_bundle) i;
  else
    v_generation := queues.join_generation(p_queue_id);
    insert into queues.ready (queue_id, lane, generation, priority, run_at, first_id,
                              parent_id, attempts, failures, crashes, keyed, solo, task_ids)
      select p_queue_id, v_lane, v_generation, p_priority, p_run_at, p_ids[i + 1],
             p_parent_id, p_attempts, p_failures, p_crashes, p_keyed, p_solo,
             p_ids[i + 1:i + v_bundle]
        from generate_series(0, cardinality(p_ids) - 1, v_bundle) i;
  end if;
end
$$;

-- Tells a sleeping worker; nobody else (see worker.publish_loop). NOTIFY takes a lock over the whole
-- database at commit, and a full notification queue would make the enqueuer
-- fail, so none is sent when nobody would act on it.
create or replace function queues.wake(p_queue_id integer) returns void
language plpgsql
as $$
begin
  if pg_sequence_last_value(('queues.q' || p_queue_id || '_wake')::regclass) in (1, 2)
     and pg_notification_queue_usage() < 0.5 then
    perform pg_notify('worker_tasks', q.queue)
       from worker.queue_registry q where q.queue_id = p_queue_id;
  end if;
end
$$;

create or replace function queues.refuse_payload(p_payload jsonb) returns void
language plpgsql
as $$
declare
  v_most integer := coalesce(nullif(current_setting('worker.max_payload_bytes', true), '')::integer,
                             1048576);
begin
  if p_payload is null or jsonb_typeof(p_payload) <> 'object' then
    raise exception 'a payload is a JSON object, not %',
      case when p_payload is null then 'null' else 'a JSON ' || jsonb_typeof(p_payload) end
      using errcode = 'invalid_parameter_value';
  elsif octet_length(p_payload::text) > v_most then
    raise exception 'the payload has % bytes as text, and % are allowed',
      octet_length(p_payload::text), v_most
      using errcode = 'program_limit_exceeded',
            hint = 'put the data into a table and its key into the payload';
  end if;
end
$$;

create or replace function queues.refuse_command(p_command text) returns void
language plpgsql
as $$
begin
  raise exception 'unknown command "%"', p_command
    using errcode = 'undefined_object',
          hint = 'register it with worker.register_command, or see worker.command_registry';
end
$$;

-- Adds one task: what an application waits for. The usual case in three plain
-- statements (PL/pgSQL sets up every statement and expression anew in each
-- transaction, which costs more than the rows); all else goes the way for many.
-- Internal.
create or replace function queues.add_task(
  p_command text, p_payload jsonb, p_priority bigint default null,
  p_scheduled_at timestamptz default null, p_parent_id bigint default null,
  p_parent_queue_id integer default null, p_group_key text default null,
  p_headers jsonb default null, p_context jsonb default null, p_options jsonb default null,
  p_order_key text default null, p_dedup_key text default null, p_task_id bigint default null)
returns bigint
language plpgsql
as $$
declare
  v_task_id bigint;
  v_queue_id integer;
  v_lane integer;
  v_priority bigint;
  v_run_at timestamptz;
  v_cell regclass;
  v_generation integer;
begin
  -- Due at once, of usual size, in the command's own queue, in a transaction
  -- that is not old, nobody to wake. The clock is worker.now() in place.
  select c.queue_id, coalesce(p_priority, c.priority), c.lane + (p_parent_id is not null)::integer,
         coalesce(p_task_id, nextval('queues.task_id_seq')),
         coalesce(p_scheduled_at,
                  nullif(current_setting('worker.fake_now', true), '')::timestamptz,
                  clock_timestamp()),
         c.generation_cell, pg_sequence_last_value(c.generation_cell)
    into v_queue_id, v_priority, v_lane, v_task_id, v_run_at, v_cell, v_generation
    from worker.command_registry c
   where c.command = p_command and p_order_key is null
     and (p_group_key is null or octet_length(p_group_key) <= 512)
     and jsonb_typeof(p_payload) = 'object'
     and octet_length(p_payload::text) <= least(4096,
           nullif(current_setting('worker.max_payload_bytes', true), '')::integer)
     and (p_scheduled_at is null or p_scheduled_at = now())
     and (p_parent_queue_id is null or p_parent_queue_id = c.queue_id)
     and clock_timestamp() - now() < interval '5 seconds'
     and pg_sequence_last_value(c.wake_cell) in (0, 3);
  -- The locks are those of queues.join_generation.
  if not found
     or not (pg_try_advisory_xact_lock_shared(
               8100568354755969024 | ((v_queue_id::bigint & 65535) << 32) | v_generation)
             and pg_sequence_last_value(v_cell) = v_generation) then
    return (queues.add_tasks(p_command, array[p_payload], p_priority, p_scheduled_at,
                             p_parent_id, p_parent_queue_id, p_group_key, p_headers, p_context,
                             p_options, p_order_key, p_dedup_key,
                             coalesce(p_task_id, v_task_id)))[1];
  end if;
  insert into queues.task (task_id, task_type, payload, enqueued_at, scheduled_at, priority,
                           queue_id, lane, parent_id, dedup_key, group_key, order_key,
                           headers, context, options)
    values (v_task_id, p_command, p_payload, v_run_at, v_run_at, v_priority, v_queue_id,
            v_lane, p_parent_id, p_dedup_key, p_group_key, p_order_key, p_headers, p_context,
            p_options);
  insert into queues.ready (queue_id, lane, generation, priority, run_at, first_id,
                            parent_id, keyed, task_ids)
    values (v_queue_id, v_lane, v_generation, v_priority, v_run_at, v_task_id,
            p_parent_id, p_dedup_key is not null, array[v_task_id]);
  return v_task_id;
end
$$;

-- Adds tasks that differ only in their payload, in order. Returns their ids in
-- the same order. p_task_id: the id of a single one, had beforehand. Internal.
create or replace function queues.add_tasks(
  p_command text, p_payloads jsonb[], p_priority bigint default null,
  p_scheduled_at timestamptz default null, p_parent_id bigint default null,
  p_parent_queue_id integer default null, p_group_key text default null,
  p_headers jsonb default null, p_context jsonb default null, p_options jsonb default null,
  p_order_key text default null, p_dedup_key text default null, p_task_id bigint default null)
returns bigint[]
language plpgsql
as $$
declare
  v_now timestamptz := worker.now();
  v_run_at timestamptz := coalesce(p_scheduled_at, v_now);
  v_queue_id integer;
  v_priority bigint;
  v_lane integer;
  v_home integer;
  v_ids bigint[];
  v_payload jsonb;
begin
  -- Whose keys matter never stands in a shared lane.
  select coalesce(p_parent_queue_id, c.queue_id), coalesce(p_priority, c.priority),
         case when p_order_key is null then c.lane else 2 * c.command_id end
           + (p_parent_id is not null)::integer, c.queue_id
    into v_queue_id, v_priority, v_lane, v_home
    from worker.command_registry c where c.command = p_command;
  if not found then
    perform queues.refuse_command(p_command);
  end if;
  if octet_length(p_group_key) > 512 or octet_length(p_order_key) > 512 then
    raise exception 'a group key or order key has at most 512 bytes, not %',
      greatest(octet_length(p_group_key), octet_length(p_order_key))
      using errcode = 'program_limit_exceeded';
  end if;
  if v_run_at > v_now and v_run_at = now() then
    v_now := v_run_at;
  end if;
  select p into v_payload
    from unnest(p_payloads) p
   where jsonb_typeof(p) is distinct from 'object' or octet_length(p::text) > least(4096,
           nullif(current_setting('worker.max_payload_bytes', true), '')::integer)
   order by jsonb_typeof(p) is not distinct from 'object', octet_length(p::text) desc
   limit 1;
  if found then
    perform queues.refuse_payload(v_payload);
  end if;
  with added as (
    insert into queues.task (task_id, task_type, payload, enqueued_at, scheduled_at, priority,
                             queue_id, lane, parent_id, dedup_key, group_key, order_key,
                             headers, context, options)
      select coalesce(p_task_id, nextval('queues.task_id_seq')), p_command, p, v_now, v_run_at, v_priority,
             v_queue_id, v_lane, p_parent_id, p_dedup_key, p_group_key, p_order_key,
             p_headers, p_context, p_options
        from unnest(p_payloads) p
    returning task_id)
  select coalesce(array_agg(task_id), '{}') into v_ids from added;
  if v_lane > 3 and (p_order_key is not null or v_queue_id <> v_home) then
    perform queues.note_gated(p_command, v_queue_id, p_order_key, v_ids);
  end if;
  perform queues.put_ready(v_queue_id, v_lane, v_priority, v_run_at, v_now, v_ids, p_parent_id,
                           p_keyed => p_dedup_key is not null);
  -- Workers ask every second what comes due; of what comes sooner they are told.
  if v_run_at <= v_now + interval '1 second' then
    perform queues.wake(v_queue_id);
  end if;
  return v_ids;
end
$$;

create or replace function queues.enqueue(
  _task_type text, _payload jsonb, _scheduled_at timestamptz default now())
returns void
language plpgsql security definer
set search_path = pg_catalog, pg_temp
as $$
declare
  v_id bigint;
begin
  v_id := queues.add_task(_task_type, _payload, null, _scheduled_at);
end
$$;

comment on function queues.enqueue(text, jsonb, timestamptz) is
  'adds one task; it runs once this transaction has committed';

create or replace function queues.enqueue_many(
  _task_type text, _payloads jsonb[], _scheduled_at timestamptz default now())
returns setof bigint
language plpgsql security definer
set search_path = pg_catalog, pg_temp
as $$
begin
  return query
    select unnest(queues.add_tasks(_task_type, _payloads, p_scheduled_at => _scheduled_at));
end
$$;

comment on function queues.enqueue_many(text, jsonb[], timestamptz) is
  'adds one task per payload in one go; returns their ids in input order';

-- COPY queues.staging (task_type, payload) FROM …
create or replace function queues.staging_copied() returns trigger
language plpgsql security definer
set search_path = pg_catalog, pg_temp
as $$
declare
  v_group record;
begin
  for v_group in
    select s.task_type, s.priority, s.scheduled_at, s.group_key, s.headers, s.chunk,
           array_agg(s.payload order by s.i) as payloads
      from (select n.*, row_number() over () as i,
                   (row_number() over () - 1) / 10000 as chunk
              from new_rows n) s
     group by s.task_type, s.priority, s.scheduled_at, s.group_key, s.headers, s.chunk
     order by s.chunk
  loop
    perform queues.add_tasks(v_group.task_type, v_group.payloads, v_group.priority,
                             v_group.scheduled_at, p_group_key => v_group.group_key,
                             p_headers => v_group.headers);
  end loop;
  return null;
end
$$;

create or replace trigger staging_copied
  after insert on queues.staging
  referencing new table as new_rows
  for each statement execute function queues.staging_copied();

-- A task never changes.
create or replace function queues.refuse_change() returns trigger
language plpgsql
set search_path = pg_catalog, pg_temp
as $$
begin
  if tg_op = 'DELETE' and exists (select from queues.retention_pass p
                                   where p.xid = pg_current_xact_id_if_assigned()) then
    return old;
  end if;
  raise exception 'queues.task is never changed: % refused', lower(tg_op)
    using errcode = 'insufficient_privilege',
          hint = case tg_op when 'DELETE'
                   then 'retention removes ended tasks; worker.cancel stops others'
                   else 'enqueue a new task' end;
end
$$;

create or replace trigger refuse_change
  before update or delete on queues.task
  for each row execute function queues.refuse_change();

create or replace function queues.refuse_truncate() returns trigger
language plpgsql
set search_path = pg_catalog, pg_temp
as $$
begin
  raise exception 'queues.task is never truncated'
    using errcode = 'insufficient_privilege';
end
$$;

create or replace trigger refuse_truncate
  before truncate on queues.task
  for each statement execute function queues.refuse_truncate();
