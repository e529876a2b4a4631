-- Hooks: before commits before the handler starts, after runs with the end.
\set VERBOSITY terse
\pset null '-'
set client_min_messages = warning;
create schema app;
create table app.log (i serial, what text, task bigint, payload jsonb, xid xid8 default pg_current_xact_id(), note text);
create function app.note(p_what text, p_payload jsonb default null, p_note text default null) returns void language sql as $$
  insert into app.log (what, task, payload, note) values (p_what, worker.current_task_id(), p_payload, p_note)
$$;
create procedure app.before_none() language plpgsql as $$ begin perform app.note('before'); end $$;
create procedure app.before(payload jsonb) language plpgsql as $$
begin
  perform app.note('before', payload);
  if payload ? 'before fails' then raise exception 'before fell'; end if;
end $$;
create procedure app.after(payload jsonb) language plpgsql as $$
begin
  perform app.note('after', payload, (select state::text from worker.tasks where id = worker.current_task_id()));
  if payload ? 'after fails' then raise exception 'after fell'; end if;
  if payload ? 'after spawns' then perform worker.spawn_task('child'); end if;
end $$;
create function app.after_function() returns void language sql as $$ select app.note('after f') $$;
create procedure app.work(payload jsonb) language plpgsql as $$
begin
  perform app.note('work', payload);
  if payload ? 'fail' then raise exception 'work fell'; end if;
end $$;
create procedure app.fan(payload jsonb) language plpgsql as $$
begin
  perform app.note('work', payload);
  for i in 1..3 loop
    call worker.spawn('child', jsonb_build_object('n', i));
  end loop;
end $$;
create function app.child(payload jsonb) returns jsonb language sql as $$
  select app.note('child', payload); select jsonb_build_object('square', (payload ->> 'n')::int ^ 2)
$$;
create procedure app.collect(payload jsonb) language plpgsql as $$
begin
  perform app.note('after', null, (select string_agg(result ->> 'square', '+' order by id)
                                     from worker.tasks where parent_id = worker.current_task_id()));
end $$;
select worker.register_command('work', 'q', 'app.work', p_before_procedure => 'app.before', p_after_procedure => 'app.after', p_max_attempts => 2),
       worker.register_command('plain', 'q', 'app.work', p_before_procedure => 'app.before_none', p_after_procedure => 'app.after_function'),
       worker.register_command('fan', 'q', 'app.fan', p_after_procedure => 'app.collect'),
       worker.register_command('child', 'q', 'app.child');
create view app.told as
  select what, payload, note, dense_rank() over (order by xid) as transaction from app.log order by i;

-- The effective payload is what they get, and the end is what after sees.
select worker.enqueue('work', '{"n": 1}', p_dedup_key => 'k'), worker.enqueue('work', '{"n": 2}', p_dedup_key => 'k', p_merge => 'union');
call worker.process_tasks(p_queue => 'q');
select * from app.told;
truncate app.log;
select worker.enqueue('plain');
call worker.process_tasks(p_queue => 'q');
select * from app.told;
truncate app.log;

-- A task that fails: before again at each attempt, after only when it has ended.
select worker.enqueue('work', '{"fail": true}');
call worker.process_tasks(p_queue => 'q');
select * from app.told;
set worker.fake_now = '2100-01-01';
call worker.process_tasks(p_queue => 'q');
reset worker.fake_now;
select * from app.told;
truncate app.log;

-- A failing hook leaves a row and a warning; the task is not affected.
select worker.enqueue('work', '{"before fails": 1, "after fails": 1}') as id;
call worker.process_tasks(p_queue => 'q');
select * from app.told;
select state, error from worker.tasks order by id desc limit 1;
select e.error_message, e.context ->> 'hook' as hook, e.context ->> 'sqlstate' as sqlstate from queues.error e
 where e.context ? 'hook' order by error_id;
truncate app.log;
-- and its error does not hide that of the task
update worker.command_registry set max_attempts = 1 where command = 'work';
select worker.enqueue('work', '{"fail": 1, "after fails": 1}') as id;
call worker.process_tasks(p_queue => 'q');
select state, split_part(error, E'\n', 1) as error from worker.tasks order by id desc limit 1;
select worker.explain_task(max(id)) ~ 'with: work fell$' as explained from worker.tasks;
truncate app.log;

-- Nothing can be spawned under a task that has ended.
select worker.enqueue('work', '{"after spawns": 1}') as id;
call worker.process_tasks(p_queue => 'q');
select state, (select count(*) from worker.tasks c where c.parent_id = t.id) as children
  from worker.tasks t order by id desc limit 1;
truncate app.log;

-- That of a parent runs after its children, in the commit of the last one, and can
-- read their results.
select worker.enqueue('fan');
call worker.process_tasks(p_queue => 'q');
select * from app.told;
call worker.process_tasks(p_queue => 'q');
select * from app.told;
truncate app.log;

-- The same inside a transaction block.
begin;
select worker.enqueue('fan'), worker.enqueue('work', '{"n": 3}');
select worker.drain();
select what, payload, note from app.told;
rollback;
select count(*) from app.log;

-- Hooks of a canceled task: none when it never began.
select worker.cancel(worker.enqueue('work'));
call worker.process_tasks(p_queue => 'q');
select * from app.told;

-- Tasks that ended elsewhere: the next call runs their hooks.
select worker.register_command('remote', 'q', p_kind => 'http', p_url => 'http://127.0.0.1/', p_after_procedure => 'app.after');
select worker.enqueue('remote', '{"far": 1}');
do $$ begin
  perform queues.exchange('q', 0, p_done => (select array_agg(lease_id) from queues.exchange('q', 10, p_lanes => '{2,3}')));
end $$;
select * from app.told;
call worker.process_tasks(p_queue => 'q');
select * from app.told;
select count(*) as due from queues.after_due;
