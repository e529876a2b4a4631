#!/usr/bin/env bats
# SPDX-License-Identifier: Apache-2.0
#
# Programs and web services as handlers, run by pgkin work: the examples, what
# their answers do to a task, and handlers that are stopped or that kill.

bats_require_minimum_version 1.5.0
load ../lib/system

ROOT=$BATS_TEST_DIRNAME/../..
INVOICE='{"items": [{"price": 3.5, "quantity": 2}]}'

setup()
{
    case $BATS_TEST_DESCRIPTION in
    *.mjs*) command -v node >/dev/null || skip "there is no node" ;;
    esac
    URL=$(migrated_database)
    LOG=$BATS_TEST_TMPDIR/work.log
    mkdir "$BATS_TEST_TMPDIR/credentials" "$BATS_TEST_TMPDIR/bin"
    echo whsec_c2VzYW1l >"$BATS_TEST_TMPDIR/credentials/invoices"
    export PGKIN_CREDENTIALS=$BATS_TEST_TMPDIR/credentials
}

teardown()
{
    local pid
    while read -r pid; do
        kill -KILL "$pid" 2>/dev/null || true
    done < <(cat "$BATS_TEST_TMPDIR/pids" 2>/dev/null)
    system_teardown
}

work()
{
    in_background "$LOG" "$PGKIN" work -d "$URL" "$@"
    wait_until 20 grep -q 'worker started' "$LOG"
}

# program NAME: a program from standard input; prints its path.
program()
{
    { echo '#!/bin/sh'; cat; } >"$BATS_TEST_TMPDIR/bin/$1"
    chmod 755 "$BATS_TEST_TMPDIR/bin/$1"
    echo "$BATS_TEST_TMPDIR/bin/$1"
}

# exec_command NAME PROGRAM [OPTIONS]
exec_command()
{
    sql "$URL" "select worker.register_command('$1', p_kind => 'exec', p_program => '$2'${3:+, $3})" >/dev/null
}

enqueue()
{
    sql "$URL" "select worker.enqueue('$1', '${2:-{\}}')"
}

state_of()
{
    local state task=$1
    shift
    state=$(sql "$URL" "select state from worker.tasks where id = $task") || return
    echo "$state"
    [[ " $* " == *" $state "* ]]
}

task()
{
    sql "$URL" "select $2 from worker.tasks where id = $1"
}

# start_service FILE: sets $SERVICE.
start_service()
{
    in_background "$BATS_TEST_TMPDIR/service.log" env PGKIN_SIGNING_SECRET=whsec_c2VzYW1l "$1" 0
    wait_until 20 grep -q '^listening on ' "$BATS_TEST_TMPDIR/service.log"
    SERVICE=$(sed -n 's/^listening on //p' "$BATS_TEST_TMPDIR/service.log")
}

check_http_example()
{
    start_service "$ROOT/examples/$1"
    sql "$URL" "select worker.register_command('invoice_total', p_kind => 'http', p_url => '$SERVICE',
        p_allow_private => '{127.0.0.1/32,::1/128}', p_signing_secret => 'secret:invoices', p_max_attempts => 5)" >/dev/null
    good=$(enqueue invoice_total "$INVOICE")
    bad=$(enqueue invoice_total '{"items": 5}')
    run -0 "$PGKIN" work -d "$URL" --stop-when-idle
    state_of "$good" completed
    [ "$(task "$good" "result ->> 'total' in ('7', '7.0')")" = t ]
    state_of "$bad" failed
    [ "$(task "$bad" attempt)" = 1 ] # for good: not tried again
}

@test "examples/http_handler.py" {
    check_http_example http_handler.py
}

@test "examples/http_handler.mjs" {
    check_http_example http_handler.mjs
}

check_exec_example()
{
    cp "$ROOT/examples/$1" "$BATS_TEST_TMPDIR/bin/handler"
    chmod 755 "$BATS_TEST_TMPDIR/bin/handler"
    exec_command invoice_total "$BATS_TEST_TMPDIR/bin/handler" \
        "p_arguments => '{$BATS_TEST_TMPDIR/closed}', p_max_attempts => 5"
    good=$(enqueue invoice_total "$INVOICE")
    bad=$(enqueue invoice_total '{"items": 5}')
    run -0 "$PGKIN" work -d "$URL" --stop-when-idle
    state_of "$good" completed
    [ "$(task "$good" "result ->> 'total' in ('7', '7.0')")" = t ]
    state_of "$bad" failed
    touch "$BATS_TEST_TMPDIR/closed"
    later=$(enqueue invoice_total "$INVOICE")
    run -0 "$PGKIN" work -d "$URL" --stop-when-idle
    state_of "$later" pending # put off, and nothing charged
    [ "$(sql "$URL" "select failures from queues.timer where $later = any(task_ids)")" = 0 ]
}

@test "examples/exec_handler.py" {
    check_exec_example exec_handler.py
}

@test "examples/exec_handler.mjs" {
    check_exec_example exec_handler.mjs
}

@test "a task keeps its idempotency key from attempt to attempt" {
    path=$(program key <<'EOF'
echo "$PGKIN_IDEMPOTENCY_KEY $PGKIN_ATTEMPT" >>"$0.log"
[ "$PGKIN_ATTEMPT" = 3 ]
EOF
    )
    exec_command key "$path" "p_max_attempts => 3, p_backoff_initial => '10 ms'"
    id=$(enqueue key)
    work
    wait_until 20 state_of "$id" completed
    [ "$(cut -d' ' -f2 "$path.log" | tr '\n' ,)" = 1,2,3, ]
    [ "$(cut -d' ' -f1 "$path.log" | sort -u | wc -l)" = 1 ]
    [ "$(sql "$URL" "select count(*) from queues.error where task_id = $id")" = 2 ]
}

@test "a program over its time gets TERM, then KILL, with all it has started" {
    path=$(program deaf <<'EOF'
trap '' TERM
sleep 300 &
echo $! >"$0.child"
echo started >&2
while :; do sleep 0.1; done
EOF
    )
    exec_command deaf "$path" "p_timeout => '200 ms'"
    id=$(enqueue deaf)
    printf '[exec]\nkill_after = 300ms\n' >"$BATS_TEST_TMPDIR/conf"
    run -0 "$PGKIN" work -d "$URL" --config "$BATS_TEST_TMPDIR/conf" --stop-when-idle
    state_of "$id" failed
    [[ $(task "$id" error) == 'timed out after 0.2 s'* ]]
    wait_until 10 is_gone "$(cat "$path.child")"
}

@test "cancel and shutdown reach a running program" {
    path=$(program nap <<'EOF'
exec sleep 300
EOF
    )
    exec_command nap "$path"
    work
    a=$(enqueue nap)
    b=$(enqueue nap)
    wait_until 20 state_of "$a" processing
    wait_until 20 state_of "$b" processing
    sql "$URL" "select worker.cancel($a, 'no need')" >/dev/null
    wait_until 20 state_of "$a" canceled
    kill -TERM "$background_pid"
    wait_until 20 grep -q 'msg=stopping' "$LOG"
    kill -TERM "$background_pid"
    status=0
    wait "$background_pid" || status=$?
    [ "$status" = 1 ]
    state_of "$b" pending
    [ "$(sql "$URL" "select count(*) from queues.error where task_id = $b")" = 0 ]
}

@test "a program that kills its worker every time ends failed, and its neighbours run once" {
    path=$(program poison <<'EOF'
kill -KILL $PPID
EOF
    )
    good=$(program good <<'EOF'
echo "$PGKIN_TASK_ID" >>"$0.log"
EOF
    )
    exec_command poison "$path" "p_max_leases => 3"
    exec_command good "$good"
    id=$(enqueue poison)
    sql "$URL" "select count(*) from worker.enqueue_many('good', array_fill('{}'::jsonb, '{6}'))"
    settled() { [ "$(sql "$URL" "select count(*) from queues.task_completed")" = 7 ]; }
    for ((i = 0; i < 12; i++)); do
        settled && break
        "$PGKIN" work -d "$URL" --queue default:1 --stop-when-idle >>"$LOG" 2>&1 || true
        # Whoever comes next finds the dead one, once its heartbeat is old.
        sql "$URL" "update worker.heartbeat set beat_at = beat_at - interval '1 hour'" >/dev/null
        sql "$URL" "select worker.recover_dead_workers()" >/dev/null
    done
    settled
    state_of "$id" failed
    [[ $(task "$id" error) == 'lost with its worker 3 times'* ]]
    [ "$(sql "$URL" "select count(*) from worker.tasks where command = 'good' and state = 'completed'")" = 6 ]
}

@test "500 web calls at once take about as long as one, on two connections" {
    cat >"$BATS_TEST_TMPDIR/slow.py" <<'EOF'
import asyncio
async def handle(reader, writer):
    try:
        while True:
            head = await reader.readuntil(b"\r\n\r\n")
            length = [int(l.split(b":")[1]) for l in head.split(b"\r\n") if l.lower().startswith(b"content-length:")]
            await reader.readexactly(length[0])
            await asyncio.sleep(1)
            writer.write(b"HTTP/1.1 200 OK\r\nContent-Length: 4\r\n\r\ntrue")
            await writer.drain()
    except (asyncio.IncompleteReadError, ConnectionError):
        writer.close()
async def main():
    server = await asyncio.start_server(handle, "127.0.0.1", 0, backlog=4096)
    print("listening on http://127.0.0.1:%d/" % server.sockets[0].getsockname()[1], flush=True)
    await server.serve_forever()
asyncio.run(main())
EOF
    in_background "$BATS_TEST_TMPDIR/slow.log" python3 "$BATS_TEST_TMPDIR/slow.py"
    wait_until 20 grep -q listening "$BATS_TEST_TMPDIR/slow.log"
    address=$(sed -n 's/^listening on //p' "$BATS_TEST_TMPDIR/slow.log")
    sql "$URL" "set client_min_messages = warning;
        select worker.register_command('call', 'calls', p_kind => 'http', p_url => '$address', p_allow_private => '{127.0.0.0/8}');
        update worker.queue_registry set top_concurrency = null where queue = 'calls'" >/dev/null
    sql "$URL" "select count(*) from worker.enqueue_many('call', array_fill('{}'::jsonb, '{500}'))"
    work --queue calls:500
    all() { [ "$(sql "$URL" "select count(*) from queues.task_completed where state = 'completed'")" = 500 ]; }
    most=0
    for ((i = 0; i < 200; i++)); do
        n=$(sql "$URL" "select count(*) from pg_stat_activity where application_name = 'pgkin worker' and datname = current_database()")
        ((n <= most)) || most=$n
        all && break
    done
    all
    [ "$most" -le 2 ]
    # One after the other they would take 500 seconds.
    [ "$(sql "$URL" "select max(completed_at) - min(completed_at) < interval '20 seconds' from queues.task_completed")" = t ]
}
