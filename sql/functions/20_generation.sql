-- Segments and generations: how a claim stays flat while dead rows pile up.
--
-- A row of queues.ready belongs for ever to the generation it was written into.
-- Claims look only into live generations. A generation goes
--
--     current ──rotate──> closed ──nothing left──> limbo ──no producer──> gone
--                            └──────────nothing left, no producer──────────┘
--
-- Producers hold a shared advisory lock on "their" generation to the end of
-- their transaction. A generation is gone only when the exclusive lock on it
-- could be had (so no producer can still commit into it) and a statement that
-- began after that saw no row in it. So a committed row is always in a
-- generation that is live, in limbo, or newer than the ledger; nothing else in
-- this file, and no hint, is needed to never lose a row.
--
-- These functions are internal: nobody but the owner may execute them, and
-- their callers have pinned the search_path.

-- The keys of our advisory locks have the letters 'pk' (x'706b') or the next
-- ones in their upper 16 bits, written out because this is a hot path.
-- A collision could only make somebody wait or skip a round.
create or replace function queues.generation_key(p_queue_id integer, p_generation integer)
returns bigint
language sql immutable
as $$ select 8100568354755969024 | ((p_queue_id::bigint & 65535) << 32) | p_generation $$;

create or replace function queues.maintenance_key(p_queue_id integer) returns bigint
language sql immutable
as $$ select 8100849829732679680 | p_queue_id $$;

create or replace function queues.cell(p_queue_id integer, p_cell text) returns regclass
language sql stable
as $$ select ('queues.q' || p_queue_id || '_' || p_cell)::regclass $$;

-- The generation to write into, locked. The second look matters: between the
-- first one and the lock the generation may have been closed and gone.
--
-- A transaction that has been open for a while stays with the generation it
-- first joined: it would else collect a lock for each one that passes. Nobody
-- waits for its rows before it commits, and a sweep finds them then.
create or replace function queues.join_generation(p_queue_id integer) returns integer
language plpgsql
as $$
declare
  c_old constant interval := '5 seconds';
  v_cell regclass := ('queues.q' || p_queue_id || '_generation')::regclass;
  v_old boolean := clock_timestamp() - now() > c_old;
  v_setting text := 'queues.joined_' || p_queue_id;
  v_generation integer;
begin
  if v_old and coalesce(current_setting(v_setting, true), '') <> '' then
    v_generation := current_setting(v_setting)::integer;
    -- Anybody can set a setting; nobody is to write where no sweep looks. Locked
    -- and then still in the ledger, it stays there.
    if current_setting('transaction_isolation') = 'read committed'
       and pg_try_advisory_xact_lock_shared(queues.generation_key(p_queue_id, v_generation))
       and v_generation = any((select l.live || l.limbo from queues.generation_ledger l
                                where l.queue_id = p_queue_id
                                order by l.version desc limit 1)::integer[]) then
      return v_generation;
    end if;
  end if;
  -- Never waits: whoever has the lock alone has it on a generation that is closed.
  loop
    v_generation := pg_sequence_last_value(v_cell);
    exit when pg_try_advisory_xact_lock_shared(
                8100568354755969024 | ((p_queue_id::bigint & 65535) << 32) | v_generation)
          and pg_sequence_last_value(v_cell) = v_generation;
  end loop;
  if v_old then
    perform set_config(v_setting, v_generation::text, true);
  end if;
  return v_generation;
end
$$;

-- The generations a claim must look into, oldest first.
create or replace function queues.live_generations(p_queue_id integer) returns integer[]
language plpgsql stable
as $$
declare
  v_current integer :=
    pg_sequence_last_value(('queues.q' || p_queue_id || '_generation')::regclass);
  v_live integer[];
  v_newest integer;
begin
  select l.live into v_live from queues.generation_ledger l
   where l.queue_id = p_queue_id order by l.version desc limit 1;
  v_newest := v_live[cardinality(v_live)];
  if v_newest = v_current then
    return v_live;
  end if;
  return v_live || array(select generate_series(v_newest + 1, v_current));
end
$$;

-- Is there anything in this closed generation? Where there are marks, it is
-- looked for behind them first, lane by lane, where it is cheap to find. Null: not there, and
-- to look before the marks as well would mean to walk over all that was taken.
create or replace function queues.generation_has_rows(p_queue_id integer, p_generation integer)
returns boolean
language plpgsql
as $$
declare
  v_marked boolean := exists (
    select from queues.cursor_mark m
     where m.queue_id = p_queue_id and m.generation = p_generation);
begin
  if not v_marked then
    return exists (select from queues.ready r
                    where r.queue_id = p_queue_id and r.generation = p_generation);
  elsif exists (
      select from unnest(queues.all_lanes()) l(lane)
        left join lateral (
          select m.priority, m.run_at, m.first_id from queues.cursor_mark m
           where m.queue_id = p_queue_id and m.generation = p_generation and m.lane = l.lane
           order by m.mark_no desc limit 1) m on true
        cross join lateral (
          select from queues.ready r
           where r.queue_id = p_queue_id and r.generation = p_generation and r.lane = l.lane
             and (r.priority, r.run_at, r.first_id) >=
                 (coalesce(m.priority, -9223372036854775808), coalesce(m.run_at, '-infinity'),
                  coalesce(m.first_id, 0))
           limit 1) r) then
    return true;
  end if;
  return null;
end
$$;

-- Remembers where a closed generation has been read to. Claims do not look
-- before a mark, so nothing may ever come to lie there: no producer may still be
-- in the generation (the exclusive lock proves it), and the head is looked up
-- after that, by a statement that sees what was committed before. What other
-- claims hold at this moment it sees too, so that they may still roll back.
create or replace function queues.mark_cursor(p_queue_id integer, p_generation integer,
                                              p_lane integer) returns void
language plpgsql
as $$
begin
  if current_setting('transaction_isolation') <> 'read committed'
     or not pg_try_advisory_xact_lock(queues.generation_key(p_queue_id, p_generation)) then
    return;
  end if;
  insert into queues.cursor_mark (queue_id, generation, lane, priority, run_at, first_id)
    select p_queue_id, p_generation, p_lane, r.priority, r.run_at, r.first_id
      from (select) s
      left join lateral (
        select m.priority, m.run_at, m.first_id from queues.cursor_mark m
         where m.queue_id = p_queue_id and m.generation = p_generation and m.lane = p_lane
         order by m.mark_no desc limit 1) m on true
     cross join lateral (
        select r.priority, r.run_at, r.first_id from queues.ready r
         where r.queue_id = p_queue_id and r.generation = p_generation and r.lane = p_lane
           and (r.priority, r.run_at, r.first_id) >=
               (coalesce(m.priority, -9223372036854775808), coalesce(m.run_at, '-infinity'),
                coalesce(m.first_id, 0))
         order by r.priority, r.run_at, r.first_id limit 1) r;
end
$$;

-- Moves up to p_most rows of a closed generation into the current one.
create or replace function queues.move_rows(p_queue_id integer, p_generation integer,
                                            p_most integer) returns integer
language plpgsql
as $$
declare
  v_rows tid[];
  v_into integer;
begin
  v_rows := array(select r.ctid from queues.ready r
                   where r.queue_id = p_queue_id and r.generation = p_generation
                   limit p_most for update skip locked);
  if cardinality(v_rows) = 0 then
    return 0;
  end if;
  v_into := queues.join_generation(p_queue_id);
  with moved as (
    delete from queues.ready where ctid = any(v_rows) returning *)
  insert into queues.ready (queue_id, lane, generation, priority, run_at, first_id, parent_id,
                            attempts, failures, crashes, keyed, solo, task_ids)
    select m.queue_id, m.lane, v_into, m.priority, m.run_at, m.first_id, m.parent_id,
           m.attempts, m.failures, m.crashes, m.keyed, m.solo, m.task_ids
      from moved m;
  return cardinality(v_rows);
end
$$;

-- Looks over the closed generations and writes the next version of the ledger
-- when something has changed. Does nothing when somebody else is at it, or
-- under an isolation level in which a statement cannot see what was committed
-- before it. Returns how many rows it found where no claim would have looked.
-- p_deep: also do what may take long, the search through limbo.
create or replace function queues.settle(p_queue_id integer, p_deep boolean default true)
returns integer
language plpgsql
as $$
declare
  c_most_live constant integer := 8;
  v_ledger queues.generation_ledger;
  v_current integer;
  v_live integer[] := '{}';
  v_limbo integer[] := '{}';
  v_generation integer;
  v_rows boolean;
  v_alone boolean;
  v_found integer := 0;
begin
  if current_setting('transaction_isolation') <> 'read committed'
     or not pg_try_advisory_xact_lock(queues.maintenance_key(p_queue_id)) then
    return 0;
  end if;
  v_current := pg_sequence_last_value(queues.cell(p_queue_id, 'generation'));
  select * into v_ledger from queues.generation_ledger l
   where l.queue_id = p_queue_id order by l.version desc limit 1;

  foreach v_generation in array v_ledger.limbo || queues.live_generations(p_queue_id) loop
    continue when v_generation >= v_current;
    if v_generation = any(v_ledger.limbo) then
      v_rows := null;
    else
      v_rows := queues.generation_has_rows(p_queue_id, v_generation);
      if v_rows then
        v_live := v_live || v_generation;
        continue;
      end if;
    end if;
    if v_rows is null and not p_deep then
      v_limbo := v_limbo || v_generation;
      continue;
    end if;
    v_alone := pg_try_advisory_xact_lock(queues.generation_key(p_queue_id, v_generation));
    v_found := v_found + queues.move_rows(p_queue_id, v_generation, 1000);
    if not v_alone or exists (select from queues.ready r where r.queue_id = p_queue_id
                                 and r.generation = v_generation) then
      v_limbo := v_limbo || v_generation;
    end if;
  end loop;

  -- Too many live ones: low-priority work keeps them alive. Empty the one that
  -- has the least left.
  if cardinality(v_live) >= c_most_live then
    select g into v_generation
      from unnest(v_live) g
     order by (select count(*) from (select from queues.ready r
                                      where r.queue_id = p_queue_id and r.generation = g
                                      limit 2000) s), g
     limit 1;
    perform queues.move_rows(p_queue_id, v_generation, 500);
  end if;

  v_live := v_live || v_current;
  if v_live <> v_ledger.live or v_limbo <> v_ledger.limbo then
    insert into queues.generation_ledger (queue_id, version, live, limbo, written_at)
      values (p_queue_id, v_ledger.version + 1, v_live, v_limbo, clock_timestamp());
  end if;
  return v_found;
end
$$;

-- Closes the current generation and opens the next.
create or replace function queues.rotate(p_queue_id integer) returns void
language plpgsql
as $$
begin
  if current_setting('transaction_isolation') = 'read committed'
     and pg_try_advisory_xact_lock(queues.maintenance_key(p_queue_id)) then
    perform nextval(queues.cell(p_queue_id, 'generation'));
    perform queues.settle(p_queue_id, false);
  end if;
end
$$;
