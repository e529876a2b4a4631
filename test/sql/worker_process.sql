-- worker.process_tasks: its parameters, its order, its transactions.
\set VERBOSITY terse
\pset null '-'
set client_min_messages = warning;
create schema app;
create table app.ran (i serial, task bigint, tag text, xid xid8 default pg_current_xact_id());
create procedure app.run(payload jsonb) language plpgsql as $$
begin
  insert into app.ran (task, tag) values (worker.current_task_id(), payload ->> 'tag');
  if payload ? 'sleep' then
    perform pg_sleep((payload ->> 'sleep')::float);
  end if;
  for i in 1..coalesce((payload ->> 'children')::int, 0) loop
    call worker.spawn('run', jsonb_build_object('tag', (payload ->> 'tag') || '.' || i));
  end loop;
  if payload ? 'fail' then
    raise exception 'failed';
  end if;
end $$;
create function app.log() returns text language sql as $$
  select string_agg(tag, ' ' order by i) from app.ran
$$;
select worker.register_command('run', 'q', 'app.run');
select worker.register_command('wide', 'wide', 'app.run');
update worker.queue_registry set top_concurrency = null where queue = 'wide';
select worker.register_command('grouped', 'grouped', 'app.run', p_group_commit => 4);
select worker.register_command('single', 'grouped', 'app.run');

-- Smaller priorities first, then scheduled_at, then id. Without one, as enqueued.
select count(worker.enqueue('run', jsonb_build_object('tag', t.tag), t.priority, t.at))
  from (values ('c', 5, null), ('d', 5, null), ('b', 0, null), ('a', -9223372036854775808, null),
               ('e', 5, '2020-01-01'::timestamptz), ('z', 9223372036854775807, '2020-01-01'),
               ('later', 0, now() + interval '1 hour')) t(tag, priority, at);
call worker.process_tasks(p_queue => 'q');
select app.log();
truncate app.ran;

-- p_batch_size, p_max_priority; several queues, or the one that is named.
select count(worker.enqueue('run', jsonb_build_object('tag', i), i)) from generate_series(1, 6) i;
select count(worker.enqueue('wide', jsonb_build_object('tag', 'w' || i), i)) from generate_series(1, 6) i;
call worker.process_tasks(0);
call worker.process_tasks(2, p_queue => 'q');
select app.log();
call worker.process_tasks(p_max_priority => 4, p_queue => 'q');
select app.log();
call worker.process_tasks(3);
select app.log();
call worker.process_tasks(p_batch_size => 3, p_max_runtime_ms => 60000, p_queue => 'wide', p_max_priority => null, p_mode => null);
select app.log();
call worker.process_tasks(p_queue => 'nowhere');
call worker.process_tasks(p_mode => 'sideways');
call worker.process_tasks();
truncate app.ran;

-- p_max_runtime_ms ends it between tasks; what is left of a batch is handed back as
-- if it had not been handed out.
select count(worker.enqueue('run', jsonb_build_object('tag', i, 'sleep', case when i > 20 then 0.05 else 0 end)))
  from generate_series(1, 40) i;
call worker.process_tasks(p_max_runtime_ms => 0);
select app.log();
call worker.process_tasks(p_max_runtime_ms => 200);
select count(*) between 1 and 39 as some from app.ran;
select distinct state, attempt from worker.tasks where (payload ->> 'tag')::int <= 40
   and payload ? 'sleep' order by 1;
select count(*) as open from queues.lease_open;
call worker.process_tasks();
select count(*), count(distinct tag) from app.ran;
truncate app.ran;

-- Modes. A waiting parent on a serial queue: 'top' finds nothing, 'child' runs the
-- children; without a mode the children come first.
select worker.enqueue('run', '{"tag": "P", "children": 3}') is not null,
       worker.enqueue('run', '{"tag": "Q", "children": 2}') is not null;
call worker.process_tasks(p_queue => 'q', p_mode => 'child');
select app.log();
call worker.process_tasks(p_queue => 'q', p_mode => 'top');
select app.log();
call worker.process_tasks(p_queue => 'q', p_mode => 'top');
call worker.process_tasks(p_queue => 'q', p_mode => 'child', p_batch_size => 2);
select app.log();
call worker.process_tasks(p_queue => 'q', p_mode => 'top');
select app.log();
call worker.process_tasks(p_queue => 'q');
select app.log();
call worker.process_tasks(p_queue => 'q');
select app.log();
select command, state, count(*) from worker.tasks where payload ->> 'tag' ~ '[PQ]' group by 1, 2;
truncate app.ran;

-- Where there is no limit, a waiting parent does not keep others from running, but
-- the call ends so that its children can be seen to.
select worker.enqueue('wide', '{"tag": "P", "children": 1}') is not null, worker.enqueue('wide', '{"tag": "Q"}') is not null;
call worker.process_tasks(p_queue => 'wide');
select app.log();
call worker.process_tasks(p_queue => 'wide', p_mode => 'top');
select app.log();
call worker.process_tasks(p_queue => 'wide');
select app.log();
truncate app.ran;

-- Outside a transaction block each task commits by itself; inside, nothing does.
select count(worker.enqueue('run', jsonb_build_object('tag', i))) from generate_series(1, 3) i;
call worker.process_tasks(p_queue => 'q');
select count(distinct xid) from app.ran;
truncate app.ran;
select count(worker.enqueue('run', jsonb_build_object('tag', i))) from generate_series(1, 3) i;
begin;
call worker.process_tasks(p_queue => 'q');
select app.log(), (select count(*) from worker.tasks where state = 'pending' and payload ->> 'tag' <= '3') as pending;
rollback;
select app.log(), (select count(*) from worker.tasks where state = 'pending' and payload ->> 'tag' <= '3') as pending;
begin;
select 1 as not_a_write;
call worker.process_tasks(1, p_queue => 'q');
commit;
select app.log();
-- one message, no write before: a transaction too
begin \; call worker.process_tasks(1, p_queue => 'q') \; rollback;
select app.log();
/* a comment; with a semicolon */ call worker.process_tasks(1, p_queue => 'q'); -- and another;
select app.log(), count(distinct xid) from app.ran;
truncate app.ran;
-- in a function, in a DO block, in a procedure of one's own
select count(worker.enqueue('run', jsonb_build_object('tag', i))) from generate_series(1, 6) i;
create function app.within() returns text language plpgsql as $$
begin
  call worker.process_tasks(2, p_queue => 'q');
  return app.log();
end $$;
select app.within();
create procedure app.around() language plpgsql as $$
begin
  call worker.process_tasks(1, p_queue => 'q');
  call worker.process_tasks(1, p_queue => 'q');
end $$;
call app.around();
do $$ begin call worker.process_tasks(2, p_queue => 'q'); end $$;
select app.log(), count(distinct xid) from app.ran;
-- a caller that knows says so
select worker.enqueue('run', '{"tag": "x"}') is not null;
set worker.commit = off;
call worker.process_tasks(p_queue => 'q');
select count(*) from app.ran;
set worker.commit = on;
begin;
call worker.process_tasks(p_queue => 'q');
rollback;
reset worker.commit;
truncate app.ran;

-- An isolation level that cannot tell who was last is not used, and is there again
-- afterwards.
set default_transaction_isolation = 'repeatable read';
select worker.enqueue('run', '{"tag": "P", "children": 2}') is not null;
call worker.process_tasks(p_queue => 'q');
call worker.process_tasks(p_queue => 'q');
show default_transaction_isolation;
reset default_transaction_isolation;
select state from worker.tasks where payload ->> 'tag' = 'P' order by id desc limit 1;
truncate app.ran;

-- Groups share a commit, up to group_commit tasks of the command; a task of a
-- command that did not ask for it has its own. One that fails does not take the
-- others with it, and one that has children ends the group.
create view app.groups as
  select string_agg(tag, ' ' order by i) as tags from app.ran group by xid order by min(i);
select count(worker.enqueue('grouped', jsonb_build_object('tag', i))) from generate_series(1, 30) i;
call worker.process_tasks(p_queue => 'grouped');
select max(n) as most, sum(n) from (select count(*) as n from app.ran group by xid) s;
truncate app.ran;
-- a full lease from the start: the size of the next one depends on the clock
create procedure app.lease_all() language plpgsql as $$
declare
  v_batch record;
  v_ran int := 0;
  v_stop boolean := false;
begin
  v_batch := worker.lease_sql_tasks('grouped', 100, null, '{0,1}', true);
  commit;
  call worker.run_batch('grouped', v_batch, true, 'infinity', worker.session_state(true), v_ran, v_stop);
  raise warning 'ran %, stop %', v_ran, v_stop;
end $$;
select count(worker.enqueue('grouped', jsonb_build_object('tag', i))) from generate_series(1, 5) i;
select worker.enqueue('single', '{"tag": "s"}') is not null, worker.enqueue('grouped', '{"tag": "6"}') is not null,
       worker.enqueue('grouped', '{"tag": "7", "fail": true}') is not null, worker.enqueue('grouped', '{"tag": "8"}') is not null,
       worker.enqueue('grouped', '{"tag": "9", "children": 1}') is not null, worker.enqueue('grouped', '{"tag": "10"}') is not null;
call app.lease_all();
select * from app.groups;
select payload ->> 'tag' as tag, state, split_part(error, E'\n', 1) as error, attempt from worker.tasks
 where queue = 'grouped' and state <> 'completed' order by id;
select worker.drain('grouped');
select count(*) as open from queues.lease_open;
truncate app.ran;

-- Handlers cannot run others.
create procedure app.recurse(payload jsonb) language plpgsql as $$ begin call worker.process_tasks(); end $$;
create procedure app.drains(payload jsonb) language plpgsql as $$ begin perform worker.drain(); end $$;
select worker.register_command('recurse', 'q', 'app.recurse'), worker.register_command('drains', 'q', 'app.drains');
select worker.enqueue('recurse') is not null, worker.enqueue('drains') is not null;
call worker.process_tasks();
select command, state, split_part(error, E'\n', 1) as error from worker.tasks where command in ('recurse', 'drains') order by id;

-- What a handler of another kind is to run is left to others, and nothing spins.
select worker.register_command('elsewhere', 'q', p_kind => 'http', p_url => 'http://127.0.0.1/');
select worker.enqueue('elsewhere') is not null;
call worker.process_tasks(p_queue => 'q');
select state, attempt from worker.tasks where command = 'elsewhere';
-- and a command that changes its kind while tasks of it are pending goes over
select worker.enqueue('drains') is not null, worker.enqueue('elsewhere') is not null;
update worker.command_registry set kind = 'http', url = 'http://127.0.0.1/', handler_procedure = null where command = 'drains';
update worker.command_registry set kind = 'procedure', handler_procedure = 'app.run' where command = 'elsewhere';
call worker.process_tasks(p_queue => 'q');
select command, state from worker.tasks where command in ('elsewhere', 'drains') order by id;
