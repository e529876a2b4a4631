-- Cancel beyond the single pending task: those that run elsewhere, trees, many at once,
-- and what was canceled in the meantime.
\set VERBOSITY terse
\pset null '-'
set client_min_messages = warning;
set worker.fake_now = '2030-01-01 12:00:00+00';
create schema app;
create table app.ran (i serial, tag text);
create procedure app.handle(payload jsonb) language plpgsql as $$
begin
  insert into app.ran (tag) values (payload ->> 'tag');
  if payload ? 'fail' then raise exception 'failed'; end if;
end $$;
select worker.register_command('run', 'q', 'app.handle', p_max_attempts => 3),
       worker.register_command('far', 'f', p_kind => 'http', p_url => 'http://127.0.0.1/', p_max_attempts => 3),
       worker.register_command('nest', 'f', p_kind => 'http', p_url => 'http://127.0.0.1/', p_allow_nested => true);
update worker.queue_registry set top_concurrency = null where queue in ('f', 'q');
create view app.tree as
  select id, parent_id as parent, payload ->> 'tag' as tag, state, attempt, split_part(error, e'\n', 1) as error from worker.tasks order by id;
create function app.claim(p_worker bigint, p_want int default 1) returns table (lease bigint, task bigint) language sql as $$
  select lease_id, task_id from queues.exchange('f', p_want, p_worker, p_lanes => '{2,3}') where event = 'claimed' $$;
create function app.end(p_lease bigint, p_task bigint, p_outcome text) returns text language sql as $$
  select event from queues.exchange('f', 0, p_lease_ids => array[p_lease], p_task_ids => array[p_task], p_outcomes => array[p_outcome]) $$;
select worker.register_worker('w1') as w1, worker.register_worker('w2') as w2 \gset

-- A worker learns what of its own to stop, and goes on being told until it has.
select count(*) from worker.enqueue_many('far', array['{"tag": "a"}', '{"tag": "b"}', '{"tag": "c"}']::jsonb[]);
select * from app.claim(:w1, 2);
select * from app.claim(:w2, 1);
select * from worker.cancel_requests(:w1);
select worker.cancel(2, 'too late'), worker.cancel(2) as again, worker.cancel(3);
select * from worker.cancel_requests(:w1);
select * from worker.cancel_requests(:w2);
select * from worker.cancel_requests(99);
-- However it ends, it is never tried again: canceled, or completed if it succeeded.
select app.end(1, 2, 'failed'), app.end(2, 3, 'completed');
select * from app.tree;
select count(*) as requests from queues.cancel_request;
select * from worker.cancel_requests(:w1);
select app.end(1, 1, 'completed');
select count(*) from worker.enqueue_many('far', array_fill('{"tag": "d"}'::jsonb, '{5}'));
select array_agg(task) from app.claim(:w1, 5);
select bool_and(worker.cancel(i)) from generate_series(4, 8) i;
select count(*) from worker.cancel_requests(:w1);
select app.end(3, 4, 'snoozed'), app.end(3, 5, 'released'), app.end(3, 6, 'fatal'), app.end(3, 7, 'canceled');
select worker.stop_worker(:w1);
select state, attempt, count(*) from app.tree where tag = 'd' group by 1, 2;
select (select count(*) from queues.ready) as ready, (select count(*) from queues.timer) as timers, (select count(*) from queues.cancel_request) as requests;
select worker.register_worker('w1') as w1 \gset
-- One that was lost with its worker.
select worker.enqueue('far', '{"tag": "e"}') as e \gset
select * from app.claim(:w1);
select worker.cancel(:e, 'lost anyway');
select queues.recover_worker(:w1, worker.now());
select state, error from app.tree where id = :e;

-- Between two attempts it is pending: canceled at once, with its attempts.
select worker.enqueue('far', '{"tag": "f"}') as f \gset
select lease as l from app.claim(:w1) \gset
select app.end(:l, :f, 'failed');
select worker.cancel(:f);
select state, attempt from app.tree where id = :f;
select count(*) as timers from queues.timer;

-- Trees: what runs below is asked as well, what is pending ends at once.
select worker.enqueue('nest', '{"tag": "T"}') as t \gset
select lease as lt from app.claim(:w1) \gset
select worker.spawn_task('nest', '{"tag": "T1"}', :t) as t1, worker.spawn_task('far', '{"tag": "T2"}', :t) as t2 \gset
select worker.spawn_task('far', '{"tag": "T3"}', :t) as t3 \gset
select lease as l1 from app.claim(:w2) \gset
select lease as l2 from app.claim(:w2) \gset
select worker.spawn_task('far', '{"tag": "T11"}', :t1) is not null as grandchild;
select worker.cancel(:t, 'all of it');
select * from app.tree where tag ~ '^T';
select task_id = :t as it, reason from worker.cancel_requests(:w1);
select t.payload ->> 'tag' as tag, reason from worker.cancel_requests(:w2) r join queues.task t using (task_id) order by 1;
select app.end(:l1, :t1, 'failed'), app.end(:l2, :t2, 'completed'), app.end(:lt, :t, 'canceled');
select tag, state, error from app.tree where tag ~ '^T';

-- A child whose parent was canceled or has ended is not handed out: here it was being
-- put back when that happened.
select worker.enqueue('far', '{"tag": "U"}') as u \gset
select lease as lu from app.claim(:w1) \gset
select worker.spawn_task('far', '{"tag": "U1"}', :u) as u1 \gset
select lease as l1 from app.claim(:w2) \gset
select app.end(:lu, :u, 'fatal');
select tag, state from app.tree where tag ~ '^U';
-- its worker may stop it
select task_id = :u1 as it, reason from worker.cancel_requests(:w2);
select app.end(:l1, :u1, 'failed');
select tag, state, error from app.tree where tag ~ '^U';
select worker.enqueue('far', '{"tag": "V"}') as v \gset
select lease as lv from app.claim(:w1) \gset
select worker.spawn_task('far', '{"tag": "V1"}', :v) as v1 \gset
create temp table hidden as select * from queues.ready where parent_id = :v;
delete from queues.ready where parent_id = :v;
select app.end(:lv, :v, 'fatal');
insert into queues.ready select * from hidden;
select worker.enqueue('far', '{"tag": "next"}') as next \gset
-- the next one comes in its stead
select task = :next as next from app.claim(:w2);
select tag, state, error from app.tree where tag ~ '^(V|next)';
select queues.exchange('f', 0, p_done => array(select lease_id from queues.lease_open));

-- nor by hand
select worker.enqueue('email', '{"tag": "D"}') as d \gset
select worker.spawn_task('email', '{"tag": "D1"}', :d) as d1 \gset
create temp table hidden2 as select * from queues.ready where parent_id = :d;
delete from queues.ready where parent_id = :d;
select worker.cancel(:d);
insert into queues.ready select * from hidden2;
select worker.enqueue('email', '{"tag": "D2"}') as d2 \gset
select task_id = :d2 as next from queues.dequeue_next_available_task();
select tag, state, error from app.tree where tag ~ '^D';
select queues.complete_task(:d2);

-- A command that has become SQL: what was enqueued before is handed on.
select worker.enqueue('far', '{"tag": "moved"}') as moved \gset
select worker.register_command('far', 'f', 'app.handle');
select worker.enqueue('nest', '{"tag": "stays"}') as stays \gset
select task = :stays as stays from app.claim(:w2, 5);
select tag, state, attempt from app.tree where tag in ('moved', 'stays');
call worker.process_tasks(p_queue => 'f');
select tag, state, attempt from app.tree where tag in ('moved', 'stays');
select worker.register_command('far', 'f', p_kind => 'http', p_url => 'http://127.0.0.1/', p_max_attempts => 3);
select queues.exchange('f', 0, p_done => array(select lease_id from queues.lease_open));

-- A parent that nobody could decide about is found by the next who gets nothing to do.
insert into queues.parent_check (parent_id) values (:stays);
select * from app.claim(:w2);
select count(*) from queues.parent_check;

-- Many at once: pending ones and those between attempts, of this queue, this command,
-- enqueued before; not those that run or wait.
select worker.cancel_all();
select count(*) from worker.enqueue_many('run', array(select '{"tag": "many"}'::jsonb from generate_series(1, 250)));
select count(*) from worker.enqueue_many('run', array(select '{"tag": "later"}'::jsonb from generate_series(1, 250)), p_scheduled_at => '2030-06-01');
select worker.enqueue('run', '{"tag": "retrying", "fail": 1}', p_priority => -1) as retrying \gset
call worker.process_tasks(1, p_queue => 'q');
select worker.enqueue('far', '{"tag": "other queue"}') is not null, worker.enqueue('far', '{"tag": "running"}', p_priority => -5) is not null;
select count(*) from app.claim(:w2);
set worker.fake_now = '2030-01-01 12:05:00+00';
select worker.enqueue('run', '{"tag": "keyed"}', p_dedup_key => 'k') as keyed \gset
select worker.cancel_all('nowhere');
select worker.cancel_all('q', 'far') as none, worker.cancel_all('q', 'run', '2029-01-01') as too_early;
select worker.cancel_all('q', p_before => '2030-01-01 12:05:00+00');
select tag, state, attempt, count(*), min(error) as error from app.tree where tag ~ 'many|later|retry|other|running|keyed' group by 1, 2, 3 order by 1;
select worker.cancel_all(p_command => 'run') as keyed, worker.cancel_all() as other, worker.cancel_all() as none;
select count(*) from queues.pending_key;
select tag, state from app.tree where state in ('pending', 'processing');
select queues.exchange('f', 0, p_done => array(select lease_id from queues.lease_open));
-- A bundle of which only some are meant is cut.
select count(*) from worker.enqueue_many('run', array_fill('{"tag": "cut"}'::jsonb, '{5}'));
select min(id) as first from worker.tasks where payload ->> 'tag' = 'cut' \gset
select canceled from queues.cancel_page((select queue_id from worker.queue_registry where queue = 'q'), null, null, :first + 2, 10, '{"at": "ready"}');
select id - :first as nth, state from worker.tasks where payload ->> 'tag' = 'cut' order by 1;
select task_ids[1] - :first as nth, first_id - :first as "first", cardinality(task_ids) as n from queues.ready;
-- What waits is left; its pending children are not, and then it ends.
select worker.cancel_all();
select worker.enqueue('nest', '{"tag": "W"}') as w \gset
select lease as lw from app.claim(:w1) \gset
select worker.spawn_task('far', '{"tag": "W1"}', :w) is not null, worker.spawn_task('far', '{"tag": "W2"}', :w) is not null;
select app.end(:lw, :w, 'completed');
select worker.cancel_all('f');
select tag, state from app.tree where tag ~ '^W';
-- A pending parent takes its children along, once counted.
select worker.enqueue('far', '{"tag": "X"}') as x \gset
select worker.spawn_task('far', '{"tag": "X1"}', :x) is not null;
select worker.cancel_all('f', p_before => '2030-01-02');
select tag, state, error from app.tree where tag ~ '^X';
-- With a commit after each page.
select count(*) from worker.enqueue_many('run', array(select '{"tag": "paged"}'::jsonb from generate_series(1, 300)));
select count(worker.enqueue('run', '{"tag": "paged"}')) from generate_series(1, 250);
select worker.enqueue('run', '{"tag": "paged"}', p_scheduled_at => '2031-01-01') is not null;
call worker.cancel_all_in_pages('q');
select c.state, count(*), count(distinct c.xmin::text) > 1 as several_commits from app.tree t join queues.task_completed c on c.task_id = t.id where tag = 'paged' group by 1;
call worker.cancel_all_in_pages();
select count(*) as ran from app.ran where tag in ('many', 'later', 'keyed', 'paged', 'cut');
select (select count(*) from queues.ready) as ready, (select count(*) from queues.timer) as timers, (select count(*) from worker.rescue) as rescued;
