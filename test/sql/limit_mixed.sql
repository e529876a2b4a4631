-- Tasks with and without a limit in one queue, claimed in batches of all sizes: each
-- once, in the order of its command, and none is forgotten behind the others.
\set VERBOSITY terse
set worker.fake_now = '2030-01-01 12:00:00+00';
set client_min_messages = warning;
create table seen (n bigint generated always as identity, task_id bigint, lease_id bigint, payload jsonb);
select from worker.register_command('free', p_kind => 'http', p_url => 'http://x/');
select from worker.register_command('wide', p_kind => 'http', p_url => 'http://x/', p_concurrency_limit => 100000);
select from worker.register_command('tight', p_kind => 'http', p_url => 'http://x/', p_concurrency_limit => 3);

create procedure fill(p_times int) language plpgsql as $$
declare
  v_command text;
begin
  for i in 1..p_times loop
    v_command := case when i % 3 = 0 then 'wide' when i % 20 = 0 then 'tight' else 'free' end;
    if i % 9 = 0 then
      perform worker.enqueue_many(v_command, array(select jsonb_build_object('n', n)
                                                     from generate_series(1, (i * 37) % 130 + 1) n), i % 2);
    else
      perform worker.enqueue(v_command, jsonb_build_object('i', i), i % 2);
    end if;
    if i % 150 = 0 then
      perform queues.rotate_queue('default');
    end if;
  end loop;
end
$$;

create procedure drain(p_sizes int[]) language plpgsql as $$
declare
  v_done bigint[];
  v_i int := 0;
begin
  loop
    v_i := v_i + 1;
    insert into seen (task_id, lease_id, payload)
      select x.task_id, x.lease_id, x.payload from queues.exchange(
               'default', p_sizes[v_i % cardinality(p_sizes) + 1], null, 1, v_done) x;
    exit when not found;
    v_done := array(select distinct o.lease_id from queues.lease_open o);
    continue when v_i % 7 > 0;
    if (select count(*) from queues.lease_open o join queues.lease l using (lease_id)
          cross join lateral unnest(l.task_ids) u(id) join queues.task t on t.task_id = u.id
         where t.task_type = 'tight') > 3 or exists (select from worker.slot_problem) then
      raise exception 'the limit was not kept';
    end if;
  end loop;
end
$$;

create view verdict as
  select count(*) = (select count(*) from queues.task t where t.task_id >= min(x.task_id))
           and count(*) = count(distinct task_id) as each_once,
         count(*) filter (where wrong) as out_of_order, count(*) filter (where payload <> wanted) as wrong_payload
    from (select s.task_id, s.payload, t.payload as wanted, (t.priority, t.scheduled_at, t.task_id)
                   < lag((t.priority, t.scheduled_at, t.task_id))
                       over (partition by t.task_type order by s.n) as wrong
            from seen s join queues.task t using (task_id)) x;

call fill(400);
call drain('{100}');
select * from verdict;
select count(*) from queues.slot_held;
call fill(400);
truncate seen;
call drain('{1,33,100,333,50,500}');
select * from verdict;
select state, count(*) > 1000 as many from worker.tasks group by state;
select count(*) from queues.slot_held;

-- A backlog of others does not keep them from their turn, nor is there one to wait for.
select count(worker.enqueue('tight')) from generate_series(1, 5);
select count(*) from queues.exchange('default', 100);
select count(*) from queues.exchange('default', 0, p_done => array(select lease_id from queues.lease_open));
select count(worker.enqueue('tight')) from generate_series(1, 3);
select count(*) from worker.enqueue_many('free', array_fill('{}'::jsonb, '{20000}'));
truncate seen restart identity;
call drain('{100}');
select min(s.n) filter (where t.task_type = 'tight') < 20000 as in_between
  from seen s join queues.task t using (task_id);

-- A lane from which little was taken keeps its generation in sight, whatever is known of
-- the others.
select count(*) from worker.enqueue_many('free', array_fill('{}'::jsonb, '{10}'));
select count(*) from worker.enqueue_many('wide', array_fill('{}'::jsonb, '{10}'));
select generation from queues.ready where lane = 2 \gset
select queues.rotate_queue('default');
select queues.mark_cursor(1, :generation, 2);
select count(*) from queues.cursor_mark where generation = :generation;
delete from queues.ready where lane = 2;
select queues.generation_has_rows(1, :generation);
select queues.settle(1, false);
select count(*) from queues.exchange('default', 100);
