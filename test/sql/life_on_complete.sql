-- on_complete: one follower for each end, in the same commit, whatever the end.
\set VERBOSITY terse
\pset null '-'
set client_min_messages = warning;
set worker.fake_now = '2030-01-01 12:00:00+00';
create schema app;
create table app.heard (i serial, payload jsonb);
create procedure app.hear(payload jsonb) language sql as $$ insert into app.heard (payload) values (payload) $$;
create procedure app.handle(payload jsonb, inout result jsonb) language plpgsql as $$
begin
  case payload ->> 'how'
    when 'fail' then raise exception 'out of paper';
    when 'give up' then perform worker.give_up('never');
    when 'snooze' then perform worker.snooze('1 hour');
    when 'result' then result := '{"pages": 3}';
    when 'spawn' then perform worker.spawn_task('plain', payload -> 'child');
    when 'big' then result := to_jsonb(repeat('x', 2000000));
    else null;
  end case;
end $$;
select worker.register_command('hear', 'h', 'app.hear'),
       worker.register_command('plain', 'q', 'app.handle'),
       worker.register_command('run', 'q', 'app.handle', p_max_attempts => 2, p_backoff_initial => '0', p_on_complete => 'hear'),
       worker.register_command('group', 'q', 'app.handle', p_group_commit => 10, p_on_complete => 'hear'),
       worker.register_command('far', 'f', p_kind => 'http', p_url => 'http://127.0.0.1/', p_on_complete => 'hear', p_max_leases => 1);
update worker.queue_registry set top_concurrency = null;
create function app.heard() returns table (heard jsonb) language plpgsql as $$
begin
  perform worker.drain('h');
  return query with gone as (delete from app.heard h returning h.i, h.payload) select payload from gone order by i;
end $$;
create function app.told() returns table (task bigint, kind text, more text) language sql as $$
  select (h ->> 'task_id')::bigint, h -> 'result' ->> 'kind', left((h -> 'result') - 'kind' #>> '{}', 70) from app.heard() h order by 1 $$;

-- Success, with and without a result; the context of the enqueue comes along.
select worker.enqueue('run', p_context => '{"order": 7}'), worker.enqueue('run', '{"how": "result"}');
call worker.process_tasks(p_queue => 'q');
-- enqueued, and nothing else: it is a task like any other
select command, payload from worker.tasks where state = 'pending';
select * from app.heard();
-- Failed: told once, at the end, not at each attempt. Put off: not told.
select worker.enqueue('run', '{"how": "fail"}') as f, worker.enqueue('run', '{"how": "give up"}') as g, worker.enqueue('run', '{"how": "snooze"}') as s \gset
call worker.process_tasks(p_queue => 'q');
select state, attempt from worker.tasks where id = :f;
select * from app.told();
-- Canceled while pending, and with others.
select worker.cancel(:s, 'never mind');
select worker.enqueue('run') is not null;
select worker.cancel_all('q');
select * from app.told();
-- Those that follow came after the call: they are not canceled with the others.
select worker.register_command('same', 'h', 'app.handle', p_on_complete => 'hear');
select count(*) from worker.enqueue_many('same', array_fill('{}'::jsonb, '{150}'));
select worker.cancel_all('h');
select count(*) as pending from worker.tasks where command = 'hear' and state = 'pending';
select kind, count(*) from app.told() group by 1;
-- In a group.
select count(worker.enqueue('group', case i when 2 then '{"how": "fail"}' else '{}' end::jsonb)) from generate_series(1, 5) i;
call worker.process_tasks(p_queue => 'q');
select kind, count(*), count(distinct task) from app.told() group by 1 order by 1;
-- A parent, once its children have ended: completed, failed, canceled.
select worker.enqueue('run', '{"how": "spawn", "child": {}}') as a, worker.enqueue('run', '{"how": "spawn", "child": {"how": "fail"}}') as b \gset
call worker.process_tasks(1, p_queue => 'q', p_mode => 'top');
call worker.process_tasks(1, p_queue => 'q', p_mode => 'top');
select * from app.told();
call worker.process_tasks(p_queue => 'q', p_mode => 'child');
select * from app.told();
select worker.enqueue('run', '{"how": "spawn", "child": {}}') as c \gset
call worker.process_tasks(1, p_queue => 'q', p_mode => 'top');
select worker.cancel(:c, 'enough');
select * from app.told();

-- Outside the database: a whole lease, single tasks, all outcomes.
select worker.register_worker('w') as w \gset
select count(*) from worker.enqueue_many('far', array_fill('{}'::jsonb, '{10}'));
select min(lease_id) as l, min(task_id) as t from queues.exchange('f', 3, :w) \gset
select event from queues.exchange('f', 0, :w, p_done => array[:l]);
select task - :t as task, kind, more from app.told();
select min(lease_id) as l, min(task_id) as t from queues.exchange('f', 7, :w) \gset
select event from queues.exchange('f', 0, :w, p_lease_ids => array_fill(:l, '{5}'), p_task_ids => array[:t, :t + 1, :t + 2, :t + 3, :t + 4]::bigint[],
  p_outcomes => '{completed,failed,canceled,snoozed,released}', p_errors => '{-,HTTP 500,told to,-,-}', p_results => array['{"n": 1}', null, null, null, null]::jsonb[]);
select task - :t as task, kind, more from app.told();
-- refused a second time, and told of the rest only
select count(*) as refused from queues.exchange('f', 0, :w, p_lease_ids => array[:l, :l], p_task_ids => array[:t, :t + 1]::bigint[]);
select event from queues.exchange('f', 0, :w, p_done => array[:l]);
select task - :t as task, kind, more from app.told();
-- lost too often
select task_id - :t as task from queues.exchange('f', 1, :w);
select queues.recover_worker(:w, worker.now());
select task - :t as task, kind, more from app.told();
select worker.cancel_all('f');
select count(*) from app.told();
-- a parent that fails takes along what it had spawned
select worker.enqueue('far') as p \gset
select lease_id as l from queues.exchange('f', 1) \gset
select worker.spawn_task('far', '{}', :p) as k \gset
select event from queues.exchange('f', 0, p_lease_ids => array[:l], p_task_ids => array[:p], p_outcomes => '{fatal}');
select task - :p as task, kind, more from app.told();
-- dequeued by hand
select worker.register_command('email', p_kind => 'email', p_on_complete => 'hear');
select queues.enqueue('email', '{}');
select queues.complete_task((queues.dequeue_next_available_task()).task_id);
select kind, more from app.told();
select worker.register_command('email', p_kind => 'email');

-- Put back by worker.retry, a task ends once more.
select worker.retry(:f);
call worker.process_tasks(p_queue => 'q');
select task = :f as it, kind from app.told();

-- In the same commit: taken back with the end.
begin;
select worker.enqueue('run') is not null;
select worker.drain('q');
select count(*) as followers from worker.tasks where command = 'hear' and state = 'pending';
rollback;
select count(*) as followers from worker.tasks where command = 'hear' and state = 'pending';

-- A follower that cannot be enqueued changes nothing of the task.
update worker.command_registry set on_complete = 'unheard' where command in ('run', 'group');
select worker.enqueue('run', '{"how": "result"}') as a, worker.enqueue('run', '{"how": "fail"}') as b \gset
select worker.cancel(worker.enqueue('run'));
call worker.process_tasks(p_queue => 'q');
select state, result, split_part(error, e'\n', 1) as error from worker.tasks where id >= :a order by id;
select split_part(error_message, e'\n', 1) as error, context ->> 'hook' as hook, context ->> 'sqlstate' as sqlstate from queues.error where task_id >= :a order by error_id;
-- nor one that fails
update worker.command_registry set on_complete = 'hear' where command in ('run', 'group');
create or replace procedure app.hear(payload jsonb) language plpgsql as $$ begin raise exception 'deaf'; end $$;
select worker.enqueue('run') as a \gset
call worker.process_tasks(p_queue => 'q');
select worker.drain('h');
select command, state, split_part(error, e'\n', 1) as error from worker.tasks where id >= :a order by id;
create or replace procedure app.hear(payload jsonb) language sql as $$ insert into app.heard (payload) values (payload) $$;
-- of several at once, one too large goes without its value
select worker.enqueue('group', '{"how": "big"}') as big, worker.enqueue('group', '{"how": "result"}') is not null;
call worker.process_tasks(p_queue => 'q');
select kind, more from app.told();
select worker.enqueue('run', p_context => jsonb_build_object('big', repeat('x', 2000000))) is not null;
call worker.process_tasks(p_queue => 'q');
select h -> 'result' as result, h -> 'context' as context from app.heard() h;
-- whatever is too large
set worker.max_payload_bytes = 130;
select count(worker.enqueue('group', p_context => case i when 2 then '{"long": "xxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxx"}' end::jsonb)) from generate_series(1, 3) i;
call worker.process_tasks(p_queue => 'q');
reset worker.max_payload_bytes;
select kind, more from app.told();

-- Round and round is refused; so is what would close a circle.
select worker.register_command('self', 'q', 'app.handle', p_on_complete => 'self');
select worker.register_command('one', 'q', 'app.handle', p_on_complete => 'two');
select worker.register_command('two', 'q', 'app.handle', p_on_complete => 'three');
select worker.register_command('three', 'q', 'app.handle', p_on_complete => 'one');
update worker.command_registry set on_complete = command where command = 'hear';
-- a chain is not
select worker.register_command('three', 'q', 'app.handle', p_on_complete => 'hear');
select worker.enqueue('one') as one \gset
select worker.drain('q');
select jsonb_path_query_array(heard, '$.command') as last from app.heard();
select command, state from worker.tasks where id >= :one order by id;
