#!/usr/bin/env bats
# SPDX-License-Identifier: Apache-2.0
#
# `pgkin status`, `pgkin top`, and what every command of a database says when
# the schema or the rights are missing.

bats_require_minimum_version 1.5.0
load ../lib/system
load ../lib/cli

setup()
{
    cli_database
}

teardown()
{
    system_teardown
    drop_user
}

# row QUEUE: its line of `pgkin status`, with single blanks.
row()
{
    "$PGKIN" status | sed -n "s/^$1  */$1 /p" | tr -s ' '
}

@test "status: what is there" {
    run --separate-stderr "$PGKIN" status
    echo "$output"
    [ "$status" -eq 0 ]
    [ -z "$stderr" ]
    [[ ${lines[0]} =~ ^database\ t_.*,\ PostgreSQL\ [0-9.]+,\ schema\ version\ [0-9]+$ ]]
    [ "${lines[-1]}" = 'no workers' ]
    [[ $(row default) == 'default 0 0 0 0 0' ]]

    "$PGKIN" enqueue run '{"fail": "x"}'
    work
    "$PGKIN" enqueue run '{"children": 2}'
    sql "$DATABASE_URL" 'call worker.process_tasks()'
    "$PGKIN" enqueue later --at +1h
    "$PGKIN" enqueue run
    sql "$DATABASE_URL" "select worker.register_worker('mine', 'here', 77)"
    sql "$DATABASE_URL" "select task_id from queues.exchange('q', 1, p_worker_id => 1, p_lanes => '{1}')"
    [[ $(row q) =~ ^q\ 2\ 1\ 1\ 1\ 1\ [0-9.]+m?s$ ]]
    [[ $("$PGKIN" status) =~ WORKER\ .*$'\n'\ +1\ +mine\ +here\ +77\ +1\ .*\ alive ]]
    [ "$("$PGKIN" status --json | json '[(q["queue"], q["pending"], q["scheduled"], q["processing"],
        q["waiting"], q["failed_last_hour"]) for q in d["queues"]], d["workers"][0]["alive"],
        d["workers"][0]["tasks"], d["server"]["schema_version"] > 0')" = \
        "[('default', 0, 0, 0, 0, 0), ('q', 2, 1, 1, 1, 1)] True 1 True" ]
    # Not heard of for a while.
    PGOPTIONS="-c worker.fake_now=$(date -ud '+30 seconds' +%FT%TZ)" run "$PGKIN" status
    [[ $output == *' silent' ]]
    sql "$DATABASE_URL" 'select worker.stop_worker(1)'
    [ "$("$PGKIN" status | tail -n 1)" = 'no workers' ]
}

@test "status: a paused queue, and a long backlog" {
    sql "$DATABASE_URL" "
        update worker.queue_registry set paused = true where queue = 'default';
        update worker.queue_registry set paused = true, paused_until = '2100-01-01T00:00:00Z' where queue = 'q';
        select count(*) from worker.enqueue_many('run', array_fill('{}'::jsonb, '{10001}'))"
    [[ $(row default) == *' paused' ]]
    [[ $(row q) == 'q >10000 '*' paused until 2100-01-01 '* ]]
}

# ---------------------------------------------------------------- top

# top_on_terminal KEYS...: runs `pgkin top` on a terminal, sends each of the keys
# when the screen has been drawn once more, and prints what came.
top_on_terminal()
{
    python3 -c '
import fcntl, os, pty, select, struct, sys, termios, time
pid, fd = pty.fork()
if pid == 0:
    os.execv(sys.argv[1], [sys.argv[1], "top"])
fcntl.ioctl(fd, termios.TIOCSWINSZ, struct.pack("HHHH", 10, 60, 0, 0))
out, keys, deadline, seen = b"", sys.argv[2:], time.time() + 30, 0
while time.time() < deadline:
    if not select.select([fd], [], [], 1)[0]:
        continue
    try:
        chunk = os.read(fd, 65536)
    except OSError:
        break
    if not chunk:
        break
    out += chunk
    drawn = out.count(b"\x1b[J")
    if keys and drawn > seen:
        seen = drawn
        os.write(fd, keys.pop(0).encode())
else:
    os.kill(pid, 9)
    print("it did not end")
sys.stdout.buffer.write(out.replace(b"\x1b", b"^["))
sys.exit(os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1]))' "$PGKIN" "$@"
}

@test "top: on a terminal, until q; the terminal is as before" {
    "$PGKIN" enqueue run
    run top_on_terminal x x q
    echo "$output"
    [ "$status" -eq 0 ]
    [[ $output == '^[[?1049h^[[?25l^[[H'* ]]
    [[ $output == *'^[[?25h^[[?1049l' ]]
    [ "$(grep -o 'QUEUE ' <<<"$output" | wc -l)" -ge 3 ]
    [[ $output == *pending* ]]
}

@test "top: Ctrl-C" {
    run top_on_terminal x $'\x03'
    [ "$status" -eq 0 ]
    [[ $output == *'^[[?25h^[[?1049l'* ]]
}

@test "top: into a pipe, once" {
    "$PGKIN" enqueue run
    run --separate-stderr timeout 20 "$PGKIN" top
    [ "$status" -eq 0 ]
    [[ $output == *$'QUEUE '*$'\nno workers\n\nID  STATE'*pending* ]] || { echo "$output" && false; }
    [[ $output != *$'\e'* ]]
    fails 2 'option "--interval" *' '' "$PGKIN" top --interval 0
}

# ---------------------------------------------------------------- no schema

commands_of_a_database()
{
    printf '%s\n' 'enqueue run' tasks 'show 1' 'cancel 1' 'retry 1' 'pause q' 'resume q' status top slots
}

@test "no schema, an older one, a newer one" {
    local empty command
    empty=$(new_database)
    while read -r command; do
        # shellcheck disable=SC2086
        fails 1 'the schema is not installed in database "*"' 'run pgkin migrate' \
            "$PGKIN" $command -d "$empty"
    done < <(commands_of_a_database)
    sql "$DATABASE_URL" "insert into worker.schema_migration values (9999, '9999_future', 'x', now(), 'x')"
    while read -r command; do
        # shellcheck disable=SC2086
        fails 1 '*9999*' '*' "$PGKIN" $command
    done < <(commands_of_a_database)
    sql "$DATABASE_URL" 'delete from worker.schema_migration where version > 3'
    while read -r command; do
        # shellcheck disable=SC2086
        fails 1 'the database has schema version 3, this pgkin needs *' 'run pgkin migrate' \
            "$PGKIN" $command
    done < <(commands_of_a_database)
}

# ---------------------------------------------------------------- rights

# new_user ROLE...: a user with these roles; sets USER_URL.
new_user()
{
    local role database
    user=u_${BASHPID}_$(date +%s%N)
    sql "$PGKIN_TEST_URL" "create role $user login"
    echo "$user" >>"$BATS_TEST_TMPDIR/users"
    for role; do
        sql "$PGKIN_TEST_URL" "grant $role to $user"
    done
    database=$(sql "$DATABASE_URL" 'select current_database()')
    USER_URL=$(url_of "$database" "$user")
}

drop_user()
{
    local name
    [ -e "$BATS_TEST_TMPDIR/users" ] || return 0
    while read -r name; do
        sql "$PGKIN_TEST_URL" "drop role if exists $name" </dev/null
    done <"$BATS_TEST_TMPDIR/users"
}

@test "worker_monitor may look, and no more" {
    "$PGKIN" enqueue run '{"children": 1}'
    sql "$DATABASE_URL" 'call worker.process_tasks()'
    new_user worker_monitor
    local command
    for command in tasks 'tasks -s pending' 'tasks -s failed -q q' 'show 1' 'show 2 --json' status top 'slots --holders'; do
        # shellcheck disable=SC2086
        run --separate-stderr "$PGKIN" $command -d "$USER_URL"
        echo "$command: $stderr"
        [ "$status" -eq 0 ]
        [ -n "$output" ]
    done
    run "$PGKIN" doctor -d "$USER_URL"
    echo "$output"
    [ "$status" -eq 0 ]
    [[ $output == *'ok parents:'* ]]
    fails 1 'permission denied for function enqueue' 'roles give rights: *' \
        "$PGKIN" enqueue run -d "$USER_URL"
    fails 1 'permission denied for function cancel' 'roles give rights: *' \
        "$PGKIN" cancel 2 -d "$USER_URL"
    if has_function 'worker.retry(bigint)'; then
        fails 1 'permission denied for function retry' 'roles give rights: *' \
            "$PGKIN" retry 2 -d "$USER_URL"
    fi
    if has_function 'worker.pause(text, interval)'; then
        fails 1 'permission denied for function pause' 'roles give rights: *' \
            "$PGKIN" pause q -d "$USER_URL"
    fi
}

@test "worker_enqueuer may enqueue; to follow it takes more" {
    new_user worker_enqueuer
    [ "$("$PGKIN" enqueue run -d "$USER_URL")" = 1 ]
    [ "$("$PGKIN" enqueue run --at +5m -d "$USER_URL")" = 2 ]
    fails 1 'user "*" may not look at tasks, so --wait cannot be done; nothing was enqueued' \
        '*worker_monitor*' "$PGKIN" enqueue run --wait -d "$USER_URL"
    [ "$(sql "$DATABASE_URL" 'select count(*) from queues.task')" = 2 ]
    fails 1 'permission denied for *' 'roles give rights: *' "$PGKIN" tasks -d "$USER_URL"
    fails 1 'permission denied for *' 'roles give rights: *' "$PGKIN" status -d "$USER_URL"
}

@test "worker_admin may do all" {
    new_user worker_admin
    export DATABASE_URL=$USER_URL
    "$PGKIN" enqueue run
    "$PGKIN" tasks
    "$PGKIN" show 1
    "$PGKIN" cancel 1
    "$PGKIN" status
    "$PGKIN" doctor
    if has_function 'worker.retry(bigint)'; then
        "$PGKIN" retry 1
    fi
    if has_function 'worker.pause(text, interval)'; then
        "$PGKIN" pause q
        "$PGKIN" resume q
    fi
}

@test "a stranger is told so" {
    new_user
    local command
    while read -r command; do
        # shellcheck disable=SC2086
        fails 1 'user "u_*" has no rights in the schema' 'roles give rights: *' \
            "$PGKIN" $command -d "$USER_URL"
    done < <(commands_of_a_database)
    run "$PGKIN" doctor -d "$USER_URL"
    [ "$status" -eq 1 ]
    [[ ${lines[0]} == 'fail schema: user "u_'* ]]
}
