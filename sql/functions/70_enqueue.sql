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
-- parent itself, or of one of its children, holds the parent open as it is; any
-- other caller must keep it from ending until it has committed.
create or replace function queues.parent_for_spawn(p_parent_id bigint) returns queues.task
language plpgsql
as $$
declare
  v_parent queues.task;
  v_current bigint := worker.current_task_id();
begin
  select * into v_parent from queues.task t where t.task_id = p_parent_id;
  if not found then
    raise exception 'there is no task % to spawn under', p_parent_id
      using errcode = 'no_data_found';
  end if;
  if v_current is null
     or (v_current <> p_parent_id
         and not exists (select from queues.task t
                          where t.task_id = v_current and t.parent_id = p_parent_id)) then
    perform pg_advisory_xact_lock_shared(queues.parent_key(p_parent_id));
  end if;
  if exists (select from queues.task_completed c where c.task_id = p_parent_id) then
    raise exception 'task % has ended: nothing can be spawned under it', p_parent_id
      using errcode = 'object_not_in_prerequisite_state';
  end if;
  return v_parent;
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

-- What a merge makes of the pending payload.
create or replace function worker.merge_payload(p_merge text, p_old jsonb, p_new jsonb)
returns jsonb
language plpgsql
set search_path = pg_catalog, pg_temp
as $$
declare
  v_parts text[];
  v_result jsonb;
begin
  case p_merge
  when 'keep' then return p_old;
  when 'replace', 'debounce' then return p_new;
  when 'union' then
    return (
      select jsonb_object_agg(key, case
               when not p_new ? key then p_old -> key
               when not p_old ? key then p_new -> key
               when jsonb_typeof(p_old -> key) = 'array' and jsonb_typeof(p_new -> key) = 'array'
                 then coalesce((select jsonb_agg(distinct e order by e)
                                  from (select jsonb_array_elements(p_old -> key)
                                        union all select jsonb_array_elements(p_new -> key)) s(e)),
                               '[]')
               when jsonb_typeof(p_old -> key) = 'object' and jsonb_typeof(p_new -> key) = 'object'
                 then worker.merge_payload('union', p_old -> key, p_new -> key)
               else p_new -> key end)
        from (select jsonb_object_keys(p_old) union select jsonb_object_keys(p_new)) k(key));
  else
    v_parts := parse_ident(p_merge);
    if cardinality(v_parts) <> 2 or v_parts[1] ~ '^pg_'
       or to_regprocedure(format('%I.%I(jsonb, jsonb)', v_parts[1], v_parts[2])) is null then
      raise exception 'there is no merge "%"', p_merge
        using errcode = 'invalid_parameter_value',
              hint = 'keep, replace, union, debounce, or schema.function(old jsonb, new jsonb)';
    end if;
    execute format('select %I.%I($1, $2)', v_parts[1], v_parts[2])
      into v_result using p_old, p_new;
    return v_result;
  end case;
end
$$;

-- Merges into the pending task of this key, if there is one. Returns its id, or
-- null: the caller then holds the key for a task of its own. Internal.
--
-- Whoever holds the row of the key decides: a claim that has taken the task has
-- deleted it, so this waits for that claim and then finds nothing.
create or replace function queues.merge_pending(
  p_command text, p_key text, p_payload jsonb, p_merge text, p_scheduled_at timestamptz)
returns bigint
language plpgsql
as $$
declare
  v_key queues.pending_key;
  v_old jsonb;
begin
  select * into v_key from queues.pending_key k
   where k.task_type = p_command and k.dedup_key = p_key for update;
  if not found then
    return null;
  end if;
  v_old := coalesce(v_key.payload,
                    (select t.payload from queues.task t where t.task_id = v_key.task_id));
  if p_merge <> 'keep' then
    update queues.pending_key k set payload = worker.merge_payload(p_merge, v_old, p_payload)
     where k.task_type = p_command and k.dedup_key = p_key;
  end if;
  if p_merge = 'debounce' then
    perform queues.reschedule(v_key.task_id, p_scheduled_at);
  end if;
  return v_key.task_id;
end
$$;

-- Moves a pending task that has a row of its own to another time. Whoever calls
-- holds its dedup key, so no claim can take it meanwhile.
create or replace function queues.reschedule(p_task_id bigint, p_run_at timestamptz) returns void
language plpgsql
as $$
declare
  v_now timestamptz := worker.now();
  v_row record;
begin
  select r.ctid, r.queue_id, r.lane, r.priority, r.parent_id, r.attempts, r.failures, r.crashes,
         r.solo
    into v_row from queues.ready r join queues.task t on t.task_id = p_task_id
   where r.queue_id = t.queue_id and r.first_id = p_task_id for update of r;
  if found then
    delete from queues.ready where ctid = v_row.ctid;
  else
    select r.ctid, r.queue_id, r.lane, r.priority, r.parent_id, r.attempts, r.failures,
           r.crashes, r.solo
      into v_row from queues.timer r join queues.task t on t.task_id = p_task_id
     where r.queue_id = t.queue_id and r.first_id = p_task_id for update of r;
    delete from queues.timer where ctid = v_row.ctid;
  end if;
  if v_row.queue_id is null then
    return;
  end if;
  perform queues.put_ready(v_row.queue_id, v_row.lane, v_row.priority, coalesce(p_run_at, v_now),
                           v_now, array[p_task_id], v_row.parent_id, v_row.attempts,
                           v_row.failures, v_row.crashes, true, v_row.solo);
end
$$;

create or replace function worker.enqueue(
  p_command text, p_payload jsonb default '{}', p_priority bigint default null,
  p_scheduled_at timestamptz default null, p_dedup_key text default null,
  p_merge text default 'keep', p_group_key text default null, p_parent_id bigint default null,
  p_context jsonb default null, p_headers jsonb default null, p_options jsonb default null,
  p_order_key text default null)
returns bigint
language plpgsql security definer
set search_path = pg_catalog, pg_temp
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
  if p_merge is null then
    raise exception 'a merge is needed with a dedup key'
      using errcode = 'invalid_parameter_value';
  end if;
  perform queues.refuse_payload(p_payload);
  if p_merge not in ('keep', 'replace', 'union', 'debounce') then
    perform worker.merge_payload(p_merge, '{}', '{}');
  end if;
  if not exists (select from worker.command_registry c where c.command = p_command) then
    perform queues.refuse_command(p_command);
  end if;
  loop
    v_task_id := queues.merge_pending(p_command, p_dedup_key, p_payload, p_merge, p_scheduled_at);
    if v_task_id is not null then
      return v_task_id;
    end if;
    insert into queues.pending_key (task_type, dedup_key, task_id)
      values (p_command, p_dedup_key, nextval('queues.task_id_seq'))
      on conflict (task_type, dedup_key) do nothing
      returning task_id into v_task_id;
    exit when v_task_id is not null;
  end loop;
  return queues.add_task(p_command, p_payload, p_priority, p_scheduled_at, p_parent_id,
                         v_parent.queue_id, p_group_key, p_headers, p_context, p_options,
                         p_order_key, p_dedup_key, v_task_id);
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
