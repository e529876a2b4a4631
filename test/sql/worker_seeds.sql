-- The tests that the first users wrote for their own pipeline, as they wrote
-- them: a parent that fans out, an uncle, a trigger that enqueues.
set client_min_messages = warning;
create table establishment (id int primary key, name text);
create table statistical_unit (id int primary key, name text, by_task bigint);
create table analyzed (at_task bigint);

create procedure public.derive_statistical_unit(payload jsonb) language plpgsql as $$
declare
  p_task_id bigint := worker.current_task_id();
begin
  call worker.spawn(
    p_command => 'statistical_unit_refresh_batch',
    p_payload => jsonb_build_object('batch_seq', 1, 'enterprise_ids', array[1,2,3]),
    p_parent_id => p_task_id,  -- Links child to parent
    p_priority => 20
  );
  call worker.spawn('statistical_unit_refresh_batch', '{"batch_seq": 2, "enterprise_ids": [4]}');
  call worker.enqueue_analyze_tables();
end $$;

create procedure public.statistical_unit_refresh_batch(payload jsonb) language plpgsql as $$
declare
  v_parent_id bigint;
begin
  insert into statistical_unit
    select e.id, e.name, worker.current_task_id() from establishment e
     where e.id in (select jsonb_array_elements(payload -> 'enterprise_ids')::int);
  if (payload ->> 'batch_seq')::int = 2 then
    -- Child task discovers more work needed, spawns sibling
    select t.parent_id into v_parent_id from worker.tasks t where t.id = worker.current_task_id();
    call worker.spawn(
      p_command => 'statistical_unit_refresh_batch',
      p_payload => jsonb_build_object('batch_seq', 99, 'enterprise_ids', array[5]),
      p_parent_id => v_parent_id,
      p_priority => 20  -- Same priority as siblings
    );
  end if;
end $$;

create procedure public.analyze_tables(payload jsonb) language plpgsql as $$
begin
  insert into analyzed values (worker.current_task_id());
end $$;

insert into worker.queue_registry (queue, description) values ('analytics', 'derived tables');
insert into worker.command_registry (command, queue, handler_procedure) values
  ('derive_statistical_unit', 'analytics', 'public.derive_statistical_unit'),
  ('statistical_unit_refresh_batch', 'analytics', 'public.statistical_unit_refresh_batch'),
  ('analyze_tables', 'analytics', 'public.analyze_tables');

create procedure worker.enqueue_analyze_tables() language sql as $$
  select worker.enqueue('analyze_tables', p_dedup_key => 'all')
$$;
create function worker.enqueue_derive_statistical_unit(p_ids int[]) returns bigint language sql as $$
  select worker.enqueue('derive_statistical_unit', jsonb_build_object('ids', p_ids),
                        p_dedup_key => 'all', p_merge => 'union')
$$;
create function establishment_changed() returns trigger language plpgsql as $$
begin
  perform worker.enqueue_derive_statistical_unit(array[new.id]);
  return null;
end $$;
create trigger establishment_changed after insert on establishment
  for each row execute function establishment_changed();

-- Test structured concurrency in pg_regress
BEGIN;

-- Create parent task
INSERT INTO worker.tasks (command, payload)
VALUES ('derive_statistical_unit', '{}');

-- Process to create children
CALL worker.process_tasks(p_queue => 'analytics');

-- Verify parent is waiting
SELECT state FROM worker.tasks WHERE command = 'derive_statistical_unit';
-- Returns: waiting

-- Process children
CALL worker.process_tasks(p_queue => 'analytics');

-- Verify parent completed
SELECT state FROM worker.tasks WHERE command = 'derive_statistical_unit';
-- Returns: completed

-- the sibling ran, the uncle after the tree
select id, command, payload ->> 'batch_seq' as seq, priority, parent_id, state
  from worker.tasks order by id;
select (select completed_at from worker.tasks where command = 'analyze_tables')
       > (select max(completed_at) from worker.tasks where command <> 'analyze_tables') as uncle_last,
       (select completed_at from worker.tasks where id = 1)
       >= (select max(completed_at) from worker.tasks where parent_id = 1) as parent_after_children;

ROLLBACK;
select count(*) from worker.tasks;

-- Example for a pg_regress test
BEGIN;

-- 1. Set up your test data. This action will likely create one or more
--    'pending' tasks in the worker.tasks table.
INSERT INTO public.establishment (id, name) VALUES (1, 'a'), (4, 'd'), (5, 'e');
select command, payload, state from worker.tasks;

-- 2. Manually call the worker procedure. The call is synchronous.
CALL worker.process_tasks(p_queue => 'analytics');
CALL worker.process_tasks(p_queue => 'analytics');

-- 3. You can immediately verify their results.
SELECT id, name FROM public.statistical_unit WHERE id in (1, 4, 5) order by id;
select count(*) from analyzed;

-- The transaction is rolled back, cleaning up both the test data and any
-- changes made by the worker tasks.
ROLLBACK;
select (select count(*) from worker.tasks), (select count(*) from statistical_unit),
       (select count(*) from analyzed);

-- the same one message with all of it (\; keeps psql from splitting)
INSERT INTO public.establishment (id, name) VALUES (4, 'd');
BEGIN \; CALL worker.process_tasks(p_queue => 'analytics') \; ROLLBACK;
select command, state from worker.tasks;
CALL worker.process_tasks(p_queue => 'analytics') \; CALL worker.process_tasks(p_queue => 'analytics');
select command, state from worker.tasks order by id;
