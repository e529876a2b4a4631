-- Parents wait for their children, whatever these do.
\set VERBOSITY terse
\pset null '-'
set client_min_messages = warning;
create schema app;
create table app.ran (i serial, tag text);
-- {"tag": t, "spawn": [payload…], "siblings": [payload…], "uncles": [payload…], "fail": true}
create procedure app.run(payload jsonb) language plpgsql as $$
declare
  v_one jsonb;
  v_parent_id bigint;
begin
  insert into app.ran (tag) values (payload ->> 'tag');
  select t.parent_id into v_parent_id from worker.tasks t where t.id = worker.current_task_id();
  for v_one in select jsonb_array_elements(payload -> 'spawn') loop
    call worker.spawn(coalesce(v_one ->> 'command', 'run'), v_one, p_priority => (v_one ->> 'priority')::bigint);
  end loop;
  for v_one in select jsonb_array_elements(payload -> 'siblings') loop
    call worker.spawn('run', v_one, p_parent_id => v_parent_id);
  end loop;
  for v_one in select jsonb_array_elements(payload -> 'uncles') loop
    perform worker.enqueue('run', v_one);
  end loop;
  if payload ? 'siblings failed' then
    insert into app.ran (tag) values ('failed siblings: ' || worker.has_failed_siblings(worker.current_task_id()));
  end if;
  if payload ? 'fail' then
    raise exception 'failed';
  end if;
end $$;
create view app.tree as
  select id, parent_id as parent, payload ->> 'tag' as tag, state, split_part(error, E'\n', 1) as error
    from worker.tasks order by id;
create function app.log() returns text language sql as $$ select string_agg(tag, ' ' order by i) from app.ran $$;
select worker.register_command('run', 'q', 'app.run'), worker.register_command('nest', 'q', 'app.run', p_allow_nested => true),
       worker.register_command('far', 'q', p_kind => 'http', p_url => 'http://127.0.0.1/');
select worker.has_pending_children(null), worker.has_pending_children(1), worker.has_failed_siblings(1),
       worker.complete_parent_if_ready(1);

-- A tree, its uncle, the next tree: strictly one after the other.
select worker.enqueue('run', '{"tag": "A", "spawn": [{"tag": "a1"}, {"tag": "a2", "siblings": [{"tag": "a3"}]}], "uncles": [{"tag": "uncle of A"}]}'),
       worker.enqueue('run', '{"tag": "B", "spawn": [{"tag": "b1"}]}');
call worker.process_tasks(p_queue => 'q');
select * from app.tree;
select worker.has_pending_children(1), worker.complete_parent_if_ready(1);
call worker.process_tasks(2, p_queue => 'q');
select * from app.tree where id = 1 or parent = 1;
select worker.has_pending_children(1);
select worker.drain();
select app.log();
select state, count(*) from worker.tasks group by 1;
select worker.has_pending_children(1), worker.complete_parent_if_ready(1);
truncate app.ran;

-- A failed child fails its parent when all have ended, and does not stop the others.
select worker.enqueue('run', '{"tag": "F", "spawn": [{"tag": "f1", "fail": true}, {"tag": "f2", "siblings failed": 1}, {"tag": "f3", "siblings failed": 1}]}') as f;
call worker.process_tasks(p_queue => 'q');
call worker.process_tasks(2, p_queue => 'q');
select * from app.tree where tag ~ '^[fF]';
select worker.drain();
select * from app.tree where tag ~ '^[fF]';
select app.log();
select e.context from queues.error e join worker.tasks t on t.id = e.task_id where t.payload ->> 'tag' = 'F';
truncate app.ran;

-- Grandchildren are refused, by the trigger of that name.
select worker.enqueue('run', '{"tag": "G", "spawn": [{"tag": "g1", "spawn": [{"tag": "g11"}]}]}') as g;
select worker.drain();
select * from app.tree where tag ~ '^[gG]';
select tgname from pg_trigger where tgfoid = 'worker.enforce_no_grandchildren'::regproc;
insert into worker.tasks (command, parent_id) values ('run', 999999);
truncate app.ran;

-- allow_nested, as deep as one likes; a failure at the bottom goes all the way up.
create function app.deep(p_depth int, p_fail boolean) returns jsonb language sql as $$
  with recursive d(n, p) as (
    select p_depth, jsonb_build_object('tag', 'd' || p_depth, 'command', 'nest') || case when p_fail then '{"fail": 1}' else '{}'::jsonb end
    union all
    select n - 1, jsonb_build_object('tag', 'd' || n - 1, 'command', 'nest', 'spawn', jsonb_build_array(p)) from d where n > 1)
  select p from d where n = 1
$$;
select worker.enqueue('nest', app.deep(20, false)) as top, worker.enqueue('nest', app.deep(20, true)) as failing;
select worker.drain();
select payload ->> 'tag' as tag, count(*), array_agg(state order by id) as states, max(split_part(error, E'\n', 1)) as error
  from worker.tasks where command = 'nest' group by 1 order by min(id) limit 2;
select state, count(*) from worker.tasks where command = 'nest' group by 1 order by 1;
select app.log();
truncate app.ran;
-- one commit each, too
select worker.enqueue('nest', app.deep(20, false)) as top;
call worker.process_tasks();
call worker.process_tasks();
select state, count(*) from worker.tasks where command = 'nest' group by 1 order by 1;
truncate app.ran;

-- Nothing under a task that has ended, is unknown, or is being canceled; nothing
-- under nothing.
select worker.spawn_task('run', p_parent_id => 1);
call worker.spawn('run', '{}', 1);
insert into worker.tasks (command, parent_id) values ('run', 1);
select count(*) from worker.enqueue_many('run', array['{}'::jsonb], p_parent_id => 1);
select worker.spawn_task('run', p_parent_id => 999999);
select worker.spawn_task('run');
call worker.spawn('nobody', '{}', 1);

-- From outside: a waiting parent can get more children, a pending one its first. All
-- are counted, also those that end before their parent begins (it does not wait for
-- what is over, but a failure among them is a failure).
select worker.enqueue('run', '{"tag": "O", "spawn": [{"tag": "o1"}]}') as o;
call worker.process_tasks(p_queue => 'q');
insert into worker.tasks (command, payload, parent_id)
  select 'run', '{"tag": "o2"}', id from worker.tasks where payload ->> 'tag' = 'O' returning payload, state;
select worker.drain();
select * from app.tree where tag ~ '^[oO]';
select worker.enqueue('run', '{"tag": "U"}') as u \gset
select worker.spawn_task('run', '{"tag": "u1"}', :u) is not null as spawned;
call worker.process_tasks(p_queue => 'q', p_mode => 'child');
select state from worker.tasks where id = :u;
call worker.process_tasks(p_queue => 'q', p_mode => 'top');
select state, attempt from worker.tasks where id = :u;
select worker.enqueue('run', '{"tag": "V"}') as v \gset
select worker.spawn_task('run', '{"tag": "v1", "fail": 1}', :v) is not null as spawned;
call worker.process_tasks(p_queue => 'q', p_mode => 'child');
call worker.process_tasks(p_queue => 'q', p_mode => 'top');
select * from app.tree where tag ~ '^[vV]';
select app.log();
truncate app.ran;

-- A retried parent does not wait for children of an attempt that is over: those that
-- nobody has begun are canceled. (Its handler is elsewhere; it spawns from outside and then fails.)
update worker.command_registry set max_attempts = 3, backoff_initial = '0' where command = 'far';
select worker.enqueue('far', '{"tag": "R"}') as r \gset
create procedure app.far(p_task bigint, p_outcome text) language plpgsql as $$
declare
  v_lease bigint;
begin
  select lease_id into v_lease from queues.exchange('q', 1, p_lanes => '{2,3}') where task_id = p_task;
  if v_lease is null then
    raise exception 'not handed out';
  end if;
  perform worker.spawn_task('run', jsonb_build_object('tag', 'r' || p_outcome) || case p_outcome when 'failed' then '{"fail": 1}'::jsonb else '{}' end, p_task);
  perform queues.exchange('q', 0, null, null, null, array[v_lease], array[p_task], array[p_outcome]);
end $$;
call app.far(:r, 'failed');
select * from app.tree where tag ~ '^[rR]';
call worker.process_tasks(p_queue => 'q', p_mode => 'child');
select * from app.tree where tag ~ '^[rR]';
call app.far(:r, 'completed');
select * from app.tree where tag ~ '^[rR]';
call worker.process_tasks(p_queue => 'q', p_mode => 'child');
select * from app.tree where tag ~ '^[rR]';
-- when it fails for good, what it had spawned and nobody has begun is canceled
update worker.command_registry set max_attempts = 1 where command = 'far';
select worker.enqueue('far', '{"tag": "S"}') as s \gset
select worker.spawn_task('nest', '{"tag": "s0"}', :s) as s0 \gset
select worker.spawn_task('run', '{"tag": "s00"}', :s0), worker.spawn_task('run', '{"tag": "s1"}', :s, 5) is not null;
call app.far(:s, 'failed');
select tag, state, error from app.tree where tag ~ '^[sS]' or parent = :s order by id;
truncate app.ran;

-- A child that is scheduled for later: nothing spins, and the parent waits for it.
set worker.fake_now = '2030-01-01 12:00:00+00';
select worker.enqueue('run', '{"tag": "L"}') as l \gset
select worker.enqueue('run', '{"tag": "l1"}', p_scheduled_at => '2030-01-01 13:00:00+00', p_parent_id => :l) is not null;
call worker.process_tasks(p_queue => 'q');
call worker.process_tasks(p_queue => 'q');
select worker.drain();
select tag, state from app.tree where tag ~ '^[lL]';
select worker.explain_task(:l);
set worker.fake_now = '2030-01-01 13:00:00+00';
call worker.process_tasks(p_queue => 'q');
select tag, state from app.tree where tag ~ '^[lL]';
reset worker.fake_now;

-- Cancel of a waiting parent: pending descendants go with it, at any depth, and it
-- ends canceled; of a pending child: the parent is told.
select worker.enqueue('nest', '{"tag": "C", "spawn": [{"command": "nest", "tag": "c1", "spawn": [{"tag": "c11"}, {"tag": "c12"}]}, {"tag": "c2", "priority": 9}, {"command": "far", "tag": "c3"}]}') as c \gset
call worker.process_tasks(p_queue => 'q');
call worker.process_tasks(2, p_queue => 'q');
select * from app.tree where tag ~ '^[cC]';
select worker.cancel(:c, 'enough'), worker.cancel(:c);
select tag, state, error from app.tree where tag ~ '^[cC]';
select worker.enqueue('run', '{"tag": "D", "spawn": [{"tag": "D1"}, {"tag": "D2"}]}') as d \gset
call worker.process_tasks(p_queue => 'q');
select worker.cancel(id) from app.tree where tag = 'D1';
select tag, state from app.tree where tag ~ '^D';
select worker.cancel(id) from app.tree where tag = 'D2';
select tag, state from app.tree where tag ~ '^D';
select worker.cancel(:d), worker.cancel(999999);
-- a canceled pending task with children of its own
select worker.enqueue('run', '{"tag": "E"}') as e \gset
select count(*) from worker.enqueue_many('run', array_fill('{"tag": "E1"}'::jsonb, array[250]), p_parent_id => :e);
select worker.cancel(:e);
select tag, state, error, count(*) from app.tree where tag ~ '^E' group by 1, 2, 3 order by 1;

-- A batch of top-level tasks is handed back when one of them waits.
truncate app.ran;
select count(worker.enqueue('run', jsonb_build_object('tag', 'm' || i) || case when i = 25 then '{"spawn": [{"tag": "m25.1"}]}'::jsonb else '{}' end))
  from generate_series(1, 40) i;
call worker.process_tasks(p_queue => 'q');
select count(*) as ran from app.ran;
select state, attempt, count(*) from worker.tasks where payload ->> 'tag' ~ '^m' group by 1, 2 order by 1;
select count(*) as open from queues.lease_open;
call worker.process_tasks(p_queue => 'q');
select tag from app.ran where i > (select min(i) + 23 from app.ran) order by i limit 4;
select state, attempt, count(*) from worker.tasks where payload ->> 'tag' ~ '^m' group by 1, 2 order by 1;

-- No net was needed, and nothing is left over.
select queues.maintain();
select * from worker.rescue;
select count(*) as waiting, (select count(*) from queues.lease_open) as open, (select count(*) from queues.parent_check) as checks,
       (select count(*) from queues.cancel_request) as requests from queues.waiting;
