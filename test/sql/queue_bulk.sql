-- Bulk: bundles, batches and the exchange of finished tasks for new ones.
\set VERBOSITY terse
\pset null '-'
set worker.fake_now = '2030-01-01 12:00:00+00';
create view bundles as
  select r.priority, r.run_at, r.first_id, cardinality(r.task_ids) as n, r.attempts, r.solo
    from queues.ready r order by r.priority, r.run_at, r.first_id;
-- A batch, as runs of ids that follow each other.
create function show(p_ids bigint[]) returns text language sql as $$
  select string_agg(case when n = 1 then a::text else a || '-' || b end, ' ' order by i)
    from (select min(id) as a, max(id) as b, count(*) as n, min(i) as i
            from (select u.id, u.i, u.id - u.i as run from unnest(p_ids) with ordinality u(id, i)) s
           group by s.run) t
$$;
create function take(p_want int, p_worker_id bigint default null) returns text language sql as $$
  select show(array_agg(task_id order by n)) || ' under ' || string_agg(distinct lease_id::text, ',')
    from (select x.*, row_number() over () as n
            from queues.exchange('default', p_want, p_worker_id) x) s
$$;

-- Ids come back in the order of the payloads, in bundles of a hundred.
create table added as
  select id, i from queues.enqueue_many('email', array(select jsonb_build_object('i', i)
                                                         from generate_series(1, 250) i),
                                        '2030-01-01 11:00:00+00') with ordinality a(id, i);
select show(array_agg(a.id order by a.i)), count(*), bool_and((t.payload ->> 'i')::int = a.i)
  from added a join queues.task t on t.task_id = a.id;
select * from bundles;
select queues.enqueue_many('email', '{}');
select queues.enqueue_many('email', null);

-- A claim takes what it wants and leaves the rest where it was.
select take(30);
select * from bundles;
select take(100);
select * from bundles;
-- Single ones among them keep their place too.
select queues.enqueue('sms', '{}', '2030-01-01 11:00:00+00');
select queues.enqueue('sms', '{}', '2030-01-01 10:59:00+00');
select take(100);
select take(3);
select take(100);
select take(1);

-- Smaller priorities first, over generations and lanes, whatever was first.
select queues.add_task('email', '{}', p_priority => 5);                          -- 253
select queues.add_task('email', '{}', p_priority => 5, p_parent_id => 1);        -- 254
select queues.add_task('db_function', '{}', p_priority => 3);                    -- 255
select queues.rotate_queue('default');
select queues.add_task('email', '{}', p_priority => 4);                          -- 256
select queues.add_task('sms', '{}', p_priority => 5);                            -- 257
select queues.rotate_queue('default');
select queues.add_task('email', '{}', p_priority => -9223372036854775808);       -- 258
select queues.add_task('email', '{}', p_priority => 9223372036854775807);        -- 259
select queues.add_task('db_function', '{}', p_priority => 3, p_parent_id => 1);  -- 260
select queues.add_tasks('email', array_fill('{}'::jsonb, '{3}'), p_priority => 4);  -- 261-263
select task_id, parent_id from queues.exchange('default', 4);
select task_id, parent_id from queues.exchange('default', 100);

-- Children of several parents in one batch stay in order.
select queues.add_task('email', '{}', p_parent_id => p)
  from unnest('{9,3,7,1,8,2}'::bigint[]) p;
select task_id, parent_id from queues.exchange('default', 100);
select parent_ids from queues.lease order by lease_id desc limit 1;

-- COPY: the rows become tasks.
copy queues.staging (task_type, payload, priority, scheduled_at, group_key, headers) from stdin;
email	{"c": 1}	\N	2030-01-01 11:30:00+00	\N	\N
email	{"c": 2}	\N	2030-01-01 11:30:00+00	\N	\N
email	{"c": 3}	7	2030-01-01 11:30:00+00	g1	{"traceparent": "00-1"}
sms	{"c": 4}	\N	2030-01-02 00:00:00+00	\N	\N
\.
insert into queues.staging (task_type) select 'email' from generate_series(1, 25000);
select count(*), count(distinct t.task_id) from queues.task t where t.payload = '{}' and t.task_id > 269;
select max(n), count(*) from bundles;
select task_type, payload, priority, scheduled_at, group_key, headers from queues.task
 where payload ? 'c' order by payload;
select (select count(*) from queues.exchange('default', 30000)) as got, (select sum(cardinality(task_ids)) from queues.timer) as later;
-- The table itself is emptied when it has grown.
select pg_relation_size('queues.staging') > 1048576 as grown;
select queues.maintain() ->> 'recovered' as recovered;
select pg_relation_size('queues.staging');
