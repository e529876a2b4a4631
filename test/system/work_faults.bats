#!/usr/bin/env bats
# SPDX-License-Identifier: Apache-2.0
#
# A worker and a server of its own that goes away, comes back, is full, or turns
# read-only. No effect of a task is lost or repeated, and the worker stays.

bats_require_minimum_version 1.5.0
load ../lib/system

setup_file()
{
    BIN=$(dirname "$(printf '%s\n' /usr/lib/postgresql/*/bin/postgres | sort -rV | head -n 1)")
    PLACE=$(user_directory)
    ((EUID != 0)) || chown postgres: "$PLACE"
    chmod 755 "$PLACE"
    export BIN PLACE
    as_postgres "$BIN/initdb" -D "$PLACE/template" -U postgres -A trust -E UTF8 --no-locale --no-sync >/dev/null
    cat >>"$PLACE/template/postgresql.conf" <<EOF
listen_addresses = ''
fsync = off
max_connections = 20
superuser_reserved_connections = 5
shared_buffers = 32MB
EOF
}

teardown_file()
{
    rm -rf "$PLACE"
}

as_postgres()
{
    if ((EUID == 0)); then
        setpriv --reuid postgres --regid postgres --init-groups "$@"
    else
        "$@"
    fi
}

setup()
{
    DIR=$PLACE/$BATS_TEST_NUMBER
    LOG=$BATS_TEST_TMPDIR/work.log
    URL="host=$DIR.s user=postgres dbname=postgres"
    cp -a "$PLACE/template" "$DIR"
    mkdir "$DIR.s"
    ((EUID != 0)) || chown postgres: "$DIR.s"
    start_server
    "$PGKIN" migrate -d "$URL" >/dev/null
    sql "$URL" "
        set client_min_messages = warning;
        create schema app;
        create table app.ran (task bigint);
        create procedure app.note(payload jsonb) language plpgsql as \$\$
        begin
          insert into app.ran values (worker.current_task_id());
          perform pg_sleep(coalesce((payload ->> 's')::float, 0));
        end \$\$;
        select worker.register_command('note', 'default', 'app.note');
        select worker.register_command('echo', 'default', p_kind => 'native');" >/dev/null
}

teardown()
{
    local pid
    while read -r pid; do
        kill -KILL "$pid" 2>/dev/null || true
    done < <(cat "$BATS_TEST_TMPDIR/pids" 2>/dev/null)
    stop_server QUIT
    system_teardown
}

start_server()
{
    as_postgres "$BIN/postgres" -D "$DIR" -k "$DIR.s" </dev/null >>"$DIR.log" 2>&1 3>&- &
    server=$!
    wait_until 30 sql "$URL" 'select 1'
}

# stop_server SIGNAL: QUIT is an immediate shutdown.
stop_server()
{
    local pid
    pid=$(head -n 1 "$DIR/postmaster.pid" 2>/dev/null) || return 0
    kill -"$1" "$pid" 2>/dev/null || return 0
    wait_until 30 is_gone "$pid"
    wait "$server" 2>/dev/null || true
}

work()
{
    in_background "$LOG" "$PGKIN" work -d "$URL" "$@"
    wait_until 20 grep -q 'worker started' "$LOG"
}

completed()
{
    [ "$(sql "$URL" "select count(*) from queues.task_completed where state = 'completed'")" = "$1" ]
}

# Every SQL task had its effect, once, and the worker is there and can be stopped.
all_is_well()
{
    [ "$(sql "$URL" "select count(*), count(distinct task) from app.ran")" = "$1|$1" ]
    [ "$(sql "$URL" "select count(*) from queues.error")" = 0 ]
    kill -TERM "$background_pid"
    wait "$background_pid"
    [ "$(sql "$URL" "select count(*) from queues.lease_open")" = 0 ]
}

@test "immediate restarts of the server" {
    sql "$URL" "select count(*) from worker.enqueue_many('note', array_fill('{\"s\": 0.002}'::jsonb, '{400}'))"
    sql "$URL" "select count(*) from worker.enqueue_many('echo', array_fill('{\"a\": 1}'::jsonb, '{2000}'))"
    work --queue default:2
    for ((i = 0; i < 4; i++)); do
        sleep 0.3
        stop_server QUIT
        start_server
    done
    wait_until 90 completed 2400
    all_is_well 400
    # One line for each loss of each connection, not a flood.
    [ "$(grep -c "connection lost" "$LOG")" -le 100 ] || { cut -c1-200 "$LOG" >&2; return 1; }
}

@test "all connections taken" {
    hogs=()
    sql "$URL" "create role service login in role worker_service_user;
                grant usage on schema app to service; grant all on app.ran to service" >/dev/null
    SERVICE=${URL/user=postgres/user=service}
    in_background "$LOG" "$PGKIN" work -d "$SERVICE" --queue default:4
    wait_until 20 grep -q 'worker started' "$LOG"
    for ((i = 0; i < 60; i++)); do
        PGOPTIONS='-c client_connection_check_interval=100' \
            psql -X -q -d "$SERVICE" -c 'select pg_sleep(60)' >/dev/null 2>&1 3>&- &
        hogs+=($!)
        echo $! >>"$BATS_TEST_TMPDIR/pids"
    done
    refused() { ! sql "$SERVICE" 'select 1'; }
    wait_until 20 refused
    sql "$URL" "select count(*) from worker.enqueue_many('note', array_fill('{\"s\": 0.002}'::jsonb, '{100}'))"
    sql "$URL" "select count(*) from worker.enqueue_many('echo', array_fill('{\"a\": 1}'::jsonb, '{100}'))"
    # Lost now, a session is not easily had again.
    sql "$URL" "select pg_terminate_backend(pid) from pg_stat_activity where application_name = 'pgkin worker'" >/dev/null
    sleep 1
    for pid in "${hogs[@]}"; do
        kill "$pid" 2>/dev/null || true
    done
    wait_until 60 completed 200
    all_is_well 100
}

@test "a server that has turned read-only, and back" {
    work --queue default:2
    sql "$URL" "alter system set default_transaction_read_only = on" >/dev/null
    sql "$URL" "select pg_reload_conf()" >/dev/null
    readonly_now() { [ "$(sql "$URL" 'show default_transaction_read_only')" = on ]; }
    wait_until 10 readonly_now
    # A transaction that began before, as it were.
    PGOPTIONS='-c default_transaction_read_only=off' sql "$URL" "
        select count(*) from worker.enqueue_many('note', array_fill('{}'::jsonb, '{20}'))"
    PGOPTIONS='-c default_transaction_read_only=off' sql "$URL" "
        select count(*) from worker.enqueue_many('echo', array_fill('{}'::jsonb, '{20}'))"
    wait_until 20 grep -q 'read-only' "$LOG"
    PGOPTIONS='-c default_transaction_read_only=off' sql "$URL" "alter system reset default_transaction_read_only"
    sql "$URL" "select pg_reload_conf()" >/dev/null
    wait_until 60 completed 40
    all_is_well 20
}

@test "a worker starts before its server" {
    stop_server INT
    in_background "$LOG" "$PGKIN" work -d "$URL"
    wait_until 20 grep -q 'connection lost' "$LOG"
    start_server
    wait_until 20 grep -q 'worker started' "$LOG"
    sql "$URL" "select worker.enqueue('note')"
    wait_until 20 completed 1
    all_is_well 1
}

@test "no schema, and no rights: says so and exits 1" {
    sql "$URL" "create database bare" >/dev/null
    run -1 --separate-stderr "$PGKIN" work -d "${URL/dbname=postgres/dbname=bare}"
    [[ $stderr == *"hint:"*"pgkin migrate"* ]]
    sql "$URL" "create role nobody login" >/dev/null
    run -1 --separate-stderr "$PGKIN" work -d "${URL/user=postgres/user=nobody}"
    [[ $stderr == *"hint:"*worker_service_user* ]]
    sql "$URL" "grant worker_service_user to nobody" >/dev/null
    sql "$URL" "select worker.enqueue('echo')" >/dev/null
    run -0 "$PGKIN" work -d "${URL/user=postgres/user=nobody}" --stop-when-idle
    completed 1
}
