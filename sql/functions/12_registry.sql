-- Rules of the registries, kept by triggers so that plain INSERT, UPDATE and
-- DELETE have the same effect as the functions.

-- A queue's cells: numbers that change often and that everybody reads at once,
-- also inside an old snapshot. Sequences are such numbers: not transactional,
-- and no dead rows however often they change.
--   qN_generation   the generation that producers write into
--   qN_timer_floor  timers and expiries before this time (ms) are found by sweeps only
--   qN_top_floor    no lease below this one holds a place of top_concurrency
--   qN_wake         what workers do, and so whether to notify: worker.publish_loop
create or replace function queues.create_cells(p_queue_id integer) returns void
language plpgsql
as $$
begin
  execute format('create sequence queues.%I', 'q' || p_queue_id || '_generation');
  execute format('create sequence queues.%I minvalue 0', 'q' || p_queue_id || '_timer_floor');
  execute format('create sequence queues.%I minvalue 0', 'q' || p_queue_id || '_top_floor');
  execute format('create sequence queues.%I minvalue 0', 'q' || p_queue_id || '_wake');
  perform setval(format('queues.%I', 'q' || p_queue_id || '_generation')::regclass, 1);
  perform setval(format('queues.%I', 'q' || p_queue_id || '_timer_floor')::regclass, 0);
  perform setval(format('queues.%I', 'q' || p_queue_id || '_top_floor')::regclass, 0);
  perform setval(format('queues.%I', 'q' || p_queue_id || '_wake')::regclass, 0);
  insert into queues.generation_ledger (queue_id, version, live, limbo, written_at)
    values (p_queue_id, 1, '{1}', '{}', pg_catalog.now());
end
$$;

create or replace function worker.queue_registry_changed() returns trigger
language plpgsql security definer
set search_path = pg_catalog, pg_temp
as $$
begin
  if tg_op = 'INSERT' then
    perform queues.create_cells(new.queue_id);
  elsif tg_op = 'UPDATE' and new.queue_id <> old.queue_id then
    raise exception 'the number of queue "%" cannot be changed', old.queue
      using errcode = 'invalid_parameter_value';
  elsif tg_op = 'DELETE' then
    if exists (select from queues.ready r where r.queue_id = old.queue_id)
       or exists (select from queues.timer t
                   where t.queue_id = old.queue_id and t.task_ids <> '{}')
       or exists (select from queues.lease_open l where l.queue_id = old.queue_id) then
      raise exception 'queue "%" still has unfinished tasks', old.queue
        using errcode = 'dependent_objects_still_exist';
    end if;
    execute format('drop sequence queues.%I, queues.%I, queues.%I, queues.%I',
                   'q' || old.queue_id || '_generation',
                   'q' || old.queue_id || '_timer_floor',
                   'q' || old.queue_id || '_top_floor',
                   'q' || old.queue_id || '_wake');
    delete from queues.generation_ledger where queue_id = old.queue_id;
    delete from queues.cursor_mark where queue_id = old.queue_id;
    delete from queues.timer where queue_id = old.queue_id;  -- alarms
  end if;
  perform pg_notify('worker_queue_change', coalesce(new.queue, old.queue));
  return null;
end
$$;

create or replace trigger queue_registry_changed
  after insert or update or delete on worker.queue_registry
  for each row execute function worker.queue_registry_changed();

create or replace function worker.is_limited(p_command worker.command_registry)
returns boolean
language sql immutable
as $$
  select p_command.concurrency_limit is not null or p_command.group_concurrency_limit is not null
      or p_command.rate_limit is not null or p_command.group_rate_limit is not null
      or p_command.window_start is not null or p_command.paused
$$;

-- Tasks that not every worker may take at any time stand in a line of their own,
-- so that nobody walks over them on the way to others.
create or replace function worker.needs_own_lane(p_command worker.command_registry)
returns boolean
language sql immutable
as $$
  select p_command.kind = 'native' or worker.is_limited(p_command)
$$;

create or replace function worker.is_network(p_text text) returns boolean
language plpgsql immutable
set search_path = pg_catalog, pg_temp
as $$
begin
  return p_text::cidr is not null;
exception when invalid_text_representation then
  return false;
end
$$;

create or replace function worker.command_registry_number() returns trigger
language plpgsql security definer
set search_path = pg_catalog, pg_temp
as $$
begin
  select q.queue_id into new.queue_id from worker.queue_registry q where q.queue = new.queue;
  if not found then
    raise exception 'unknown queue "%"', new.queue
      using errcode = 'undefined_object', hint = 'insert it into worker.queue_registry';
  end if;
  if exists (select from unnest(new.allow_private) n
              where n is null or not worker.is_network(n)) then
    raise exception 'allow_private of command "%" has an entry that is no network', new.command
      using errcode = 'invalid_parameter_value', hint = 'such as 10.0.0.0/8 or 127.0.0.1/32';
  end if;
  new.shared_lane := case when new.kind in ('procedure', 'db_function') then 0
                          when new.kind <> 'native' then 2 end;
  new.lane := case when worker.needs_own_lane(new) then 2 * new.command_id
                   else new.shared_lane end;
  new.simple := new.group_concurrency_limit is null and new.rate_limit is null
                and new.group_rate_limit is null and new.window_start is null and not new.paused;
  new.generation_cell := format('queues.%I', 'q' || new.queue_id || '_generation');
  new.wake_cell := format('queues.%I', 'q' || new.queue_id || '_wake');
  return new;
end
$$;

create or replace trigger command_registry_number
  before insert or update on worker.command_registry
  for each row execute function worker.command_registry_number();
