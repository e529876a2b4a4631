#!/usr/bin/env bats
# SPDX-License-Identifier: Apache-2.0
#
# `pgkin tasks` and `pgkin show`.

bats_require_minimum_version 1.5.0
load ../lib/system
load ../lib/cli

setup()
{
    cli_database
}

# one_of_each: tasks 1 completed, 2 failed, 3 canceled, 4 waiting with children 5
# (processing) and 6 (pending), 7 scheduled.
one_of_each()
{
    "$PGKIN" enqueue run '{"n": 1}'
    "$PGKIN" enqueue run '{"fail": "no\nway"}'
    work
    "$PGKIN" enqueue run
    "$PGKIN" cancel 3 --reason 'not wanted'
    "$PGKIN" enqueue run '{"children": 2}'
    sql "$DATABASE_URL" 'call worker.process_tasks()'
    "$PGKIN" enqueue later --at +1h
    sql "$DATABASE_URL" "select worker.register_worker('mine', 'here')"
    sql "$DATABASE_URL" "select task_id from queues.exchange('q', 1, p_worker_id => 1, p_lanes => '{1}')"
}

@test "tasks: nothing" {
    run --separate-stderr "$PGKIN" tasks
    [ "$status" -eq 0 ]
    [ "${#lines[@]}" -eq 1 ]
    [[ $output == ID* ]]
    [ -z "$stderr" ]
    [ "$("$PGKIN" tasks --json)" = '[]' ]
}

@test "tasks: newest first, by state, queue and command" {
    one_of_each
    "$PGKIN" tasks
    [ "$("$PGKIN" tasks --json | json '[t["id"] for t in d]')" = '[7, 6, 5, 4, 3, 2, 1]' ]
    [ "$("$PGKIN" tasks --limit 2 --json | json '[t["id"] for t in d]')" = '[7, 6]' ]
    local state ids
    while read -r state ids; do
        [ "$("$PGKIN" tasks --state "$state" --json | json '[t["id"] for t in d]')" = "$ids" ]
    done <<'END'
pending [7, 6]
processing [5]
waiting [4]
completed [1]
failed [2]
canceled [3]
END
    [ "$("$PGKIN" tasks -c later --json | json '[t["id"] for t in d]')" = '[7]' ]
    [ "$("$PGKIN" tasks -q default --json)" = '[]' ]
    [ "$("$PGKIN" tasks -q q -s failed -c run --json |
        json 'd[0]["payload"], d[0]["state"], d[0]["attempt"], d[0]["error"].split("\n")[0]')" = \
        "{'fail': 'no\\nway'} failed 1 no" ]
}

@test "tasks: columns are aligned, one line each" {
    sql "$DATABASE_URL" "
        select worker.enqueue('run', '{\"a\": \"漢字 \\u001b[31mred\"}');
        select worker.enqueue('run', '{\"fail\": \"first\\nsecond\"}')"
    work
    run --separate-stderr "$PGKIN" tasks
    echo "$output"
    [ "${#lines[@]}" -eq 3 ]
    [[ ${lines[0]} =~ ^ID\ \ STATE\ +COMMAND\ \ QUEUE\ \ TRY\ +AGE\ +TOOK\ \ PAYLOAD ]]
    [[ ${lines[1]} =~ ^\ 2\ \ failed\ +run\ +q\ +1\ +.*\ \ first$ ]]
    [[ ${lines[2]} =~ ^\ 1\ \ completed\ +run\ +q\ +1\ +.*\ \ \{\"a\":\ \"漢字 ]]
    [[ $output != *$'\e'* ]]
}

@test "tasks: an escape sequence in an error does not reach the terminal" {
    sql "$DATABASE_URL" "select worker.enqueue('run', '{\"fail\": \"\\u001b[31mred\"}')"
    work
    run "$PGKIN" tasks
    [[ $output == *'[31mred'* ]]
    [[ $output != *$'\e'* ]]
    run "$PGKIN" show 1
    [[ $output == *'[31mred'* ]]
    [[ $output != *$'\e'* ]]
}

# on_terminal COLUMNS COMMAND...: what it writes to a terminal of that width.
on_terminal()
{
    python3 -c '
import fcntl, os, pty, struct, sys, termios
pid, fd = pty.fork()
if pid == 0:
    fcntl.ioctl(1, termios.TIOCSWINSZ, struct.pack("HHHH", 24, int(sys.argv[1]), 0, 0))
    os.execvp(sys.argv[2], sys.argv[2:])
out = b""
while True:
    try:
        chunk = os.read(fd, 65536)
    except OSError:
        break
    if not chunk:
        break
    out += chunk
sys.stdout.buffer.write(out.replace(b"\r\n", b"\n"))
sys.exit(os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1]))' "$@"
}

@test "tasks: lines are cut to the width of a terminal, and nowhere else" {
    "$PGKIN" enqueue run '{"a": "ääääääääääääääääääääääääääääääääääääääääääääääääääääääääääääää"}'
    run on_terminal 60 "$PGKIN" tasks
    echo "$output"
    [ "$status" -eq 0 ]
    [ "$(LC_ALL=C.UTF-8 wc -m <<<"${lines[1]}")" -eq 61 ]
    [[ ${lines[1]} == *…* ]]
    [[ $("$PGKIN" tasks) == *'ä"}' ]]
}

@test "tasks: wrong questions" {
    fails 1 'there is no state "running"' 'states are pending, *' "$PGKIN" tasks --state running
    fails 1 'there is no queue "nowhere"' '' "$PGKIN" tasks --queue nowhere
    fails 1 'unknown command "nothing"' '' "$PGKIN" tasks --command nothing
    fails 2 'option "--limit": "-1" is not a whole number' '*' "$PGKIN" tasks --limit -1
    fails 2 'unexpected argument "failed"' '*' "$PGKIN" tasks failed
}

@test "tasks: it says when not everything was searched" {
    sql "$DATABASE_URL" "select count(*) from worker.enqueue_many('run', array_fill('{}'::jsonb, '{30}'))"
    "$PGKIN" enqueue later
    sql "$DATABASE_URL" "select count(*) from worker.enqueue_many('run', array_fill('{}'::jsonb, '{30}'))"
    PGOPTIONS='-c worker.list_window=25' run --separate-stderr "$PGKIN" tasks -c later --json
    [ "$status" -eq 0 ]
    [ "$output" = '[]' ]
    [ "$stderr" = 'pgkin: only the newest tasks were searched; there may be older ones' ]
    run --separate-stderr "$PGKIN" tasks -c later --json
    [ "$(json 'd[0]["id"]' <<<"$output")" = 31 ]
    [ -z "$stderr" ]
}

# ---------------------------------------------------------------- show

@test "show: an ended task, its error and its attempts" {
    one_of_each
    run --separate-stderr "$PGKIN" show 2
    echo "$output"
    [ "$status" -eq 0 ]
    [ "${lines[0]}" = 'task 2: failed' ]
    [[ $output == *$'\n  error      no\n             way\n'* ]]
    [[ $output == *'why        It failed at '*' after 1 attempt(s) with: no'* ]]
    [[ $output == *$'\nattempts\n  TRY  FROM '*' failed '* ]]
    [[ $output == *$'\nerrors\n  '*$' attempt 1\n    no\n    way'* ]]
    [[ $output != *$'\ntree\n'* ]]
    run "$PGKIN" show 3
    [ "${lines[0]}" = 'task 3: canceled' ]
    [[ $output == *'not wanted'* ]]
    [[ $output != *$'\nattempts\n'* ]]
}

@test "show: a tree, from wherever it is looked at" {
    one_of_each
    for id in 4 5 6; do
        run "$PGKIN" show "$id"
        echo "$output"
        tree=$(sed -n '/^tree$/,/^$/p' <<<"$output")
        [ "${tree/>/ }" = $'tree\n  4 run waiting\n    5 run processing\n    6 run pending' ]
        [[ $(grep '^>' <<<"$tree") =~ ^\>\ +$id\  ]]
    done
    run "$PGKIN" show 4
    [[ $output == *'waiting for 2 child(ren): 5, 6.'* ]]
    run "$PGKIN" show 5
    [[ $output == *'running  mine on here'* ]]
    [[ $output == *'It is held by worker 1 '* ]]
}

@test "show: of a large tree, the task itself is always there" {
    sql "$DATABASE_URL" "
        insert into worker.tasks (command) values ('run');
        select count(worker.spawn_task('run', '{}', 1)) from generate_series(1, 150)"
    run "$PGKIN" show 140
    echo "$output"
    [[ $output == *$'\n  1 run pending\n    2 run pending\n'* ]]
    [[ $output == *$'\n>   140 run pending\n  … and more'* ]]
    [[ $output != *$'\n    141 run '* ]]
}

@test "show --json" {
    one_of_each
    run "$PGKIN" show 2 --json
    [ "$(json 'd["task"]["state"], d["task"]["explanation"][:12], len(d["tree"]),
               d["attempts"][0]["outcome"], d["errors"][0]["error_message"][:6]' <<<"$output")" = \
        'failed It failed at 1 failed no
way' ]
    run "$PGKIN" show 6 --json
    [ "$(json '[(t["id"], t["depth"], t["here"]) for t in d["tree"]]' <<<"$output")" = \
        '[(4, 0, False), (5, 1, False), (6, 1, True)]' ]
}

@test "show: no such task, no id" {
    fails 1 'there is no task 99' 'it was never enqueued, *' "$PGKIN" show 99
    fails 2 'which task? its id is missing' 'see pgkin show --help' "$PGKIN" show
    for id in x 1x -- 0 1.5 99999999999999999999 "1; select 1"; do
        run "$PGKIN" show "$id"
        [ "$status" -eq 2 ]
    done
}

# ---------------------------------------------------------------- cost

# How many rows were read by scans of tables and indexes of the queue, so far.
rows_read()
{
    sql "$DATABASE_URL" "
        select (select sum(seq_tup_read) from pg_stat_user_tables where schemaname = 'queues')
             + (select sum(idx_tup_read) from pg_stat_user_indexes where schemaname = 'queues')"
}

# No statistics: the planner must not be free to choose the worst.
@test "a long history is not read" {
    sql "$DATABASE_URL" "
        alter table queues.task set (autovacuum_enabled = off);
        alter table queues.task_completed set (autovacuum_enabled = off);
        insert into queues.task (task_id, task_type, payload, enqueued_at, scheduled_at, priority, queue_id)
          select nextval('queues.task_id_seq'), 'run', '{}', now(), now(), 0, q.queue_id
            from worker.queue_registry q, generate_series(1, 200000) where q.queue = 'q';
        insert into queues.task_completed (task_id, completed_at, queue_id, state, attempt)
          select t.task_id, now(), t.queue_id, 'completed', 1 from queues.task t;
        select from queues.enqueue('run', '{\"children\": 2}')" >/dev/null
    sql "$DATABASE_URL" 'call worker.process_tasks()'
    local before arguments
    before=$(rows_read)
    for arguments in tasks 'tasks -s pending' 'tasks -s processing' 'tasks -s waiting' \
        'tasks -s failed' 'tasks -q default -s pending' 'show 200001' 'show 200002' 'show 7'; do
        # shellcheck disable=SC2086
        run "$PGKIN" $arguments
        [ "$status" -eq 0 ]
        run rows_read
        echo "$arguments: $((output - before))"
        [ $((output - before)) -lt 5000 ]
        before=$output
    done
}
