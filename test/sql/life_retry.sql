-- worker.retry and the dead letters: ended tasks put back or thrown away.
\set VERBOSITY terse
\pset null '-'
set client_min_messages = warning;
set worker.fake_now = '2030-01-01 12:00:00+00';
create schema app;
create table app.broken (tag text);
create table app.ran (i serial, tag text);
create procedure app.handle(payload jsonb) language plpgsql as $$
begin
  insert into app.ran (tag) values (payload ->> 'tag');
  for i in 1..coalesce((payload ->> 'kids')::int, 0) loop
    perform worker.spawn_task('run', jsonb_build_object('tag', payload ->> 'tag' || i));
  end loop;
  if exists (select from app.broken b where b.tag = payload ->> 'tag') then
    raise exception 'broken: %', payload ->> 'tag';
  end if;
end $$;
select worker.register_command('run', 'q', 'app.handle', p_max_attempts => 2, p_backoff_initial => '0');
select worker.register_command('far', 'f', p_kind => 'http', p_url => 'http://127.0.0.1/');
update worker.queue_registry set top_concurrency = null where queue in ('f', 'q');
create view app.tree as
  select id, parent_id as parent, payload ->> 'tag' as tag, state, attempt, split_part(error, e'\n', 1) as error from worker.tasks order by id;

-- A failed task gets all its attempts again; the hand-outs are counted on, and all that
-- was before stays to be seen.
insert into app.broken values ('a');
select worker.enqueue('run', '{"tag": "a"}') as a \gset
select worker.status(:a);
select worker.retry(:a) as pending;
select worker.drain();
select worker.status(:a), t.* from app.tree t;
set worker.fake_now = '2030-01-01 13:00:00+00';
select worker.retry(:a), worker.retry(:a) as again;
select worker.status(:a), t.* from app.tree t;
select worker.drain();
select worker.status(:a), t.* from app.tree t;
truncate app.broken;
select worker.retry(:a);
select worker.drain();
select worker.status(:a), t.* from app.tree t;
select worker.retry(:a) as completed, worker.retry(4711) as unknown, worker.retry(null) as none;
select attempt, outcome from queues.task_lease where task_id = :a order by attempt;
select attempt, created_at, split_part(error_message, e'\n', 1) as error from queues.error where task_id = :a order by error_id;
select ended_at, state, attempt, retried_at from queues.past_end where task_id = :a order by 1;
select worker.status(4711);

-- A canceled one, with what had been merged into it.
select worker.enqueue('run', '{"tag": "b"}', p_dedup_key => 'k') as b \gset
select worker.enqueue('run', '{"tag": "merged"}', p_dedup_key => 'k', p_merge => 'replace') = :b as merged;
select worker.cancel(:b, 'changed my mind');
select * from app.tree where id = :b;
select worker.retry(:b);
-- it has its key again
select worker.enqueue('run', '{"tag": "c"}', p_dedup_key => 'k') = :b as kept;
select worker.drain();
select * from app.tree where id = :b;
select state, reason, attempt from queues.past_end where task_id = :b;
-- a twin has the key by now: both run
select worker.enqueue('run', '{"tag": "d"}', p_dedup_key => 'k') as d \gset
select worker.cancel(:d);
select worker.enqueue('run', '{"tag": "twin"}', p_dedup_key => 'k') as twin \gset
select worker.retry(:d);
select worker.drain();
select tag, state from app.tree where id in (:d, :twin);
-- not before its time
select worker.enqueue('run', '{"tag": "future"}', p_scheduled_at => worker.now() + interval '1 hour') as future \gset
select worker.cancel(:future), worker.retry(:future);
select worker.drain();
select run_at - worker.now() as due_in from queues.timer;
select worker.cancel(:future);
-- running: asked to stop, ended, put back
select worker.enqueue('far', '{"tag": "e"}') as e \gset
select lease_id as l from queues.exchange('f', 1) \gset
select worker.cancel(:e, 'stop'), worker.retry(:e) as running;
select event, task_id from queues.exchange('f', 0, p_lease_ids => array[:l], p_task_ids => array[:e], p_outcomes => '{failed}');
select state, attempt, error from app.tree where id = :e;
select worker.retry(:e);
select count(*) as requests from queues.cancel_request;
select task_id = :e as it, attempt from queues.exchange('f', 1);
select attempt, outcome, reason from queues.attempt_end where task_id = :e;
select queues.complete_task(:e);

-- While its old lease is still open for others: the lease is over for this one, and
-- nobody who holds it can end the new attempt.
select count(*) from worker.enqueue_many('far', array['{"tag": "x"}', '{"tag": "y"}']::jsonb[]);
select lease_id as l, task_id as x from queues.exchange('f', 2) order by task_id limit 1 \gset
select event from queues.exchange('f', 0, p_lease_ids => array[:l], p_task_ids => array[:x], p_outcomes => '{failed}');
select worker.retry(:x);
select event, task_id = :x as it from queues.exchange('f', 0, p_lease_ids => array[:l], p_task_ids => array[:x], p_outcomes => '{completed}');
select state from worker.tasks where id = :x;
select event, task_id from queues.exchange('f', 0, p_done => array[:l]);
select tag, state from app.tree where tag in ('x', 'y');
select task_id = :x as it, attempt from queues.exchange('f', 1);
select queues.complete_task(:x);
select tag, state from app.tree where tag in ('x', 'y');

-- Trees. The children of the first run have been answered for: the parent spawns its
-- own, and an old failure is not held against it.
insert into app.broken values ('P2');
select worker.enqueue('run', '{"tag": "P", "kids": 2}') as p \gset
select worker.drain();
select * from app.tree where tag ~ '^P';
truncate app.broken;
-- a child of a parent that has ended is not put back
select worker.retry(id) from app.tree where tag = 'P2';
select worker.retry(:p);
-- nor one of an earlier life of its parent
select worker.retry(id) from app.tree where tag = 'P2';
select worker.drain();
select * from app.tree where tag ~ '^P';
-- A failed child of a parent that waits is: the parent then completes.
insert into app.broken values ('Q1');
select worker.enqueue('run', '{"tag": "Q", "kids": 1}') as q \gset
call worker.process_tasks(p_queue => 'q');
select worker.spawn_task('far', '{"tag": "Q2"}', :q) as q2 \gset
call worker.process_tasks(p_queue => 'q');
call worker.process_tasks(p_queue => 'q');
select tag, state, attempt from app.tree where tag ~ '^Q\d?$';
truncate app.broken;
select worker.retry(id) from app.tree where tag = 'Q1';
select tag, state, attempt from app.tree where tag ~ '^Q\d?$';
call worker.process_tasks(p_queue => 'q', p_mode => 'child');
select worker.cancel(:q2);
select tag, state, attempt from app.tree where tag ~ '^Q\d?$';
-- of a parent that is being canceled: no
insert into app.broken values ('R1');
select worker.enqueue('run', '{"tag": "R", "kids": 1}') as r \gset
call worker.process_tasks(p_queue => 'q');
select worker.spawn_task('far', '{"tag": "R2"}', :r) as r2 \gset
call worker.process_tasks(p_queue => 'q');
call worker.process_tasks(p_queue => 'q');
select lease_id as l from queues.exchange('q', 1, p_lanes => '{3}') \gset
select worker.cancel(:r, 'enough');
select worker.retry(id) from app.tree where tag = 'R1';
select tag, state from app.tree where tag ~ '^R\d?$';
select event from queues.exchange('q', 0, p_done => array[:l]);
select tag, state, error from app.tree where tag ~ '^R\d?$';
truncate app.broken;

-- What nothing can run is not put back.
select worker.register_command('gone', 'q', 'app.handle');
insert into app.broken values ('gone');
select worker.enqueue('gone', '{"tag": "gone"}') as gone \gset
select worker.drain();
delete from worker.command_registry where command = 'gone';
select worker.retry(:gone);
select worker.discard(:gone);
truncate app.broken;

-- Dead letters.
insert into app.broken values ('m1'), ('m2'), ('m3'), ('m4'), ('T1');
update worker.command_registry set max_attempts = 1;
set worker.fake_now = '2030-02-01 12:00:00+00';
select count(worker.enqueue('run', jsonb_build_object('tag', 'm' || i))) from generate_series(1, 2) i;
select worker.drain();
set worker.fake_now = '2030-02-02 12:00:00+00';
select count(worker.enqueue('run', jsonb_build_object('tag', 'm' || i))) from generate_series(3, 4) i;
select worker.enqueue('run', '{"tag": "T", "kids": 2}') as t \gset
select worker.drain();
select command, queue, payload, parent_id = :t as child, failed_at, attempts, split_part(error, e'\n', 1) as error
  from worker.dead_letters where failed_at > '2030-02-01' order by id;
-- first looked at, then done; top-level ones, what failed below goes with them
select worker.retry_failed(p_dry_run => true) as "all", worker.retry_failed(p_queue => 'q', p_dry_run => true) as q,
       worker.retry_failed(p_queue => 'f', p_dry_run => true) as f, worker.retry_failed(p_command => 'far', p_dry_run => true) as far,
       worker.retry_failed(p_before => '2030-02-02', p_dry_run => true) as earlier,
       worker.retry_failed(p_error_like => '%m_%', p_dry_run => true) as like_m, worker.retry_failed(p_limit => 3, p_dry_run => true) as three;
select worker.retry_failed('nowhere');
select worker.retry_failed(p_limit => 0);
select count(*) from worker.tasks where state = 'pending';
delete from app.broken where tag = 'm1';
select worker.retry_failed(p_queue => 'q', p_error_like => 'broken: m%', p_before => '2030-02-02');
select worker.drain();
select tag, state, attempt from app.tree where tag ~ '^m';
select worker.discard_failed(p_error_like => 'broken: m%', p_dry_run => true) as dry, worker.discard_failed(p_error_like => 'broken: m%', p_limit => 2) as done;
select tag, state from app.tree where tag ~ '^m';
-- one by one; only what failed, and the whole tree
select worker.discard(id) as child from app.tree where tag = 'T1';
select worker.discard(:a) as completed, worker.discard(4711) as unknown, worker.discard(:t) as failed, worker.discard(:t) as again;
select count(*) as left_of_tree from queues.task where task_id >= :t;
-- a tree of which something runs stays
insert into app.broken values ('U');
select worker.enqueue('far', '{"tag": "U"}') as u \gset
select worker.spawn_task('far', '{"tag": "U1"}', :u) as u1 \gset
select lease_id as l from queues.exchange('f', 2) where task_id = :u \gset
select event from queues.exchange('f', 0, p_lease_ids => array[:l], p_task_ids => array[:u], p_outcomes => '{fatal}');
select tag, state from app.tree where tag ~ '^U';
select worker.discard(:u) as busy, worker.discard_failed('f', p_dry_run => true) as dry;
select queues.complete_task(:u1);
select worker.discard_failed('f', p_dry_run => true) as dry, worker.discard_failed('f') as done;
-- nothing of what was discarded is left
select (select count(*) from queues.task_completed c where not exists (select from queues.task t where t.task_id = c.task_id)) as ends,
       (select count(*) from queues.attempt_end c where not exists (select from queues.task t where t.task_id = c.task_id)) as attempts,
       (select count(*) from queues.past_end c where not exists (select from queues.task t where t.task_id = c.task_id)) as past,
       (select count(*) from queues.error c where not exists (select from queues.task t where t.task_id = c.task_id)) as errors;
-- Listed by the index of what did not complete, not by a walk over all that did.
create function app.plan(p_query text) returns setof text language plpgsql as $$
begin
  return query execute 'explain (costs off) ' || p_query;
end $$;
set enable_seqscan = off;
select count(*) > 0 as uses_index from app.plan('select id from worker.dead_letters where queue = ''q'' order by id limit 1') p(line) where line ~ 'task_completed_failed_idx';
reset enable_seqscan;
-- Retention takes the past as well.
set worker.fake_now = '2031-01-01 12:00:00+00';
select queues.remove_expired() > 0 as removed;
select count(*) from queues.past_end;
