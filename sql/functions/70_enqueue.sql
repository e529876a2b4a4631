-- worker.enqueue and its kin: what applications call.

-- The task that a handler runs for, or null outside a handler.
create or replace function worker.current_task_id() returns bigint
language plpgsql stable
as $$
begin
  return nullif(pg_catalog.current_setting('worker.current_task', true), '')::bigint;
end
$$;

-- May p_parent_id get a child from here? Returns the parent. The handler of the
-- parent itself, or of one of its children, holds the parent open as it is. Any
-- other caller keeps it from ending until its own transaction has committed, by
-- a lock on the very row that the parent must pass next: where it waits, is
-- leased, or is ready.
create or replace function queues.parent_for_spawn(p_parent_id bigint) returns queues.task
language plpgsql
as $$
declare
  v_parent queues.task;
  v_current bigint := worker.current_task_id();
  v_held boolean;
begin
  select * into v_parent from queues.task t where t.task_id = p_parent_id;
  if not found then
    raise exception 'there is no task % to spawn under', p_parent_id
      using errcode = 'no_data_found';
  end if;
  v_held := v_current = p_parent_id
    or (v_current is not null
        and exists (select from queues.task t
                     where t.task_id = v_current and t.parent_id = p_parent_id));
  loop
    exit when exists (select from queues.task_completed c where c.task_id = p_parent_id);
    if exists (select from queues.cancel_request r where r.task_id = p_parent_id) then
      raise exception 'task % is being canceled: nothing can be spawned under it', p_parent_id
        using errcode = 'object_not_in_prerequisite_state';
    end if;
    if v_held then
      perform set_config('worker.spawned', 'on', true);
      return v_parent;
    end if;
    v_held := queues.hold_parent(v_parent);  -- and look again, now that it is held
  end loop;
  raise exception 'task % has ended: nothing can be spawned under it', p_parent_id
    using errcode = 'object_not_in_prerequisite_state';
end
$$;

-- Locks an unfinished task against ending. False: it has just moved on.
create or replace function queues.hold_parent(p_task queues.task) returns boolean
language plpgsql
set enable_seqscan = off
set jit = off
set enable_bitmapscan = off
set plan_cache_mode = force_generic_plan
as $$
declare
  v_lease_id bigint;
begin
  if exists (select from queues.waiting w where w.task_id = p_task.task_id) then
    perform pg_advisory_xact_lock_shared(queues.parent_key(p_task.task_id));
    perform set_config('worker.kin_locked', 'on', true);
    return exists (select from queues.waiting w where w.task_id = p_task.task_id);
  end if;
  v_lease_id := queues.lease_of(p_task.task_id);
  if v_lease_id is not null then
    -- An update, not a mere lock: it is noticed also by an end with an older snapshot.
    update queues.lease_open o set partial = o.partial where o.lease_id = v_lease_id;
    return found and queues.lease_of(p_task.task_id) is not distinct from v_lease_id;
  end if;
  return (queues.lock_pending(p_task, true)).kept_in is not null;
end
$$;

-- Children of children only where the command in the middle allows it.
create or replace function worker.enforce_no_grandchildren() returns trigger
language plpgsql
set search_path = pg_catalog, pg_temp
as $$
begin
  if exists (select from queues.task p join worker.command_registry c on c.command = p.task_type
              where p.task_id = new.parent_id and p.parent_id is not null
                and not c.allow_nested) then
    raise exception 'task % is a child and cannot have children', new.parent_id
      using errcode = 'check_violation',
            hint = 'spawn a sibling (p_parent_id => its parent), or set allow_nested for its command';
  end if;
  return new;
end
$$;

create or replace trigger enforce_no_grandchildren
  before insert on queues.task
  for each row when (new.parent_id is not null)
  execute function worker.enforce_no_grandchildren();

-- Two objects as one: arrays united, sorted and distinct; objects in turn;
-- anything else replaced.
create or replace function worker.unite(p_old jsonb, p_new jsonb) returns jsonb
language plpgsql immutable
set search_path = pg_catalog, pg_temp
as $$
begin
  return coalesce((
    select jsonb_object_agg(k.key, case
             when not p_new ? k.key then p_old -> k.key
             when not p_old ? k.key then p_new -> k.key
             when jsonb_typeof(p_old -> k.key) = 'array' and jsonb_typeof(p_new -> k.key) = 'array'
               then coalesce((select jsonb_agg(distinct s.e order by s.e)
                                from (select jsonb_array_elements(p_old -> k.key)
                                      union all select jsonb_array_elements(p_new -> k.key)) s(e)),
                             '[]')
             when jsonb_typeof(p_old -> k.key) = 'object' and jsonb_typeof(p_new -> k.key) = 'object'
               then worker.unite(p_old -> k.key, p_new -> k.key)
             else p_new -> k.key end)
      from (select jsonb_object_keys(p_old) union select jsonb_object_keys(p_new)) k(key)), '{}');
end
$$;

-- The call of a merge function that a caller names, with old and new as $1 and
-- $2. It is made where the caller's own rights are in force.
create or replace function worker.merge_call(p_merge text) returns text
language plpgsql stable
set search_path = pg_catalog, pg_temp
as $$
declare
  v_parts text[];
begin
  begin
    v_parts := parse_ident(p_merge);
  exception when invalid_parameter_value then
    v_parts := '{}';
  end;
  if cardinality(v_parts) <> 2 or v_parts[1] ~ '^pg_' or v_parts[1] = 'information_schema'
     or not exists (
       select from pg_proc p join pg_namespace n on n.oid = p.pronamespace
        where n.nspname = v_parts[1] and p.proname = v_parts[2] and p.prokind = 'f'
          and p.pronargs = 2 and p.proargtypes[0] = 'jsonb'::regtype
          and p.proargtypes[1] = 'jsonb'::regtype and p.prorettype = 'jsonb'::regtype
          and not p.proretset) then
    raise exception 'there is no merge "%"', p_merge
      using errcode = 'invalid_parameter_value',
            hint = 'keep, replace, union, debounce, or schema.function(old jsonb, new jsonb) returns jsonb';
  end if;
  return format('select %I.%I($1, $2)', v_parts[1], v_parts[2]);
end
$$;

-- The pending task of a key and its payload, held to the end of the transaction
-- for a merge; null when there is none.
--
-- Whoever holds the row of the key decides: a claim that has taken the task has
-- deleted it, so this waits for that claim and then finds nothing.
create or replace function worker.hold_pending(
  p_command text, p_key text, out task_id bigint, out payload jsonb)
language plpgsql security definer
set search_path = pg_catalog, pg_temp
as $$
#variable_conflict use_column
begin
  select k.task_id, k.payload into task_id, payload from queues.pending_key k
   where k.task_type = p_command and k.dedup_key = p_key for update;
  if task_id is not null and payload is null then
    select t.payload into payload from queues.task t where t.task_id = hold_pending.task_id;
  end if;
end
$$;

-- Gives the pending task of a key another payload. False: there is none.
create or replace function worker.replace_pending(p_command text, p_key text, p_payload jsonb)
returns boolean
language plpgsql security definer
set search_path = pg_catalog, pg_temp
as $$
begin
  perform queues.refuse_payload(p_payload);
  update queues.pending_key k set payload = p_payload
   where k.task_type = p_command and k.dedup_key = p_key;
  return found;
end
$$;

-- Merges into the pending task of this key, if there is one, in one of the
-- built-in ways. Returns its id, or null. Internal.
create or replace function queues.merge_pending(
  p_command text, p_key text, p_payload jsonb, p_merge text, p_scheduled_at timestamptz)
returns bigint
language plpgsql
as $$
declare
  v_pending record;
begin
  v_pending := worker.hold_pending(p_command, p_key);
  if v_pending.task_id is null then
    return null;
  end if;
  if p_merge <> 'keep' then
    perform worker.replace_pending(p_command, p_key, case when p_merge = 'union'
      then worker.unite(v_pending.payload, p_payload) else p_payload end);
  end if;
  if p_merge = 'debounce' then
    perform queues.reschedule(v_pending.task_id, p_scheduled_at);
  end if;
  return v_pending.task_id;
end
$$;

-- Moves a pending task that has a row of its own to another time. Whoever calls
-- holds its dedup key, so no claim can take it meanwhile.
create or replace function queues.reschedule(p_task_id bigint, p_run_at timestamptz) returns void
language plpgsql
as $$
declare
  v_now timestamptz := worker.now();
  v_task queues.task;
  v_place tid;
  v_row record;
begin
  select * into v_task from queues.task t where t.task_id = p_task_id;
  for i in 1..10 loop  -- maintenance may move the row meanwhile
    v_place := queues.find_ready(v_task, i > 1);
    delete from queues.ready r where r.ctid = v_place and r.first_id = p_task_id
      returning r.queue_id, r.lane, r.priority, r.parent_id, r.attempts, r.failures, r.crashes,
                r.solo into v_row;
    exit when found;
    v_place := queues.find_timer(v_task, true);
    delete from queues.timer t where t.ctid = v_place and t.first_id = p_task_id
      returning t.queue_id, t.lane, t.priority, t.parent_id, t.attempts, t.failures, t.crashes,
                t.solo into v_row;
    exit when found;
  end loop;
  if v_row.queue_id is null then
    return;
  end if;
  perform queues.put_ready(v_row.queue_id, v_row.lane, v_row.priority, coalesce(p_run_at, v_now),
                           v_now, array[p_task_id], v_row.parent_id, v_row.attempts,
                           v_row.failures, v_row.crashes, true, v_row.solo);
end
$$;

-- A keyed task that was handed out and comes back: retried, lost or released.
-- It gets its key again unless a twin has it by now, which is then left alone:
-- both run, because how their payloads would be merged is not known any more.
create or replace function queues.regain_key(p_task_id bigint) returns boolean
language plpgsql
set lock_timeout = '100ms'
as $$
begin
  insert into queues.pending_key (task_type, dedup_key, task_id, payload)
    select t.task_type, t.dedup_key, t.task_id,
           (select m.payload from queues.merged_payload m where m.task_id = p_task_id)
      from queues.task t where t.task_id = p_task_id and t.dedup_key is not null
    on conflict do nothing;
  if not found then
    return false;
  end if;
  delete from queues.merged_payload m where m.task_id = p_task_id;
  return true;
exception when lock_not_available then
  return false;  -- somebody is just enqueuing the twin
end
$$;

-- Adds a task, or merges in one of the built-in ways. With p_new, null instead
-- of a merge. For worker.enqueue.
create or replace function worker.add_task(
  p_command text, p_payload jsonb, p_priority bigint, p_scheduled_at timestamptz,
  p_dedup_key text, p_merge text, p_group_key text, p_parent_id bigint, p_context jsonb,
  p_headers jsonb, p_options jsonb, p_order_key text, p_new boolean default false)
returns bigint
language plpgsql security definer
set search_path = pg_catalog, pg_temp
set enable_seqscan = off
set jit = off
set enable_bitmapscan = off
set plan_cache_mode = force_generic_plan
as $$
declare
  v_parent queues.task;
  v_task_id bigint;
begin
  if p_parent_id is not null then
    v_parent := queues.parent_for_spawn(p_parent_id);
  end if;
  if p_dedup_key is null then
    return queues.add_task(p_command, p_payload, p_priority, p_scheduled_at, p_parent_id,
                           v_parent.queue_id, p_group_key, p_headers, p_context, p_options,
                           p_order_key);
  end if;
  perform queues.refuse_payload(p_payload);
  if not exists (select from worker.command_registry c where c.command = p_command) then
    perform queues.refuse_command(p_command);
  end if;
  loop
    if not p_new then
      v_task_id := queues.merge_pending(p_command, p_dedup_key, p_payload, p_merge,
                                        p_scheduled_at);
      if v_task_id is not null then
        return v_task_id;
      end if;
    end if;
    insert into queues.pending_key (task_type, dedup_key, task_id)
      values (p_command, p_dedup_key, nextval('queues.task_id_seq'))
      on conflict (task_type, dedup_key) do nothing
      returning task_id into v_task_id;
    exit when v_task_id is not null;
    if p_new then
      return null;
    end if;
  end loop;
  return queues.add_task(p_command, p_payload, p_priority, p_scheduled_at, p_parent_id,
                         v_parent.queue_id, p_group_key, p_headers, p_context, p_options,
                         p_order_key, p_dedup_key, v_task_id);
end
$$;

-- Invoker's rights, so that a merge function that the caller names runs with no
-- more rights than the caller has.
create or replace function worker.enqueue(
  p_command text, p_payload jsonb default '{}', p_priority bigint default null,
  p_scheduled_at timestamptz default null, p_dedup_key text default null,
  p_merge text default 'keep', p_group_key text default null, p_parent_id bigint default null,
  p_context jsonb default null, p_headers jsonb default null, p_options jsonb default null,
  p_order_key text default null)
returns bigint
language plpgsql
as $$
declare
  v_call text;
  v_pending record;
  v_merged jsonb;
  v_task_id bigint;
begin
  if p_dedup_key is null or p_merge in ('keep', 'replace', 'union', 'debounce') then
    return worker.add_task(p_command, p_payload, p_priority, p_scheduled_at, p_dedup_key, p_merge,
                           p_group_key, p_parent_id, p_context, p_headers, p_options,
                           p_order_key);
  elsif p_merge is null then
    raise exception 'a merge is needed with a dedup key'
      using errcode = 'invalid_parameter_value';
  end if;
  v_call := worker.merge_call(p_merge);
  loop
    v_pending := worker.hold_pending(p_command, p_dedup_key);
    if v_pending.task_id is not null then
      execute v_call into v_merged using v_pending.payload, p_payload;
      perform worker.replace_pending(p_command, p_dedup_key, v_merged);
      return v_pending.task_id;
    end if;
    v_task_id := worker.add_task(p_command, p_payload, p_priority, p_scheduled_at, p_dedup_key,
                                 p_merge, p_group_key, p_parent_id, p_context, p_headers,
                                 p_options, p_order_key, p_new => true);
    if v_task_id is not null then
      return v_task_id;
    end if;
  end loop;
end
$$;

comment on function worker.enqueue is
  'adds a task, or merges into the pending one of the same command and dedup key; returns its id';

create or replace function worker.enqueue_many(
  p_command text, p_payloads jsonb[], p_priority bigint default null,
  p_scheduled_at timestamptz default null, p_group_key text default null,
  p_parent_id bigint default null, p_context jsonb default null, p_headers jsonb default null)
returns setof bigint
language plpgsql security definer
set search_path = pg_catalog, pg_temp
set enable_seqscan = off
set jit = off
set enable_bitmapscan = off
set plan_cache_mode = force_generic_plan
as $$
declare
  v_parent queues.task;
begin
  if p_parent_id is not null then
    v_parent := queues.parent_for_spawn(p_parent_id);
  end if;
  return query
    select unnest(queues.add_tasks(p_command, p_payloads, p_priority, p_scheduled_at, p_parent_id,
                                   v_parent.queue_id, p_group_key, p_headers, p_context));
end
$$;

comment on function worker.enqueue_many is
  'adds one task per payload in one go; returns their ids in input order';

create or replace function worker.spawn_task(
  p_command text, p_payload jsonb default '{}', p_parent_id bigint default null,
  p_priority bigint default null)
returns bigint
language plpgsql
set search_path = pg_catalog, pg_temp
as $$
begin
  if coalesce(p_parent_id, worker.current_task_id()) is null then
    raise exception 'there is no task to spawn under'
      using errcode = 'object_not_in_prerequisite_state',
            hint = 'call it inside a handler, or name p_parent_id';
  end if;
  return worker.enqueue(p_command, p_payload, p_priority,
                        p_parent_id => coalesce(p_parent_id, worker.current_task_id()));
end
$$;

create or replace procedure worker.spawn(
  p_command text, p_payload jsonb default '{}', p_parent_id bigint default null,
  p_priority bigint default null)
language plpgsql
set search_path = pg_catalog, pg_temp
as $$
begin
  perform worker.spawn_task(p_command, p_payload, p_parent_id, p_priority);
end
$$;
