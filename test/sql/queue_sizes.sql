-- Bundles of all sizes, single tasks and keyed ones in one line, claimed in batches of
-- all sizes: every task once, in the order of priority, time and id, with its own
-- payload, and the bounds of each lease hold.
\set VERBOSITY terse
set worker.fake_now = '2030-01-01 12:00:00+00';
create table seen (n bigint generated always as identity, task_id bigint, lease_id bigint, payload jsonb);

create procedure fill(p_times int) language plpgsql as $$
declare
  v_at timestamptz;
  v_payloads jsonb[];
begin
  for i in 1..p_times loop
    v_at := '2030-01-01 11:00:00+00'::timestamptz + i % 3 * interval '1 s';
    if i % 7 = 0 then
      perform worker.enqueue('sms', '{"one": true}', p_priority => i % 2, p_scheduled_at => v_at,
                             p_dedup_key => i::text);
    elsif i % 4 = 0 then
      perform worker.enqueue('sms', '{"one": true}', p_priority => i % 2, p_scheduled_at => v_at);
    else
      v_payloads := array(select jsonb_build_object('n', n)
                            from generate_series(1, (i * 37) % 230 + 1) n);
      perform worker.enqueue_many('email', v_payloads, i % 2, v_at);
    end if;
    if i % 20 = 0 then
      perform queues.rotate_queue('default');
    end if;
  end loop;
end
$$;

create procedure drain() language plpgsql as $$
declare
  v_done bigint[];
  v_i int := 0;
begin
  loop
    v_i := v_i + 1;
    insert into seen (task_id, lease_id, payload)
      select x.task_id, x.lease_id, x.payload
        from queues.exchange('default', case v_i % 5 when 0 then 1 when 1 then 33 when 2 then 100
                                                     when 3 then 333 else 500 end,
                             null, 1, v_done) x;
    exit when not found;
    v_done := array(select distinct s.lease_id from seen s
                      join queues.lease_open o using (lease_id));
  end loop;
end
$$;

call fill(60);
select count(*) from queues.task;
call drain();
select count(*), count(distinct task_id) from seen;
-- Parts of bundles that were cut do not lose their place.
select count(*) as out_of_order
  from (select (t.priority, t.scheduled_at, t.task_id)
                 < lag((t.priority, t.scheduled_at, t.task_id)) over (order by s.n) as wrong
          from seen s join queues.task t using (task_id)) x where x.wrong;
select count(*) as wrong_payload from seen s join queues.task t using (task_id)
 where s.payload <> t.payload;
select count(*) as out_of_bounds from queues.lease l cross join lateral unnest(l.task_ids) u(id)
 where u.id not between l.from_id and l.to_id;
select state, count(*) from worker.tasks group by state;
select count(*) from queues.ready;

-- Neighbours in the line that are none by id.
truncate seen;
select count(*) from worker.enqueue_many('email', array_fill('{}'::jsonb, '{100}'), 0, '2030-01-01 11:00:02+00');
select count(*) from worker.enqueue_many('email', array_fill('{}'::jsonb, '{100}'), 0, '2030-01-01 11:00:04+00');
select count(*) from worker.enqueue_many('email', array_fill('{}'::jsonb, '{100}'), 0, '2030-01-01 11:00:03+00');
select count(*) from worker.enqueue_many('email', array_fill('{}'::jsonb, '{100}'), 0, '2030-01-01 11:00:05+00');
insert into seen (task_id) select x.task_id from queues.exchange('default', 400) x;
select count(*), bool_and(s.before <= t.scheduled_at) as in_order
  from (select s.*, coalesce(lag(t.scheduled_at) over (order by s.n), '-infinity') as before
          from seen s join queues.task t using (task_id)) s
  join queues.task t using (task_id);

-- A large batch from two lines: what is more urgent comes first, from whichever.
create procedure nothing(payload jsonb) language sql as 'select 1';
select from worker.register_command('inside', p_handler => 'public.nothing');
truncate seen;
do $$ begin
  for i in 1..60 loop
    perform worker.enqueue('sms', p_priority => i % 3 * 2), worker.enqueue('inside', p_priority => i % 3 * 2 + 1);
  end loop;
end $$;
insert into seen (task_id) select x.task_id from queues.exchange('default', 110) x;
select string_agg(s.priority || ' ' || s.task_type || ' ' || s.n, ', ' order by s.priority)
  from (select t.priority, t.task_type, count(*) as n from seen s join queues.task t using (task_id) group by 1, 2) s;
select count(*) as out_of_order
  from (select t.priority < lag(t.priority) over (order by s.n) as wrong
          from seen s join queues.task t using (task_id)) x where x.wrong;

-- Single tasks with a gap between their ids, and two of them in each other's place.
select count(*) from queues.exchange('default', 500);
truncate seen;
do $$ begin
  for i in 1..40 loop
    perform worker.enqueue(case i when 30 then 'inside' else 'sms' end, jsonb_build_object('i', i),
                           p_scheduled_at => '2030-01-01 11:00:00+00'::timestamptz
                             + case i when 10 then 20 when 20 then 10 else i end * interval '1 s');
  end loop;
end $$;
insert into seen (task_id, payload)
  select x.task_id, x.payload from queues.exchange('default', 100, p_lanes => '{2}') x;
select string_agg(s.payload ->> 'i', ' ' order by s.n), bool_and(s.payload = t.payload) as its_own
  from seen s join queues.task t using (task_id);
