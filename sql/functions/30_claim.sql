-- Claiming: what is ready is taken out of queues.ready and put under a lease.
--
-- A claim deletes the very rows it locks, so two claims can never get the same
-- task, whatever their snapshots. All else here only saves walking.

-- Timers that are due become ready. p_from bounds the walk over the dead rows
-- of timers that fired before.
create or replace function queues.promote_timers(
  p_queue_id integer, p_from timestamptz, p_now timestamptz, p_most integer)
returns integer
language plpgsql
as $$
declare
  v_rows tid[];
  v_generation integer;
begin
  v_rows := array(select t.ctid from queues.timer t
                   where t.queue_id = p_queue_id and t.run_at >= p_from and t.run_at <= p_now
                   order by t.run_at, t.first_id limit p_most for update skip locked);
  if cardinality(v_rows) = 0 then
    return 0;
  end if;
  v_generation := queues.join_generation(p_queue_id);
  with due as (
    delete from queues.timer where ctid = any(v_rows) returning *)
  insert into queues.ready (queue_id, lane, generation, priority, run_at, first_id, parent_id,
                            attempts, failures, crashes, keyed, solo, task_ids)
    select d.queue_id, d.lane, v_generation, d.priority, d.run_at, d.first_id, d.parent_id,
           d.attempts, d.failures, d.crashes, d.keyed, d.solo, d.task_ids
      from due d where d.task_ids <> '{}';  -- without: an alarm
  return cardinality(v_rows);
end
$$;

-- The floor below which only sweeps look for timers. Not moved by a fake clock:
-- a cell does not roll back with the test that set it.
create or replace function queues.timer_floor(p_queue_id integer) returns timestamptz
language plpgsql stable
as $$
begin
  if coalesce(current_setting('worker.fake_now', true), '') <> '' then
    return '-infinity';
  end if;
  return to_timestamp(
    pg_sequence_last_value(('queues.q' || p_queue_id || '_timer_floor')::regclass) / 1000.0);
end
$$;

create or replace aggregate queues.join_ids(bigint[]) (sfunc = array_cat, stype = bigint[]);

-- Of rows that a claim has locked, in their order: those that fill its wish, and
-- how much of the last one. A row whose dedup key somebody is merging into at
-- this moment is left alone.
create or replace function queues.cut_to_size(
  p_places tid[], p_want integer, out places tid[], out cut_n integer, out ids bigint[])
language plpgsql
as $$
begin
  with counted as (
    select r.ctid as place, r.task_ids, cardinality(r.task_ids) as size,
           sum(cardinality(r.task_ids)) over (order by p.i) - cardinality(r.task_ids) as before
      from unnest(p_places) with ordinality p(place, i)
      join queues.ready r on r.ctid = p.place
     where not r.keyed
        or exists (select from queues.pending_key k where k.task_id = r.first_id
                      for update skip locked)),
  wanted as materialized (
    select c.*, least(c.size, p_want - c.before)::integer as n
      from counted c where c.before < p_want)
  select array_agg(w.place order by w.before), min(w.n) filter (where w.n < w.size),
         (select array_agg(u.id order by v.before, u.i) from wanted v
           cross join lateral unnest(v.task_ids[1:v.n]) with ordinality u(id, i))
    into places, cut_n, ids
    from wanted w;
end
$$;

-- What a claim must know of rows it has locked that are not plain first
-- hand-outs: their counts, parallel to p_ids, and whose children they are. Takes
-- the dedup keys away, which it has locked too, and keeps what was merged.
create or replace function queues.take_special(
  p_places tid[], p_cut_n integer, p_ids bigint[],
  out attempts smallint[], out failures smallint[], out crashes smallint[], out solo boolean[],
  out parent_ids bigint[])
language plpgsql
as $$
begin
  select array_agg(s.attempts order by s.i, s.j), array_agg(s.failures order by s.i, s.j),
         array_agg(s.crashes order by s.i, s.j), array_agg(s.solo order by s.i, s.j),
         array_agg(distinct s.parent_id) filter (where s.parent_id is not null)
    into attempts, failures, crashes, solo, parent_ids
    from (select r.attempts, r.failures, r.crashes, r.solo, r.parent_id, p.i, n.j
            from unnest(p_places) with ordinality p(place, i)
            join queues.ready r on r.ctid = p.place
           cross join lateral generate_series(
             1, case when p.i = cardinality(p_places) and p_cut_n is not null then p_cut_n
                     else cardinality(r.task_ids) end) n(j)) s;
  with gone as (
    delete from queues.pending_key k where k.task_id = any(p_ids)
    returning k.task_id, k.payload)
  insert into queues.merged_payload (task_id, payload)
    select g.task_id, g.payload from gone g where g.payload is not null;
end
$$;

-- Takes up to p_want tasks from the given lanes of a queue, best first.
-- Returns parallel arrays; the counts are null when all are at their first
-- hand-out. from_id and to_id: no id is below or above. stretches: from and to, in turns,
-- of ids that follow each other, in order; null: not known, or too many. p_auto: may rotate and settle on the way (not inside somebody's
-- long transaction, which would keep the maintenance lock). p_pairs, p_quotas: of
-- these pairs of lanes (a lane over two) no more than so many; lanes is then the
-- lane of each task. A quota that is null is as many as there are slots, which are
-- locked when such a task comes up: most claims never get there. quotas and slots
-- are what became of that. p_spare: slots that the caller has already.
create or replace function queues.take(
  p_queue_id integer, p_lanes integer[], p_want integer, p_max_priority bigint,
  p_auto boolean, p_pairs integer[] default null, p_quotas integer[] default null,
  p_serial boolean default false, p_spare queues.free_slots[] default null,
  out task_ids bigint[], out attempts smallint[], out failures smallint[],
  out crashes smallint[], out solo boolean[], out parent_ids bigint[], out from_id bigint,
  out to_id bigint, out stretches bigint[], out lanes integer[], out quotas integer[],
  out slots queues.free_slots[])
language plpgsql
as $$
declare
  c_bundle constant integer := 100;  -- see queues.put_ready
  c_large constant integer := 50;
  c_churn constant double precision := 300;  -- rows claimed one by one per generation
  c_mark constant double precision := 1000;  -- rows claimed per mark
  c_most constant bigint := 9223372036854775807;
  v_now timestamptz := worker.now();
  v_max_priority bigint := coalesce(p_max_priority, c_most);
  v_generations integer[];
  v_current integer;
  v_run record;
  v_got record;
  v_from_priority bigint;
  v_from_run_at timestamptz;
  v_from_id bigint;
  v_limit integer;
  v_left integer := p_want;
  v_lanes integer[] := p_lanes;
  v_pair integer;        -- of the run, in p_pairs
  v_quotas integer[] := p_quotas;
  v_most integer;
  v_more record;
  v_opened record;
  v_zero smallint[];
  v_cut record;
  v_rows integer;
  v_size integer;
  v_n integer;
  v_whole boolean := true;  -- stretches has them all
  v_deleted integer;
  v_gone boolean := false;
  v_taken integer := 0;
  v_stuck integer := 0;  -- locked here, but not to be had now
begin
  task_ids := '{}';
  quotas := p_quotas;
  if p_quotas is null then  -- else the caller has looked into the lanes, after that
    perform queues.promote_timers(p_queue_id, queues.timer_floor(p_queue_id), v_now,
                                  greatest(p_want, 200));
  end if;
  v_generations := queues.live_generations(p_queue_id);
  v_current := v_generations[cardinality(v_generations)];

  while v_left > 0 loop
    -- A run: the rows of one generation and lane that come before the head of
    -- every other. Nearly always there is one. A large batch is not torn into many
    -- by those of another lane in between: of the same priority it goes on, and
    -- theirs are the first of the next.
    select h.* into v_run
      from (
        select g.generation, l.lane, r.priority, r.run_at, r.first_id, r.size,
               lead(r.priority) over w as next_priority,
               lead(r.run_at) over w as next_run_at,
               lead(r.first_id) over w as next_first_id,
               lead(l.lane) over w as next_lane
          from unnest(v_generations) g(generation)
         cross join unnest(v_lanes) l(lane)
          left join lateral (
            select m.priority, m.run_at, m.first_id from queues.cursor_mark m
             where m.queue_id = p_queue_id and m.generation = g.generation
               and m.lane = l.lane and g.generation < v_current and v_from_priority is null
             order by m.mark_no desc limit 1) m on true
         cross join lateral (
            select r.priority, r.run_at, r.first_id, cardinality(r.task_ids) as size
              from queues.ready r
             where r.queue_id = p_queue_id and r.generation = g.generation
               and r.lane = l.lane
               and (r.priority, r.run_at, r.first_id) >=
                   (coalesce(v_from_priority, m.priority, -c_most - 1),
                    coalesce(v_from_run_at, m.run_at, '-infinity'),
                    coalesce(v_from_id, m.first_id, 0))
               and r.priority <= v_max_priority
             order by r.priority, r.run_at, r.first_id limit 1) r
        window w as (order by r.priority, r.run_at, r.first_id)
         order by r.priority, r.run_at, r.first_id limit 1) h;
    exit when not found;

    -- Lock, in this statement; delete, in the next. A row that another claim
    -- has just cut is locked here in its new version, which only a statement
    -- that begins later can see.
    v_most := v_left;
    v_pair := null;
    if p_pairs is not null and v_run.lane > 3 then
      v_pair := array_position(p_pairs, v_run.lane / 2);
      if v_pair is not null and v_quotas[v_pair] is null then
        v_opened := queues.open_pair(p_queue_id, p_pairs[v_pair], p_want, p_serial, v_now,
                                     p_spare, v_run.lane, p_lanes);
        quotas[v_pair] := v_opened.quota;
        v_quotas[v_pair] := v_opened.quota;
        if v_opened.slots <> '{}' then
          slots := slots || v_opened.slots;
        end if;
      end if;
      v_most := least(v_left, v_quotas[v_pair]);
      if v_most < 1 then
        v_lanes := array_remove(array_remove(v_lanes, 2 * p_pairs[v_pair]),
                                2 * p_pairs[v_pair] + 1);
        v_stuck := 0;
        continue;
      end if;
    end if;
    -- How many rows that takes. Behind a bundle stand others, in all likelihood full
    -- ones; behind a single task may stand either, so there they are counted.
    if v_run.size > 1 then
      v_limit := greatest(v_most - v_run.size + c_bundle - 1, 0) / c_bundle + 1;
    else
      v_limit := v_most;
    end if;
    if v_run.size = 1 and v_limit > 1 then
      select greatest(count(*), 1) into v_limit
        from (select sum(s.size) over (order by s.priority, s.run_at, s.first_id
                                       rows unbounded preceding) - s.size as before
                from (select cardinality(r.task_ids) as size, r.priority, r.run_at, r.first_id
                        from queues.ready r
                       where r.queue_id = p_queue_id and r.generation = v_run.generation
                         and r.lane = v_run.lane
                         and (r.priority, r.run_at, r.first_id) >=
                             (v_run.priority, v_run.run_at, v_run.first_id)
                       order by r.priority, r.run_at, r.first_id limit v_limit) s) c
       where c.before < v_most;
    end if;
    v_limit := v_limit + v_stuck;
    select count(*)::integer as locked, array_agg(s.ctid) as places, null::integer as cut_n,
           array_agg(s.first_id) as first_ids, array_agg(s.first_id) as ids,
           min(s.first_id) as from_id, max(s.last_id) as to_id,
           bool_or(s.special) as special, bool_or(s.keyed) as keyed,
           sum(s.size)::integer as size,
           bool_and(s.last_id - s.first_id = s.size - 1) as whole,
           array_agg(s.size) filter (where v_run.size > 1) as sizes,
           queues.join_ids(s.task_ids) filter (where v_run.size > 1) as joined
      into v_got
      from (select r.ctid, r.first_id, r.keyed, r.task_ids, cardinality(r.task_ids) as size,
                   r.task_ids[cardinality(r.task_ids)] as last_id,
                   r.attempts > 0 or r.keyed or r.parent_id is not null as special
              from queues.ready r
             where r.queue_id = p_queue_id and r.generation = v_run.generation
               and r.lane = v_run.lane
               and (r.priority, r.run_at, r.first_id) >=
                   (v_run.priority, v_run.run_at, v_run.first_id)
               and (r.priority, r.run_at, r.first_id) <
                   (coalesce(v_run.next_priority, c_most),
                    case when v_left < c_large or v_run.next_lane = v_run.lane
                         then coalesce(v_run.next_run_at, 'infinity') else 'infinity' end,
                    coalesce(v_run.next_first_id, c_most))
               and r.priority <= v_max_priority
             order by r.priority, r.run_at, r.first_id
             limit v_limit for update skip locked) s;
    if v_got.keyed or v_got.sizes is null and v_got.size > v_got.locked then
      v_cut := queues.cut_to_size(v_got.places, v_most);
      v_got.places := v_cut.places;
      v_got.cut_n := v_cut.cut_n;
      v_got.ids := v_cut.ids;
    elsif v_got.sizes is not null then
      v_got.ids := v_got.joined;
      if v_got.size > v_most then
        v_rows := v_got.locked;
        v_size := v_got.size;
        while v_size - v_got.sizes[v_rows] >= v_most loop
          v_size := v_size - v_got.sizes[v_rows];
          v_rows := v_rows - 1;
        end loop;
        if v_size > v_most then
          v_got.cut_n := v_got.sizes[v_rows] - (v_size - v_most);
        end if;
        v_got.places := v_got.places[1:v_rows];
        v_got.ids := v_got.ids[1:v_most];
      end if;
    end if;

    if v_got.ids is not null then
      if v_got.special or attempts is not null then
        v_more := queues.take_special(v_got.places, v_got.cut_n, v_got.ids);
        if v_more.attempts is not null or attempts is not null then
          v_zero := array_fill(0::smallint, array[cardinality(task_ids)]);
          attempts := coalesce(attempts, v_zero) || v_more.attempts;
          failures := coalesce(failures, v_zero) || v_more.failures;
          crashes := coalesce(crashes, v_zero) || v_more.crashes;
          solo := coalesce(solo, array_fill(false, array[cardinality(task_ids)])) || v_more.solo;
        end if;
        parent_ids := parent_ids || v_more.parent_ids;
      end if;
      -- The last bundle may be wanted only in part; the rest stays where it is.
      v_rows := cardinality(v_got.places);
      if v_got.cut_n is not null then
        update queues.ready r
           set task_ids = r.task_ids[v_got.cut_n + 1:], first_id = r.task_ids[v_got.cut_n + 1]
         where r.ctid = v_got.places[v_rows];
        v_rows := v_rows - 1;
        v_gone := not found;
      end if;
      v_deleted := 0;
      if v_rows > 0 then
        delete from queues.ready where ctid = any(v_got.places[1:v_rows]);
        get diagnostics v_deleted = row_count;
      end if;
      if v_gone or v_deleted <> v_rows then
        raise exception 'a locked row of queues.ready has gone'
          using errcode = 'internal_error';
      end if;
      v_size := cardinality(v_got.ids);
      if v_got.special or not v_got.whole then
        v_whole := false;
      elsif v_whole and v_got.sizes is null then
        if v_got.ids[v_size] - v_got.ids[1] = v_size - 1 then
          v_whole := v_size = 1
            or v_got.ids = array(select generate_series(v_got.ids[1], v_got.ids[v_size]));
          stretches := stretches || v_got.ids[1] || v_got.ids[v_size];
        elsif v_size > 20 and v_got.to_id - v_got.from_id < 1.2 * v_size then
          select stretches || array_agg(u.id order by s.i, u.id), bool_and(s.n = s.to_id - s.from_id + 1)
            into stretches, v_whole
            from (select min(u.i) as i, min(u.id) as from_id, max(u.id) as to_id, count(*) as n
                    from unnest(v_got.ids) with ordinality u(id, i) group by u.id - u.i) s
           cross join lateral unnest(array[s.from_id, s.to_id]) u(id);
        else
          v_whole := false;
        end if;
      elsif v_whole then
        for i in 1..v_rows + (v_got.cut_n is not null)::integer loop
          v_n := cardinality(stretches);
          v_size := case when i > v_rows then v_got.cut_n else v_got.sizes[i] end;
          if stretches[v_n] + 1 = v_got.first_ids[i] then
            stretches[v_n] := stretches[v_n] + v_size;
          else
            stretches := stretches || v_got.first_ids[i] || v_got.first_ids[i] + v_size - 1;
          end if;
        end loop;
      end if;
      from_id := least(from_id, v_got.from_id);
      to_id := greatest(to_id, v_got.to_id);
      task_ids := task_ids || v_got.ids;
      v_left := v_left - cardinality(v_got.ids);
      if p_pairs is not null then
        lanes := lanes || array_fill(v_run.lane, array[cardinality(v_got.ids)]);
        if v_pair is not null then
          v_quotas[v_pair] := v_quotas[v_pair] - cardinality(v_got.ids);
          if v_quotas[v_pair] = 0 and v_left > 0 then  -- no more of these
            v_lanes := array_remove(array_remove(v_lanes, 2 * p_pairs[v_pair]),
                                    2 * p_pairs[v_pair] + 1);
          end if;
        end if;
      end if;
      -- A bundle that was cut has left a dead version too.
      v_rows := cardinality(v_got.places);
      v_taken := v_taken + v_rows;
      -- Now and then remember where a closed generation has been read to.
      if v_run.generation < v_current and random() * c_mark < v_rows then
        perform queues.mark_cursor(p_queue_id, v_run.generation, v_run.lane);
      end if;
    end if;
    -- All that is left of this run is in other hands: go on with the next.
    v_stuck := v_got.locked - coalesce(cardinality(v_got.places), 0);
    if v_got.locked < v_limit then
      exit when v_run.next_priority is null;
      v_stuck := 0;
      v_from_priority := v_run.next_priority;
      v_from_run_at := v_run.next_run_at;
      v_from_id := v_run.next_first_id;
    end if;
  end loop;

  if not v_whole or cardinality(stretches) > 2 + cardinality(task_ids) / 5 then
    stretches := null;
  end if;
  -- Churn, not time, closes a generation: dice instead of a counter that all
  -- would have to update. Who takes many rows at once walks over the dead ones
  -- once for all of them, and need not rotate as often.
  if p_auto then
    if random() * (c_churn + 2 * v_taken) < v_taken then
      perform queues.rotate(p_queue_id);
    elsif cardinality(v_generations) > 1 and random() < 0.1 then
      perform queues.settle(p_queue_id, false);
    end if;
  end if;
end
$$;
