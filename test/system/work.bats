#!/usr/bin/env bats
# SPDX-License-Identifier: Apache-2.0
#
# pgkin work: what it runs, how it wakes, stops, hands back and takes over.

bats_require_minimum_version 1.5.0
load ../lib/system

setup()
{
    URL=$(migrated_database)
    sql "$URL" "
        set client_min_messages = warning;
        create schema app;
        create table app.ran (task bigint, tag text, started timestamptz default clock_timestamp(),
                              ended timestamptz);
        create procedure app.note(payload jsonb) language plpgsql as \$\$
        begin
          insert into app.ran (task, tag) values (worker.current_task_id(), payload ->> 'tag');
          perform pg_sleep(coalesce((payload ->> 's')::float, 0));
          update app.ran set ended = clock_timestamp() where task = worker.current_task_id();
        end \$\$;
        select worker.register_command('note', 'default', 'app.note');
        select worker.register_command('nap', 'default', p_kind => 'native', p_handler => 'sleep');
        select worker.register_command('echo', 'default', p_kind => 'native');
        select worker.register_command('noop', 'default', p_kind => 'native');" >/dev/null
    LOG=$BATS_TEST_TMPDIR/work.log
}

# Workers that still have something to do are not asked.
teardown()
{
    local pid
    while read -r pid; do
        kill -KILL "$pid" 2>/dev/null || true
    done < <(cat "$BATS_TEST_TMPDIR/pids" 2>/dev/null)
    system_teardown
}

# work ARGUMENTS...: starts a worker in the background and waits until it works.
work()
{
    local log=${WORK_LOG:-$LOG}
    in_background "$log" "$PGKIN" work -d "$URL" --log-level debug "$@"
    wait_until 20 grep -q 'worker started' "$log"
}

# state_of TASK STATE...: is it in one of these?
state_of()
{
    local state task=$1
    shift
    state=$(sql "$URL" "select state from worker.tasks where id = $task") || return
    echo "$state"
    [[ " $* " == *" $state "* ]]
}

# stopped_with STATUS: the worker in the background has ended with it.
stopped_with()
{
    local status=0
    wait "$background_pid" || status=$?
    [ "$status" -eq "$1" ] || {
        echo "exit status $status, not $1"
        tail -20 "$LOG"
        return 1
    } >&2
}

enqueue()
{
    sql "$URL" "select worker.enqueue('$1', '${2:-{\}}')"
}

@test "runs SQL and native tasks, and stops when nothing is left" {
    for i in 1 2 3; do
        enqueue note "{\"tag\": \"$i\"}"
    done
    id=$(enqueue echo '{"a": [1, 2]}')
    sql "$URL" "select count(*) from worker.enqueue_many('noop', array_fill('{}'::jsonb, '{2500}'))"
    run -0 --separate-stderr "$PGKIN" work -d "$URL" --stop-when-idle
    [ -z "$output" ]
    [ "$(sql "$URL" "select string_agg(tag, ',' order by tag) from app.ran")" = 1,2,3 ]
    [ "$(sql "$URL" "select distinct state from worker.tasks")" = completed ]
    [ "$(sql "$URL" "select result from worker.tasks where id = $id")" = '{"a": [1, 2]}' ]
    [ "$(sql "$URL" "select count(*) from worker.worker where stopped_at is null")" = 0 ]
    [ "$(sql "$URL" "select count(*) from queues.lease_open")" = 0 ]
    # The worker's process for what ran there, the session for SQL.
    [ "$(sql "$URL" "select count(distinct worker_pid) from worker.tasks where command <> 'note'")" = 1 ]
    [ "$(sql "$URL" "select bool_and(duration_ms >= 0) from worker.tasks")" = t ]
}

@test "wakes for a task that comes while it sleeps, and tells producers when to notify" {
    work
    cell=$(sql "$URL" "select wake_cell from worker.command_registry where command = 'nap'")
    asleep() { [ "$(sql "$URL" "select pg_sequence_last_value('$cell'::regclass)")" -gt 0 ]; }
    wait_until 10 asleep
    id=$(enqueue nap '{"ms": 400}')
    wait_until 10 state_of "$id" processing completed
    grep -q 'from=idle to=running' "$LOG"
    # What is in flight keeps no other waiting: there is room, so it wants to know.
    wait_until 10 asleep
    grep -q 'to=scheduled' "$LOG"
    wait_until 10 state_of "$id" completed
}

@test "does not ask for notifications when there is no room" {
    work --queue default:1
    id=$(enqueue nap '{"ms": 60000}')
    wait_until 10 state_of "$id" processing
    other=$(enqueue note '{"s": 60}')
    wait_until 10 state_of "$other" processing
    wait_until 10 grep -q 'to=saturated' "$LOG"
    cell=$(sql "$URL" "select wake_cell from worker.command_registry where command = 'nap'")
    said_so() { [ "$(sql "$URL" "select pg_sequence_last_value('$cell'::regclass)")" = 3 ]; }
    wait_until 10 said_so
    # A task that comes now tells nobody; the end of one makes the worker look.
    third=$(enqueue nap '{"ms": 1}')
    sql "$URL" "select worker.cancel($id)" >/dev/null
    wait_until 10 state_of "$third" completed
}

@test "a scheduled task runs at its time, not before" {
    work
    id=$(sql "$URL" "select worker.enqueue('note', p_scheduled_at => clock_timestamp() + interval '700 ms')")
    wait_until 10 state_of "$id" completed
    [ "$(sql "$URL" "select r.started >= t.scheduled_at from app.ran r join worker.tasks t on t.id = r.task")" = t ]
}

@test "new queues and commands are served without a restart" {
    work
    sql "$URL" "set client_min_messages = warning;
        select worker.register_command('later', 'other', 'app.note');
        select worker.register_command('later_nap', 'another', p_kind => 'native', p_handler => 'noop')" >/dev/null
    a=$(enqueue later)
    b=$(enqueue later_nap)
    wait_until 10 state_of "$a" completed
    wait_until 10 state_of "$b" completed
}

@test "serves the queues it is told, and leaves the others alone" {
    sql "$URL" "set client_min_messages = warning;
        select worker.register_command('mine', 'mine', 'app.note')" >/dev/null
    a=$(enqueue mine)
    b=$(enqueue note)
    run -0 "$PGKIN" work -d "$URL" --queue mine --stop-when-idle
    state_of "$a" completed
    state_of "$b" pending
    run -1 --separate-stderr "$PGKIN" work -d "$URL" --queue nowhere
    [[ $stderr == *'unknown queue "nowhere"'* ]]
    for bad in mine:0 mine:x : mine:99999; do
        run -2 --separate-stderr "$PGKIN" work -d "$URL" --queue "$bad"
        [[ $stderr == *'a queue'* ]]
    done
}

@test "a native command that no worker here has is left for one that has it" {
    sql "$URL" "select worker.register_command('foreign', p_kind => 'native')" >/dev/null
    a=$(enqueue foreign)
    b=$(enqueue noop)
    run -0 "$PGKIN" work -d "$URL" --stop-when-idle
    state_of "$a" pending
    state_of "$b" completed
    [ "$(sql "$URL" "select attempt from worker.tasks where id = $a")" = 0 ]
}

@test "a failing handler fails its task, with its error" {
    sql "$URL" "select worker.register_command('fail', p_kind => 'native')" >/dev/null
    a=$(enqueue fail)
    run -0 "$PGKIN" work -d "$URL" --stop-when-idle
    state_of "$a" failed
    [ "$(sql "$URL" "select error from worker.tasks where id = $a")" = 'failed as told' ]
}

@test "SIGTERM lets work finish and hands back what was not begun" {
    work --queue default:1
    a=$(enqueue nap '{"ms": 800}')
    b=$(enqueue note '{"s": 0.8}')
    wait_until 10 state_of "$a" processing
    wait_until 10 state_of "$b" processing
    kill -TERM "$background_pid"
    stopped_with 0
    state_of "$a" completed
    state_of "$b" completed
    [ "$(sql "$URL" "select count(*) from queues.lease_open")" = 0 ]
}

@test "a second SIGTERM hands back what runs, charged to nobody" {
    work --queue default:2
    a=$(enqueue nap '{"ms": 60000}')
    b=$(enqueue note '{"s": 60}')
    wait_until 10 state_of "$a" processing
    wait_until 10 state_of "$b" processing
    kill -TERM "$background_pid"
    wait_until 10 grep -q 'to=finishing' "$LOG"
    kill -TERM "$background_pid"
    stopped_with 1
    grep -q 'work was handed back' "$LOG"
    state_of "$a" pending
    [ "$(sql "$URL" "select count(*) from queues.error")" = 0 ]
    # A handler in SQL is rolled back with its session.
    again() { sql "$URL" "select worker.reset_abandoned_processing_tasks()"; state_of "$b" pending; }
    wait_until 10 again
    [ "$(sql "$URL" "select count(*) from app.ran")" = 0 ]
    [ "$(sql "$URL" "select coalesce(sum(crashes), 0) from queues.ready")" = 0 ]
}

@test "the end of the grace period does the same" {
    work --queue default:2 --grace 1
    a=$(enqueue nap '{"ms": 60000}')
    wait_until 10 state_of "$a" processing
    kill -INT "$background_pid"
    stopped_with 1
    state_of "$a" pending
}

@test "--exclusive: a second one is refused, and may run when the first is gone" {
    work --exclusive
    first=$background_pid
    run -1 --separate-stderr "$PGKIN" work -d "$URL" --exclusive
    [[ $stderr == *'another worker is already running'* ]]
    a=$(enqueue noop)
    wait_until 10 state_of "$a" completed
    kill -TERM "$first"
    stopped_with 0
    run -0 "$PGKIN" work -d "$URL" --exclusive --stop-when-idle
}

@test "what a killed worker held is taken up by another within 2 seconds" {
    work --queue default:2
    first=$background_pid
    a=$(enqueue nap '{"ms": 60000}')
    b=$(enqueue note '{"s": 60}')
    wait_until 10 state_of "$a" processing
    wait_until 10 state_of "$b" processing
    WORK_LOG=$BATS_TEST_TMPDIR/second.log work --queue default:2
    sql "$URL" "create table app.kill as select clock_timestamp() as at"
    kill -KILL "$first"
    taken() { [ "$(sql "$URL" "select count(*) from queues.lease l, app.kill k
                               where l.leased_at > k.at and l.task_ids && array[$a, $b]::bigint[]")" = 2 ]; }
    wait_until 20 taken
    # Measured by the server's clock; twice the promise, for a busy machine.
    [ "$(sql "$URL" "select max(l.leased_at) < max(k.at) + interval '4 seconds' from queues.lease l, app.kill k")" = t ]
    [ "$(sql "$URL" "select max(attempt) from worker.tasks where id in ($a, $b)")" = 2 ]
}

@test "a stopped worker that comes back late changes nothing, and says so" {
    work --queue default:2
    first=$background_pid
    a=$(enqueue nap '{"ms": 500}')
    wait_until 10 state_of "$a" processing
    kill -STOP "$first"
    # As if it had been silent for long.
    sql "$URL" "update worker.heartbeat set beat_at = beat_at - interval '1 hour'" >/dev/null
    [ "$(sql "$URL" "select worker.recover_dead_workers()")" = 1 ]
    state_of "$a" pending
    kill -CONT "$first"
    wait_until 20 grep -q 'given up by the others' "$LOG"
    wait_until 20 grep -Eq 'end refused|task dropped' "$LOG"
    wait_until 20 state_of "$a" completed
    [ "$(sql "$URL" "select attempt from worker.tasks where id = $a")" = 2 ]
}

@test "a canceled task is stopped where it runs" {
    work --queue default:2
    a=$(enqueue nap '{"ms": 60000}')
    b=$(enqueue note '{"s": 60}')
    wait_until 10 state_of "$a" processing
    wait_until 10 state_of "$b" processing
    [ "$(sql "$URL" "select worker.cancel($a, 'enough'), worker.cancel($b)")" = 't|t' ]
    wait_until 10 state_of "$a" canceled
    wait_until 10 state_of "$b" canceled
    c=$(enqueue noop)
    wait_until 10 state_of "$c" completed
}

@test "the progress of a handler can be seen while it runs" {
    work
    a=$(enqueue nap '{"ms": 3000}')
    on_its_way() { [ "$(sql "$URL" "select fraction > 0 and fraction < 1 and message = 'asleep' from worker.progress_of($a)")" = t ]; }
    wait_until 10 on_its_way
    state_of "$a" processing
}

@test "says now and then how its queues do" {
    sql "$URL" "select worker.register_command('fail', p_kind => 'native')" >/dev/null
    enqueue fail
    enqueue noop
    PGKIN_REPORT_EVERY=3s work
    reported() { grep -q 'msg=report queue=default completed=2 succeeded=1 failed=1 .*failure_rate=0.5' "$LOG"; }
    wait_until 20 reported
}

@test "a deadline ends a handler that takes too long" {
    sql "$URL" "select worker.register_command('slow', p_kind => 'native', p_handler => 'sleep',
                                               p_timeout => '200 ms')" >/dev/null
    sql "$URL" "select worker.register_command('slow_sql', p_handler => 'app.note', p_timeout => '300 ms')" >/dev/null
    a=$(enqueue slow '{"ms": 60000}')
    b=$(enqueue slow_sql '{"s": 60}')
    c=$(enqueue slow_sql '{"s": 0.01}')
    run -0 "$PGKIN" work -d "$URL" --stop-when-idle
    state_of "$a" failed
    [ "$(sql "$URL" "select error from worker.tasks where id = $a")" = 'timed out after 0.2 s' ]
    state_of "$b" failed
    [[ $(sql "$URL" "select error from worker.tasks where id = $b") == 'timed out after 0.3 s'* ]]
    state_of "$c" completed
    [ "$(sql "$URL" "select count(*) from app.ran")" = 1 ]
}

@test "two workers on a serial queue: top-level tasks never overlap, children do" {
    sql "$URL" "set client_min_messages = warning;
        create procedure app.tree(payload jsonb) language plpgsql as \$\$
        begin
          insert into app.ran (task, tag, ended) values (worker.current_task_id(), 'top', null);
          call worker.spawn('leaf', '{\"tag\": \"leaf\", \"s\": 0.02}');
          call worker.spawn('leaf', '{\"tag\": \"leaf\", \"s\": 0.02}');
          update app.ran set ended = clock_timestamp() where task = worker.current_task_id();
        end \$\$;
        select worker.register_command('tree', 'trees', 'app.tree');
        select worker.register_command('leaf', 'trees', 'app.note')" >/dev/null
    sql "$URL" "select count(*) from worker.enqueue_many('tree', array_fill('{}'::jsonb, '{15}'))"
    work --queue trees:3
    WORK_LOG=$BATS_TEST_TMPDIR/second.log work --queue trees:3
    done_all() { [ "$(sql "$URL" "select count(*) from worker.tasks where state = 'completed'")" = 45 ]; }
    wait_until 40 done_all
    # A tree lasts from its parent's start to the end of the last child.
    [ "$(sql "$URL" "
        with tree as (select coalesce(t.parent_id, t.id) as id, min(r.started) as a, max(r.ended) as b
                        from app.ran r join worker.tasks t on t.id = r.task group by 1)
        select count(*) from tree x join tree y on x.id < y.id and x.a < y.b and y.a < x.b")" = 0 ]
    [ "$(sql "$URL" "select count(*) from worker.rescue")" = 0 ]
}

@test "a task that ends its session every time fails after max_leases, alone" {
    sql "$URL" "set client_min_messages = warning;
        create procedure app.poison(payload jsonb) language sql as \$\$ select pg_terminate_backend(pg_backend_pid()) \$\$;
        select worker.register_command('poison', 'default', 'app.poison', p_max_leases => 3)" >/dev/null
    sql "$URL" "select worker.enqueue('note') from generate_series(1, 10)" >/dev/null
    a=$(enqueue poison)
    sql "$URL" "select worker.enqueue('note') from generate_series(1, 10)" >/dev/null
    work --queue default:2
    wait_until 40 state_of "$a" failed
    [[ $(sql "$URL" "select error from worker.tasks where id = $a") == 'lost with its worker 3 times'* ]]
    all() { [ "$(sql "$URL" "select count(*) from worker.tasks where command = 'note' and state = 'completed'")" = 20 ]; }
    wait_until 20 all
    [ "$(sql "$URL" "select count(*) from app.ran")" = 20 ]
}

@test "connections that are terminated over and over cost nothing but time" {
    sql "$URL" "select count(*) from worker.enqueue_many('note', array_fill('{\"s\": 0.002}'::jsonb, '{300}'))"
    sql "$URL" "select count(*) from worker.enqueue_many('noop', array_fill('{}'::jsonb, '{300}'))"
    work --queue default:2
    for ((i = 0; i < 10; i++)); do
        sql "$URL" "select pg_terminate_backend(pid) from pg_stat_activity where application_name = 'pgkin worker' and datname = current_database()" >/dev/null
        sleep 0.2
    done
    done_all() { [ "$(sql "$URL" "select count(*) from worker.tasks where state = 'completed'")" = 600 ]; }
    wait_until 60 done_all
    [ "$(sql "$URL" "select count(*), count(distinct task) from app.ran")" = '300|300' ]
    kill -TERM "$background_pid"
    stopped_with 0
}

@test "health checks over HTTP" {
    port=$((20000 + RANDOM % 20000))
    work --listen "127.0.0.1:$port"
    [ "$(curl -sS "http://127.0.0.1:$port/healthz")" = ok ]
    ready() { [ "$(curl -sS "http://127.0.0.1:$port/readyz")" = ready ]; }
    wait_until 10 ready
    [ "$(curl -sS -o /dev/null -w '%{http_code}' "http://127.0.0.1:$port/other")" = 404 ]
    run -2 --separate-stderr "$PGKIN" work -d "$URL" --listen nonsense
    [[ $stderr == *'ADDR:PORT'* ]]
}

@test "tells systemd that it is ready, lives and stops" {
    socket=$BATS_TEST_TMPDIR/notify
    python3 -c "
import socket, sys
s = socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM); s.bind('$socket')
print('bound', flush=True)
while True: print(s.recv(4096).decode().replace('\n', ' '), flush=True)" >"$BATS_TEST_TMPDIR/said" 3>&- &
    echo $! >>"$BATS_TEST_TMPDIR/pids"
    wait_until 10 grep -q bound "$BATS_TEST_TMPDIR/said"
    NOTIFY_SOCKET=$socket work
    wait_until 10 grep -q 'READY=1' "$BATS_TEST_TMPDIR/said"
    wait_until 10 grep -q 'WATCHDOG=1' "$BATS_TEST_TMPDIR/said"
    kill -HUP "$background_pid"
    kill -TERM "$background_pid"
    wait_until 10 grep -q 'STOPPING=1' "$BATS_TEST_TMPDIR/said"
    stopped_with 0
}

@test "works through pgbouncer in transaction mode, by polling" {
    command -v pgbouncer >/dev/null || [ -x /usr/sbin/pgbouncer ] || skip "there is no pgbouncer"
    dir=$(user_directory)
    port=$((20000 + RANDOM % 20000))
    query=${URL#*\?}
    host=$(sed -n 's/.*host=\([^&]*\).*/\1/p' <<<"$query" | sed 's/%2F/\//g')
    server_port=$(sed -n 's/.*port=\([0-9]*\).*/\1/p' <<<"$query")
    name=$(sql "$URL" 'select current_database()')
    cat >"$dir/ini" <<EOF
[databases]
$name = host=$host port=${server_port:-5432} dbname=$name user=postgres
[pgbouncer]
listen_addr =
listen_port = $port
unix_socket_dir = $dir
auth_type = any
pool_mode = transaction
default_pool_size = 8
ignore_startup_parameters = extra_float_digits,options
logfile = $dir/log
pidfile = $dir/pid
EOF
    chmod 755 "$dir"
    if ((EUID == 0)); then
        chown -R postgres: "$dir"
        in_background "$dir/out" setpriv --reuid postgres --regid postgres --init-groups /usr/sbin/pgbouncer "$dir/ini"
    else
        in_background "$dir/out" pgbouncer "$dir/ini"
    fi
    bouncer="host=$dir port=$port dbname=$name user=postgres"
    ready() { sql "$bouncer" 'select 1'; }
    wait_until 10 ready || { cat "$dir/out" "$dir/log" >&2; return 1; }
    sql "$URL" "select count(*) from worker.enqueue_many('note', array_fill('{}'::jsonb, '{40}'))"
    sql "$URL" "select count(*) from worker.enqueue_many('noop', array_fill('{}'::jsonb, '{40}'))"
    run -0 "$PGKIN" work -d "$bouncer" --poll-only --stop-when-idle
    [ "$(sql "$URL" "select count(*) from worker.tasks where state = 'completed'")" = 80 ]
    # Without being told, it finds out.
    in_background "$LOG" "$PGKIN" work -d "$bouncer"
    wait_until 30 grep -q 'there is a pooler in between' "$LOG"
    polls() { [ "$(sql "$URL" "select listening from worker.worker where stopped_at is null")" = f ]; }
    wait_until 10 polls
    a=$(enqueue noop)
    b=$(enqueue note)
    wait_until 20 state_of "$a" completed
    wait_until 20 state_of "$b" completed
    [ "$(sql "$URL" "select count(*), count(distinct task) from app.ran")" = '41|41' ]
}
