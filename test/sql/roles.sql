-- Who may do what. PUBLIC may nothing; a role may what worker.role_grants() says.
\set VERBOSITY terse
select worker.register_command('outside', p_kind => 'native');
create schema app;
create table app.done (n int);
create procedure app.handle(payload jsonb) language sql security definer as $$
  insert into app.done values ((payload ->> 'n')::int)
$$;
grant usage on schema app to worker_service_user;
grant execute on procedure app.handle(jsonb) to worker_service_user;
select worker.register_command('inside', p_handler => 'app.handle');

-- No routine for PUBLIC, no definer without a search_path, no grant that names
-- nothing, no table for those who only enqueue or run.
select p.oid::regprocedure from pg_proc p
  join pg_namespace n on n.oid = p.pronamespace
 where n.nspname in ('queues', 'worker', 'internal')
   and (p.proacl is null or exists (select from aclexplode(p.proacl) a where a.grantee = 0));
select c.oid::regclass from pg_class c
  join pg_namespace n on n.oid = c.relnamespace
 where n.nspname in ('queues', 'worker', 'internal')
   and exists (select from aclexplode(c.relacl) a where a.grantee = 0);
select p.oid::regprocedure from pg_proc p
  join pg_namespace n on n.oid = p.pronamespace
 where n.nspname in ('queues', 'worker', 'internal') and p.prosecdef
   and not exists (select from unnest(p.proconfig) c where c like 'search_path=pg_catalog, pg_temp');
select g.routine from worker.role_grants() g
 where not exists (select from pg_proc p join pg_namespace n on n.oid = p.pronamespace
                    where n.nspname || '.' || p.proname = g.routine);
select c.oid::regclass, r.role, r.privilege
  from pg_class c join pg_namespace n on n.oid = c.relnamespace
 cross join (select role, privilege
               from unnest('{worker_enqueuer,worker_service_user}'::text[]) role,
                    unnest('{select,insert,update,delete,truncate}'::text[]) privilege) r
 where n.nspname in ('queues', 'worker', 'internal') and c.relkind in ('r', 'v')
   and has_table_privilege(r.role, c.oid, r.privilege)
 order by 1, 2, 3;

-- Each role may execute exactly what worker.role_grants() gives it.
select r.role, p.oid::regprocedure as routine
  from unnest('{worker_service_user,worker_enqueuer,worker_monitor,worker_admin}'::text[]) r(role)
 cross join pg_proc p join pg_namespace n on n.oid = p.pronamespace
 where n.nspname in ('queues', 'worker', 'internal')
   and has_function_privilege(r.role, p.oid, 'execute')
       <> exists (select from worker.role_grants() g
                   where g.role = r.role and g.routine = n.nspname || '.' || p.proname);
-- What may be written to: registries by the one who decides, the ways in by
-- those who ask, and nothing else by anybody.
select r.role, c.oid::regclass, string_agg(privilege, ',' order by privilege)
  from unnest('{worker_service_user,worker_enqueuer,worker_monitor,worker_admin}'::text[]) r(role)
 cross join unnest('{insert,update,delete,truncate,references,trigger}'::text[]) privilege
 cross join pg_class c join pg_namespace n on n.oid = c.relnamespace
 where n.nspname in ('queues', 'worker', 'internal') and c.relkind in ('r', 'v', 'p')
   and has_table_privilege(r.role, c.oid, privilege)
 group by r.role, c.oid order by r.role, c.oid::regclass::text;
select r.role, c.oid::regclass
  from unnest('{worker_service_user,worker_enqueuer,worker_monitor,worker_admin}'::text[]) r(role)
 cross join pg_class c join pg_namespace n on n.oid = c.relnamespace
 where n.nspname in ('queues', 'worker', 'internal') and c.relkind = 'S'
   and has_sequence_privilege(r.role, c.oid, 'usage,select,update');
-- Nobody may make anything in the schemas.
select r.rolname, n.nspname from pg_roles r cross join pg_namespace n
 where n.nspname in ('queues', 'worker', 'internal') and r.rolname like 'worker\_%'
   and has_schema_privilege(r.oid, n.oid, 'create');

-- Nobody.
create role roles_test_nobody;
set role roles_test_nobody;
select queues.enqueue('outside', '{}');
select worker.enqueue('outside');
call worker.process_tasks();
select worker.now();
reset role;
drop role roles_test_nobody;

-- Those who ask for work.
set role worker_enqueuer;
select queues.enqueue('outside', '{"n": 1}');
select worker.enqueue('inside', '{"n": 2}');
select count(*) from worker.enqueue_many('inside', array['{"n": 3}', '{"n": 4}']::jsonb[]);
insert into worker.tasks (command, payload) values ('inside', '{"n": 5}');
insert into queues.staging (task_type, payload) values ('inside', '{"n": 6}');
select count(*) from queues.task;
select (queues.dequeue_next_available_task()).task_id;
call worker.process_tasks();
select worker.cancel(1);
select worker.register_command('mine', p_kind => 'native');
reset role;

-- Those who run it.
set role worker_service_user;
call worker.process_tasks();
select event, task_id from queues.exchange('default', 10);
select queues.complete_task(1);
select queues.maintain() is not null;
select worker.drain();
select count(*) from queues.task;
select worker.cancel(1);
select worker.register_command('mine', p_kind => 'native');
update worker.queue_registry set top_concurrency = 1;
reset role;
select n from app.done order by n;

-- Those who look; also into every view, and into what it calls.
set role worker_monitor;
do $$
declare
  v_view regclass;
begin
  for v_view in
    select c.oid from pg_class c join pg_namespace n on n.oid = c.relnamespace
     where n.nspname in ('queues', 'worker') and c.relkind = 'v' order by c.oid
  loop
    begin
      execute format('select * from %s', v_view);
    exception when insufficient_privilege then
      raise warning '%: %', v_view, sqlerrm;
    end;
  end loop;
end $$;
select id, command, state from worker.tasks order by id;
select worker.explain_task(1) ~ '^It completed';
select worker.enqueue('outside');
select worker.cancel(1);
reset role;

-- Those who decide.
set role worker_admin;
select worker.register_command('mine', p_kind => 'native');
insert into worker.queue_registry (queue) values ('own');
delete from worker.queue_registry where queue = 'own';
delete from worker.command_registry where command = 'mine';
select worker.enqueue('outside', '{}') > 0;
select worker.cancel(max(id)) from worker.tasks;
select state from worker.tasks order by id desc limit 1;
delete from queues.task;
insert into queues.task_completed (task_id, completed_at, queue_id, state) values (1, now(), 1, 'failed');
reset role;
