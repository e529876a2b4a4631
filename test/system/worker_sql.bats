#!/usr/bin/env bats
# SPDX-License-Identifier: Apache-2.0
#
# worker.process_tasks from several sessions at once, sessions that die, what it
# costs, and that the examples of the documentation run. PGKIN_TEST_SCALE makes
# the loops longer: 10 for the thousand rounds.

bats_require_minimum_version 1.5.0
load ../lib/system
load ../lib/page

SCALE=${PGKIN_TEST_SCALE:-1}

setup()
{
    URL=$(migrated_database)
    sql "$URL" "
        set client_min_messages = warning;
        create schema app;
        create table app.ran (task bigint, tag text, at timestamptz default clock_timestamp())" >/dev/null
}

# call ARGUMENTS...: one CALL of its own session.
call()
{
    psql -X -q -v ON_ERROR_STOP=1 -d "$URL" -c "call worker.process_tasks($1)"
}

# together N COMMAND...: N of it at the same time; true when all succeeded.
together()
{
    local n=$1 i pids=() failed=0
    shift
    for ((i = 0; i < n; i++)); do
        "$@" 3>&- &
        pids+=($!)
    done
    for i in "${pids[@]}"; do
        wait "$i" || failed=1
    done
    return "$failed"
}

# is_sql EXPECTED STATEMENT
is_sql()
{
    local got
    got=$(sql "$URL" "$2") || return
    [ "$got" = "$1" ] || {
        echo "expected: $1"
        echo "got: $got"
        return 1
    } >&2
}

# An idle transaction with a snapshot, as pg_dump or a forgotten psql has one.
hold_snapshot()
{
    in_background "$BATS_TEST_TMPDIR/holder.log" psql -X -q -d "$URL" -c "
        begin isolation level repeatable read" -c "
        select count(*) from queues.task" -c "select pg_sleep(600)"
    wait_until 10 is_sql 1 "select count(*) from pg_stat_activity
        where datname = current_database() and backend_xmin is not null
          and wait_event = 'PgSleep'"
}

# ------------------------------------------------------------------------ kin

# Parents with two children each. A child lets the other one catch up, so that
# both end at the same moment in two sessions.
register_twins()
{
    sql "$URL" "
        set client_min_messages = warning;
        create procedure app.twin(payload jsonb) language plpgsql as \$\$
        declare
          v_parent int;
          v_until timestamptz := clock_timestamp() + interval '30 ms';
        begin
          select t.parent_id into v_parent from worker.tasks t where t.id = worker.current_task_id();
          perform pg_advisory_xact_lock_shared(4711, v_parent);
          loop
            exit when clock_timestamp() > v_until or (
              select count(*) from pg_locks l where l.locktype = 'advisory' and l.classid = 4711
                 and l.objid = v_parent) > 1;
          end loop;
        end \$\$;
        create procedure app.parent(payload jsonb) language plpgsql as \$\$
        begin
          call worker.spawn('twin');
          call worker.spawn('twin');
        end \$\$;
        select worker.register_command('parent', 'kin', 'app.parent'),
               worker.register_command('twin', 'kin', 'app.twin');
        update worker.queue_registry set top_concurrency = null where queue = 'kin'" >/dev/null
}

enqueue_parents()
{
    sql "$URL" "
        select count(*) from worker.enqueue_many('parent', array_fill('{}'::jsonb, array[$1]))" >/dev/null
    for ((i = 0; i < $1; i++)); do
        echo "call worker.process_tasks(1, p_queue => 'kin', p_mode => 'top');"
    done | psql -X -q -v ON_ERROR_STOP=1 -d "$URL"
}

# One child per call, over and over.
run_children()
{
    local i
    {
        echo "$2"
        for ((i = 0; i < $1; i++)); do
            echo "call worker.process_tasks(1, p_queue => 'kin', p_mode => 'child');"
        done
    } | psql -X -q -v ON_ERROR_STOP=1 -d "$URL"
}

all_parents_ended()
{
    is_sql "$1|0|0|0|0" "
        select (select count(*) from worker.tasks where command = 'parent' and state = 'completed'),
               (select count(*) from worker.tasks where state <> 'completed'),
               (select count(*) from worker.rescue), (select count(*) from queues.parent_check),
               (select count(*) from queues.lease_open)"
}

@test "the last two children end at once, over and over" {
    local n=$((100 * SCALE))
    register_twins
    enqueue_parents "$n"
    together 2 run_children "$n" ''
    all_parents_ended "$n"
}

@test "the last two children end at once under repeatable read" {
    local n=$((30 * SCALE))
    register_twins
    enqueue_parents "$n"
    together 2 run_children "$n" "set default_transaction_isolation = 'repeatable read';"
    all_parents_ended "$n"
}

@test "children end in groups that share a commit, in four sessions" {
    local n=$((50 * SCALE))
    register_twins
    sql "$URL" "update worker.command_registry set group_commit = 7 where command = 'twin';
        create or replace procedure app.twin(payload jsonb) language plpgsql as 'begin end'"
    enqueue_parents "$n"
    together 4 call "p_queue => 'kin', p_mode => 'child'"
    all_parents_ended "$n"
}

@test "nested trees end in four sessions" {
    sql "$URL" "
        set client_min_messages = warning;
        create procedure app.tree(payload jsonb) language plpgsql as \$\$
        begin
          if (payload ->> 'depth')::int > 0 then
            for i in 1..3 loop
              call worker.spawn('tree', jsonb_build_object('depth', (payload ->> 'depth')::int - 1));
            end loop;
          end if;
        end \$\$;
        select worker.register_command('tree', 'kin', 'app.tree', p_allow_nested => true, p_group_commit => 3);
        update worker.queue_registry set top_concurrency = null where queue = 'kin';
        select count(*) from worker.enqueue_many('tree', array_fill('{\"depth\": 3}'::jsonb, array[$((3 * SCALE))]))" >/dev/null
    local i
    # Each of the calls ends when a top-level task waits.
    for ((i = 0; i <= 3 * SCALE; i++)); do
        together 4 call "p_queue => 'kin'"
    done
    is_sql "completed|$((40 * 3 * SCALE))" "select state, count(*) from worker.tasks group by 1"
    is_sql 0 "select count(*) from worker.rescue"
}

# Trees on a limited queue; hooks note when each began and ended.
serve_queue()
{
    until is_sql 0 "select count(*) from worker.tasks where state in ('pending', 'waiting', 'processing')" 2>/dev/null; do
        call "p_queue => 'limited'" || return
    done
}

@test "top_concurrency is never exceeded by four sessions" {
    local limit
    sql "$URL" "
        set client_min_messages = warning;
        create table app.began (task bigint, at timestamptz);
        create table app.ended (task bigint, at timestamptz);
        create procedure app.begin() language sql as 'insert into app.began values (worker.current_task_id(), clock_timestamp())';
        create procedure app.end() language sql as 'insert into app.ended values (worker.current_task_id(), clock_timestamp())';
        create procedure app.tree(payload jsonb) language plpgsql as \$\$
        begin
          perform pg_sleep(0.001);
          for i in 1..(payload ->> 'children')::int loop call worker.spawn('leaf'); end loop;
        end \$\$;
        create procedure app.leaf(payload jsonb) language plpgsql as 'begin end';
        select worker.register_command('tree', 'limited', 'app.tree', p_before_procedure => 'app.begin', p_after_procedure => 'app.end'),
               worker.register_command('leaf', 'limited', 'app.leaf')" >/dev/null
    for limit in 1 2; do
        sql "$URL" "
            truncate app.began, app.ended;
            update worker.queue_registry set top_concurrency = $limit where queue = 'limited';
            select count(*) from (select worker.enqueue('tree', jsonb_build_object('children', i % 3))
                                    from generate_series(1, $((20 * SCALE))) i) s" >/dev/null
        together 4 serve_queue
        is_sql "$((20 * SCALE))|t" "
            select count(*), max(n) <= $limit
              from (select (select count(*) from app.began o join app.ended f using (task)
                             where o.at <= b.at and f.at > b.at) as n
                      from app.began b join app.ended e using (task)) s"
    done
}

# ------------------------------------------------------------------ exactly once

@test "four sessions run every task once" {
    local n=$((400 * SCALE))
    sql "$URL" "
        set client_min_messages = warning;
        create procedure app.note(payload jsonb) language plpgsql as \$\$
        begin insert into app.ran (task) values (worker.current_task_id()); end \$\$;
        select worker.register_command('note', 'wide', 'app.note'), worker.register_command('grouped', 'wide', 'app.note', p_group_commit => 10);
        update worker.queue_registry set top_concurrency = null where queue = 'wide';
        select count(*) from worker.enqueue_many('note', array_fill('{}'::jsonb, array[$((n / 2))]));
        select count(*) from worker.enqueue_many('grouped', array_fill('{}'::jsonb, array[$((n / 2))]))" >/dev/null
    together 4 call "p_queue => 'wide'"
    is_sql "$n|$n" "select count(*), count(distinct task) from app.ran"
    is_sql "completed|1|$n" "select state, attempt, count(*) from worker.tasks group by 1, 2"
}

# ------------------------------------------------------------------- recovery

register_sleeper()
{
    sql "$URL" "
        set client_min_messages = warning;
        create procedure app.sleeper(payload jsonb) language plpgsql as \$\$
        begin
          insert into app.ran (task) values (worker.current_task_id());
          if (select count(*) from queues.attempt_end e where e.task_id = worker.current_task_id()) = 0 then
            perform pg_sleep(600);
          end if;
        end \$\$;
        select worker.register_command('sleeper', 'slow', 'app.sleeper')" >/dev/null
}

sleeper_pid()
{
    sql "$URL" "select pid from pg_stat_activity where datname = current_database() and wait_event = 'PgSleep'
                   and query like 'call worker.process_tasks%'"
}

is_asleep()
{
    [ -n "$(sleeper_pid)" ]
}

@test "a killed client, then a killed session: run again, once" {
    local pid
    register_sleeper
    sql "$URL" "select worker.enqueue('sleeper')" >/dev/null
    in_background "$BATS_TEST_TMPDIR/client.log" psql -X -q -d "$URL" -c "call worker.process_tasks()"
    wait_until 10 is_asleep
    pid=$(sleeper_pid)
    # shellcheck disable=SC2154 # set by in_background
    kill -KILL "$background_pid"
    wait_until 10 is_gone "$background_pid"

    # The session does not notice, and is as good as any: it is left alone.
    is_sql 0 "select worker.reset_abandoned_processing_tasks()"
    is_sql "processing|$pid" "select state, worker_pid from worker.tasks"
    [ "$(sleeper_pid)" = "$pid" ]

    is_sql t "select pg_terminate_backend($pid, 10000)"
    is_sql 1 "select worker.reset_abandoned_processing_tasks()"
    is_sql "pending|1" "select state, attempt from worker.tasks"
    call ""
    is_sql "completed|2|1" "select state, attempt, (select count(*) from app.ran) from worker.tasks"
    is_sql "abandoned|1" "select kind, count(*) from worker.rescue group by 1"
}

@test "a session that still works for a dead worker is ended first" {
    local pid worker
    register_sleeper
    sql "$URL" "select worker.enqueue('sleeper')" >/dev/null
    worker=$(sql "$URL" "select worker.register_worker('dying', 'here', 1)")
    PGOPTIONS="-c worker.worker_id=$worker" in_background "$BATS_TEST_TMPDIR/client.log" \
        psql -X -q -d "$URL" -c "call worker.process_tasks()"
    wait_until 10 is_asleep
    pid=$(sleeper_pid)
    is_sql "$worker" "select worker_id from queues.lease_open"

    is_sql t "select worker.beat($worker)"
    is_sql 0 "select worker.reset_abandoned_processing_tasks()"
    sql "$URL" "update worker.heartbeat set beat_at = beat_at - interval '11 seconds'" >/dev/null
    is_sql 1 "select worker.reset_abandoned_processing_tasks()"
    is_sql 0 "select count(*) from pg_stat_activity where pid = $pid"
    call ""
    is_sql "completed|2|1" "select state, attempt, (select count(*) from app.ran) from worker.tasks"
}

@test "an idle session that has left a lease keeps living without it" {
    local pid
    register_sleeper
    sql "$URL" "select worker.enqueue('sleeper')" >/dev/null
    mkfifo "$BATS_TEST_TMPDIR/in"
    in_background "$BATS_TEST_TMPDIR/idle.log" bash -c "exec psql -X -q -A -t -d '$URL' <'$BATS_TEST_TMPDIR/in'"
    exec 5>"$BATS_TEST_TMPDIR/in"
    echo "select pg_backend_pid(), task_ids from worker.lease_sql_tasks('slow', 1, null, '{0}', false);" >&5
    wait_until 10 grep -q '{1}' "$BATS_TEST_TMPDIR/idle.log"
    pid=$(cut -d '|' -f 1 "$BATS_TEST_TMPDIR/idle.log")
    is_sql 0 "select worker.reset_abandoned_processing_tasks()" # just now it was busy
    wait_until 10 is_sql 1 "select worker.reset_abandoned_processing_tasks()"
    is_sql 1 "select count(*) from pg_stat_activity where pid = $pid"
    # What it would do with the lost lease is refused.
    echo "select worker.finish_sql_tasks(1, true, '{1}', '{null}', '{1}');" >&5
    exec 5>&-
    wait_until 10 grep -q 'the lease of task 1 is not in force' "$BATS_TEST_TMPDIR/idle.log"
    is_sql pending "select state from worker.tasks"
}

@test "a task that kills its session in a group: only it is charged" {
    local i
    sql "$URL" "
        set client_min_messages = warning;
        create procedure app.maybe(payload jsonb) language plpgsql as \$\$
        begin
          insert into app.ran (task) values (worker.current_task_id());
          if payload ? 'kill' then perform pg_terminate_backend(pg_backend_pid()); perform pg_sleep(1); end if;
        end \$\$;
        select worker.register_command('maybe', 'group', 'app.maybe', p_group_commit => 50, p_max_leases => 2);
        select count(*) from worker.enqueue_many('maybe', array(
          select case when i = 25 then '{\"kill\": 1}' else '{}' end::jsonb from generate_series(1, 40) i))" >/dev/null
    for ((i = 0; i < 10; i++)); do
        call "p_queue => 'group'" 2>/dev/null && break
        wait_until 10 is_sql 0 "select count(*) from queues.lease_open o where exists (
            select from pg_stat_activity a where a.pid = o.backend_pid)"
        sql "$URL" "select worker.reset_abandoned_processing_tasks()" >/dev/null
    done
    ((i == 3)) # once in the group, twice alone
    is_sql "39|39" "select count(*), count(distinct task) from app.ran"
    is_sql "completed|39|f
failed|1|t" "select state, count(*), max(attempt) > 2 from worker.tasks group by 1 order by 1"
    is_sql "lost with its worker 2 times" "select error from worker.tasks where state = 'failed'"
    is_sql "2" "select count(*) from queues.attempt_end e join queues.lease l using (lease_id)
                 where e.outcome = 'lost' and cardinality(l.task_ids) = 1"
}

# ----------------------------------------------------------------------- cost

# blocks_per_child N: of pgkin's tables, that the end of one of N children costs.
blocks_per_child()
{
    local n=$1
    sql "$URL" "select worker.enqueue('fan', '{\"n\": $n}')" >/dev/null
    call "p_queue => 'cost', p_mode => 'top'"
    sql "$URL" "vacuum analyze queues.task" >/dev/null
    sql "$URL" "select pg_stat_reset()" >/dev/null
    psql -X -q -d "$URL" -c "call worker.process_tasks(p_queue => 'cost', p_mode => 'child')" \
        -c "do \$\$ begin if current_setting('server_version_num')::int >= 150000 then
              perform pg_stat_force_next_flush(); end if; end \$\$"
    wait_until 10 is_sql t "select n_tup_ins >= $n from pg_stat_user_tables where relname = 'task_completed'"
    sql "$URL" "
        select (sum(coalesce(heap_blks_hit, 0) + coalesce(heap_blks_read, 0) + coalesce(idx_blks_hit, 0)
                    + coalesce(idx_blks_read, 0)) / $n)::int
          from pg_statio_user_tables where schemaname = 'queues'"
}

@test "the end of a child costs the same among few and among many siblings" {
    local few many
    sql "$URL" "
        set client_min_messages = warning;
        create procedure app.fan(payload jsonb) language plpgsql as \$\$
        begin for i in 1..(payload ->> 'n')::int loop call worker.spawn('leaf'); end loop; end \$\$;
        create procedure app.leaf(payload jsonb) language plpgsql as 'begin end';
        select worker.register_command('fan', 'cost', 'app.fan'), worker.register_command('leaf', 'cost', 'app.leaf')" >/dev/null
    hold_snapshot
    few=$(blocks_per_child $((200 * SCALE)))
    many=$(blocks_per_child $((2000 * SCALE)))
    echo "blocks per child: $few among few, $many among ten times as many"
    ((many < few * 3 / 2 && many < 150))
    is_sql "2|0" "select count(*), (select count(*) from worker.rescue) from worker.tasks where command = 'fan' and state = 'completed'"
}

@test "a wide tree in bulk ends while a snapshot is held" {
    local n=$((2000 * SCALE))
    sql "$URL" "
        set client_min_messages = warning;
        create procedure app.fan(payload jsonb) language plpgsql as \$\$
        begin
          perform worker.enqueue_many('leaf', array_fill('{}'::jsonb, array[(payload ->> 'n')::int]), p_parent_id => worker.current_task_id());
        end \$\$;
        create procedure app.leaf(payload jsonb) language plpgsql as 'begin end';
        select worker.register_command('fan', 'cost', 'app.fan'), worker.register_command('leaf', 'cost', 'app.leaf', p_group_commit => 100)" >/dev/null
    hold_snapshot
    sql "$URL" "select worker.enqueue('fan', '{\"n\": $n}')" >/dev/null
    call "p_queue => 'cost'"
    is_sql "waiting" "select state from worker.tasks where command = 'fan'"
    together 2 call "p_queue => 'cost'"
    is_sql "completed|$((n + 1))" "select state, count(*) from worker.tasks group by 1"
    is_sql 0 "select count(*) from worker.rescue"
}

# ---------------------------------------------------------------------- roles

@test "the roles can do their work, and no more" {
    local name
    name=w_$BASHPID
    sql "$URL" "
        set client_min_messages = warning;
        create procedure app.work(payload jsonb) language plpgsql security definer as \$\$
        begin insert into app.ran (task, tag) values (worker.current_task_id(), session_user); end \$\$;
        create procedure app.hook() language plpgsql as 'begin end';
        create function app.merge(old jsonb, new jsonb) returns jsonb language sql as 'select new';
        grant usage on schema app to worker_service_user, worker_enqueuer;
        create procedure app.fan(payload jsonb) language plpgsql as 'begin call worker.spawn(''work''); end';
        select worker.register_command('work', 'work', 'app.work', p_before_procedure => 'app.hook', p_after_procedure => 'app.hook'),
               worker.register_command('fan', 'work', 'app.fan');
        create role ${name}_e login in role worker_enqueuer;
        create role ${name}_s login in role worker_service_user" >/dev/null
    local database=${URL#*@/}
    database=${database%%\?*}
    sql "$(url_of "$database" "${name}_e")" "
        select worker.enqueue('work'), worker.enqueue('fan', p_dedup_key => 'k', p_merge => 'app.merge'),
               worker.enqueue('fan', p_dedup_key => 'k', p_merge => 'app.merge')"
    run ! sql "$(url_of "$database" "${name}_e")" "call worker.process_tasks()"
    run ! sql "$(url_of "$database" "${name}_s")" "select * from queues.task"
    sql "$(url_of "$database" "${name}_s")" "call worker.process_tasks()"
    sql "$(url_of "$database" "${name}_s")" "call worker.process_tasks()"
    is_sql "completed|3" "select state, count(*) from worker.tasks group by 1"
    is_sql "${name}_s" "select distinct tag from app.ran"
    sql "$URL" "drop owned by ${name}_e, ${name}_s; drop role ${name}_e, ${name}_s"
}

# -------------------------------------------------------------- notifications

@test "who listens hears of new queues and commands, and of ends when asked to" {
    sql "$URL" "create procedure app.work(payload jsonb) language plpgsql as 'begin end'"
    psql -X -q -d "$URL" >"$BATS_TEST_TMPDIR/heard" <<'END'
listen worker_queue_change;
listen worker_task_changed;
insert into worker.queue_registry (queue) values ('told');
insert into worker.command_registry (command, queue, handler_procedure) values ('work', 'told', 'app.work');
select worker.enqueue('work') \g /dev/null
call worker.process_tasks();
set worker.notify_changes = on;
select worker.enqueue('work') \g /dev/null
call worker.process_tasks();
delete from worker.command_registry where command = 'work';
delete from worker.queue_registry where queue = 'told';
END
    [ "$(grep -c '"worker_queue_change" with payload "told"' "$BATS_TEST_TMPDIR/heard")" = 4 ]
    [ "$(grep -c '"worker_task_changed"' "$BATS_TEST_TMPDIR/heard")" = 1 ]
    grep -q 'with payload "{"id" : 2, "state" : "completed"}"' "$BATS_TEST_TMPDIR/heard"
}

# -------------------------------------------------------------- documentation

@test "docs/sql.md does what it says" {
    check_page "$BATS_TEST_DIRNAME/../../docs/sql.md"
}

@test "docs/schedules.md does what it says" {
    check_page "$BATS_TEST_DIRNAME/../../docs/schedules.md"
}

@test "docs/limits.md does what it says" {
    check_page "$BATS_TEST_DIRNAME/../../docs/limits.md"
}

@test "docs/testing.md does what it says" {
    check_page "$BATS_TEST_DIRNAME/../../docs/testing.md"
}

@test "docs/supervisors.md does what it says" {
    check_page "$BATS_TEST_DIRNAME/../../docs/supervisors.md"
}

@test "the pgTAP test of docs/testing.md passes" {
    is_sql 1 "select count(*) from pg_available_extensions where name = 'pgtap'" ||
        skip "pgTAP is not installed"
    local page=$BATS_TEST_DIRNAME/../../docs/testing.md
    sql "$URL" "create extension pgtap"
    {
        awk '/^```sql$/ { on = 1; next } /^```/ { if (on) exit } on' "$page"
        sed -n '/^## pgTAP/,/^## What/s/^    //p' "$page"
    } | psql -X -q -A -t -v ON_ERROR_STOP=1 -d "$URL" >"$BATS_TEST_TMPDIR/out"
    cat "$BATS_TEST_TMPDIR/out"
    [ "$(grep -c '^ok ' "$BATS_TEST_TMPDIR/out")" = 2 ]
    run ! grep -q '^not ok' "$BATS_TEST_TMPDIR/out"
}
