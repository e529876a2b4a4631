-- Dedup: at most one pending task per command and key, and what merges make of it.
\set VERBOSITY terse
\pset null '-'
set client_min_messages = warning;
set worker.fake_now = '2030-01-01 12:00:00+00';
create schema app;
create table app.seen (task bigint, payload jsonb);
create procedure app.see(payload jsonb) language plpgsql as $$
begin
  insert into app.seen values (worker.current_task_id(), payload);
  if payload ? 'fail' then
    raise exception 'no';
  end if;
end $$;
create function app.add(old jsonb, new jsonb) returns jsonb language sql as $$
  select jsonb_build_object('n', (old ->> 'n')::int + (new ->> 'n')::int)
$$;
create function app.nothing(old jsonb, new jsonb) returns jsonb language sql as 'select null::jsonb';
create function app.wrong(old jsonb, new text) returns jsonb language sql as 'select old';
select worker.register_command('see', 'q', 'app.see', p_max_attempts => 2);
select worker.register_command('look', 'q', 'app.see');

-- keep is the default; another command or key is another task.
select worker.enqueue('see', '{"v": 1}', p_dedup_key => 'keep'),
       worker.enqueue('see', '{"v": 2}', p_dedup_key => 'keep'),
       worker.enqueue('see', '{"v": 3}', p_dedup_key => 'other'),
       worker.enqueue('look', '{"v": 4}', p_dedup_key => 'keep');
select id, command, dedup_key, payload from worker.tasks order by id;

-- replace, and union: arrays united, sorted, distinct; objects in turn; scalars replaced.
select worker.enqueue('see', '{"v": 5}', p_dedup_key => 'keep', p_merge => 'replace');
select worker.enqueue('see', '{"ids": [3, 1, 1], "o": {"a": 1, "l": ["x"], "e": {}}, "s": 1, "old": true, "none": []}',
                      p_dedup_key => 'union', p_merge => 'union');
select worker.enqueue('see', '{"ids": [2, 3], "o": {"b": 2, "l": ["a"], "e": {}}, "s": "two", "new": null, "none": []}',
                      p_dedup_key => 'union', p_merge => 'union');
select worker.enqueue('see', '{"o": [1]}', p_dedup_key => 'kinds', p_merge => 'union'),
       worker.enqueue('see', '{"o": {"now": "object"}}', p_dedup_key => 'kinds', p_merge => 'union');
select worker.enqueue('see', '{}', p_dedup_key => 'empty', p_merge => 'union'),
       worker.enqueue('see', '{}', p_dedup_key => 'empty', p_merge => 'union');
select id, dedup_key, payload from worker.tasks where command = 'see' order by id;

-- A function of one's own.
select worker.enqueue('see', '{"n": 1}', p_dedup_key => 'sum', p_merge => 'app.add'),
       worker.enqueue('see', '{"n": 41}', p_dedup_key => 'sum', p_merge => 'app.add');
select worker.enqueue('see', '{}', p_dedup_key => 'sum', p_merge => 'app.nothing');
select worker.enqueue('see', '{}', p_dedup_key => 'sum', p_merge => 'app.wrong');
select worker.enqueue('see', '{}', p_dedup_key => 'sum', p_merge => 'app.missing');
select worker.enqueue('see', '{}', p_dedup_key => 'sum', p_merge => 'unify');
select worker.enqueue('see', '{}', p_dedup_key => 'sum', p_merge => 'pg_catalog.jsonb_concat');
select worker.enqueue('see', '{}', p_dedup_key => 'sum', p_merge => null);
select worker.enqueue('see', '[]', p_dedup_key => 'sum', p_merge => 'replace');
select worker.enqueue('nobody', '{}', p_dedup_key => 'sum');
select payload from worker.tasks where dedup_key = 'sum';

-- A merged payload has the same limit as any other.
set worker.max_payload_bytes = 60;
select worker.enqueue('see', '{"a": "aaaaaaaaaaaaaaaaaaaaaaaa"}', p_dedup_key => 'big', p_merge => 'union');
select worker.enqueue('see', '{"b": "bbbbbbbbbbbbbbbbbbbbbbbb"}', p_dedup_key => 'big', p_merge => 'union');
reset worker.max_payload_bytes;

-- The merge function of a caller has the caller's rights, not those of the schema.
create role worker_dedup_user;
grant usage on schema worker, app to worker_dedup_user;
grant execute on function worker.enqueue, worker.add_task, worker.merge_call, worker.hold_pending,
                          worker.replace_pending, worker.now to worker_dedup_user;
create function app.spy(old jsonb, new jsonb) returns jsonb language plpgsql as $$
begin
  raise warning 'merging as %', current_user;
  perform from app.seen;
  return new;
end $$;
set role worker_dedup_user;
select worker.enqueue('see', '{"n": 1}', p_dedup_key => 'spy', p_merge => 'app.spy');
select worker.enqueue('see', '{"n": 2}', p_dedup_key => 'spy', p_merge => 'app.spy');
select worker.enqueue('see', '{"n": 3}', p_dedup_key => 'spy', p_merge => 'replace');
reset role;

-- The merged payload is what the handler sees, and what is shown while it runs and
-- after it.
call worker.process_tasks(p_queue => 'q');
select s.task, t.dedup_key, s.payload, s.payload = t.payload as shown, t.state
  from app.seen s join worker.tasks t on t.id = s.task order by s.task;
select count(*) as keys_left from queues.pending_key;

-- A task that has been claimed is left alone: a new pending one is made. The lease
-- is that of a session here, as if it ran.
select worker.enqueue('see', '{"first": 1}', p_dedup_key => 'busy'),
       worker.enqueue('see', '{"first": 2}', p_dedup_key => 'busy', p_merge => 'union');
select task_ids, payloads from worker.lease_sql_tasks('q', 1, null, '{0}', false);
select worker.enqueue('see', '{"second": 1}', p_dedup_key => 'busy', p_merge => 'union') as second,
       worker.enqueue('see', '{"second": 2}', p_dedup_key => 'busy', p_merge => 'union') as same;
select id, payload, state, attempt from worker.tasks where dedup_key = 'busy' order by id;
-- The session goes away and the first one comes back: its twin keeps the key, and
-- both run.
select worker.drop_own_leases();
select id, payload, state, attempt from worker.tasks where dedup_key = 'busy' order by id;
select worker.enqueue('see', '{"third": 1}', p_dedup_key => 'busy', p_merge => 'union') as merged_into;
call worker.process_tasks(p_queue => 'q');
select id, payload, state, attempt from worker.tasks where dedup_key = 'busy' order by id;

-- A keyed task that comes back without a twin has its key again: handed back, or
-- waiting for its next attempt.
select worker.enqueue('see', '{"n": 1}', p_dedup_key => 'back'), worker.enqueue('see', '{"n": 2}', p_dedup_key => 'back', p_merge => 'replace');
do $$ declare v record; begin
  v := worker.lease_sql_tasks('q', 1, null, '{0}', false);
  perform worker.release_sql_tasks(v.lease_ids[1], v.task_ids);
end $$;
select worker.enqueue('see', '{"n": 3, "fail": true}', p_dedup_key => 'back', p_merge => 'union');
call worker.process_tasks(p_queue => 'q');
select id, payload, state, attempt, split_part(error, E'\n', 1) as error from worker.tasks where dedup_key = 'back';
select worker.enqueue('see', '{"n": 4}', p_dedup_key => 'back', p_merge => 'replace');
set worker.fake_now = '2030-01-01 12:01:00+00';
call worker.process_tasks(p_queue => 'q');
select id, payload, state, attempt, error from worker.tasks where dedup_key = 'back';

-- debounce moves the time, later and earlier, and also from and to now.
select worker.enqueue('see', '{"n": 1}', p_scheduled_at => '2030-01-01 13:00:00+00', p_dedup_key => 'calm', p_merge => 'debounce');
select worker.enqueue('see', '{"n": 2}', p_scheduled_at => '2030-01-01 14:00:00+00', p_dedup_key => 'calm', p_merge => 'debounce');
select payload, scheduled_at from worker.tasks where dedup_key = 'calm';
set worker.fake_now = '2030-01-01 13:30:00+00';
select worker.drain('q');
select worker.enqueue('see', '{"n": 3}', p_scheduled_at => '2030-01-01 13:45:00+00', p_dedup_key => 'calm', p_merge => 'debounce');
select payload, scheduled_at from worker.tasks where dedup_key = 'calm';
set worker.fake_now = '2030-01-01 13:46:00+00';
select worker.drain('q');
select payload, state from worker.tasks where dedup_key = 'calm';
select worker.enqueue('see', '{"n": 4}', p_dedup_key => 'calm', p_merge => 'debounce');
select worker.enqueue('see', '{"n": 5}', p_scheduled_at => '2030-01-01 15:00:00+00', p_dedup_key => 'calm', p_merge => 'debounce');
select worker.drain('q');
select worker.enqueue('see', '{"n": 6}', p_dedup_key => 'calm', p_merge => 'debounce');
select worker.drain('q');
-- the other merges leave the time as it is
select worker.enqueue('see', '{"n": 7}', p_scheduled_at => '2030-01-01 15:00:00+00', p_dedup_key => 'still');
select worker.enqueue('see', '{"n": 8}', p_dedup_key => 'still', p_merge => 'replace');
select payload, scheduled_at, state from worker.tasks where dedup_key = 'still';

-- The key is free again after a cancel.
select worker.cancel((select id from worker.tasks where dedup_key = 'still'));
select worker.enqueue('see', '{"n": 9}', p_dedup_key => 'still') > 0 as new;
select state, count(*) from worker.tasks where dedup_key = 'still' group by 1 order by 1;
select worker.drain('q');
select count(*) as keys, (select count(*) from queues.lease_open) as leases from queues.pending_key;

-- An insert through the view keeps, too.
insert into worker.tasks (command, payload, dedup_key) values ('see', '{"n": 1}', 'view');
insert into worker.tasks (command, payload, dedup_key) values ('see', '{"n": 2}', 'view');
select payload, state from worker.tasks where dedup_key = 'view';

drop owned by worker_dedup_user;
drop role worker_dedup_user;
