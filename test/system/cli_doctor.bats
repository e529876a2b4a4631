#!/usr/bin/env bats
# SPDX-License-Identifier: Apache-2.0
#
# `pgkin doctor`: quiet when all is well, and each check finds what it is for.

bats_require_minimum_version 1.5.0
load ../lib/system
load ../lib/cli

setup()
{
    cli_database
}

# finds STATUS LINE [HINT]: among the lines there is one like that, and after it
# the hint. Patterns both.
finds()
{
    local i
    run --separate-stderr "$PGKIN" doctor
    echo "$output"
    [ "$status" -eq "$1" ]
    [ -z "$stderr" ]
    for i in "${!lines[@]}"; do
        # shellcheck disable=SC2053 # patterns are wanted
        if [[ ${lines[i]} == $2 ]]; then
            [[ ${3:-} == '' || ${lines[i + 1]} == hint:\ $3 ]]
            return
        fi
    done
    return 1
}

# later SECONDS: what pgkin takes for the time.
later()
{
    echo "-c worker.fake_now=$(date -ud "+$1 seconds" +%FT%TZ)"
}

@test "all is well" {
    run --separate-stderr "$PGKIN" doctor
    echo "$output"
    [ "$status" -eq 0 ]
    [ -z "$stderr" ]
    for line in "${lines[@]}"; do
        [[ $line =~ ^ok\ [a-z-]+:\ .+ ]]
    done
    for check in schema functions roles grants workers leases parents snapshot dead-rows \
        autovacuum notifications clock; do
        grep -q "^ok $check: " <<<"$output"
    done
    [ "$("$PGKIN" doctor --json | json 'd["level"], {c["level"] for c in d["checks"]},
        d["checks"][0]["check"], d["checks"][0]["hint"]')" = "ok {'ok'} schema None" ]
}

@test "no schema, another version" {
    local migrated=$DATABASE_URL
    DATABASE_URL=$(new_database)
    finds 1 'fail schema: the schema is not installed *' 'run pgkin migrate'
    # What does not need it is checked all the same.
    finds 1 'ok autovacuum: on'
    [ "$("$PGKIN" doctor --json | json 'd["level"], d["checks"][0]["hint"]')" = 'fail run pgkin migrate' ]
    DATABASE_URL=$migrated
    sql "$DATABASE_URL" 'delete from worker.schema_migration where version > 3'
    finds 1 'fail schema: the database has schema version 3, *' 'run pgkin migrate'
}

@test "no database" {
    fails 1 'cannot connect: *' '*' "$PGKIN" doctor -d 'host=/nowhere'
}

@test "functions of another build" {
    sql "$DATABASE_URL" "
        update worker.schema_function set checksum = 'x' where name = '30_claim';
        insert into worker.schema_function values ('99_strange', 'x');
        delete from worker.schema_function where name = '40_finish'"
    finds 0 'warn functions: of another build of pgkin: 30_claim, 99_strange, 1 missing' '*pgkin migrate*'
}

@test "roles without rights" {
    sql "$DATABASE_URL" 'revoke usage on schema worker from worker_monitor'
    finds 0 'warn roles: worker_monitor may not use the schema' '*pgkin migrate*'
}

@test "rights of PUBLIC" {
    sql "$DATABASE_URL" "create function worker.mine() returns int language sql as 'select 1'"
    finds 0 'warn grants: PUBLIC has rights on 1: worker.mine()' '*'
    sql "$DATABASE_URL" 'alter function worker.mine() security definer'
    finds 1 'fail grants: PUBLIC has rights on 1: worker.mine()' '*'
    sql "$DATABASE_URL" 'drop function worker.mine(); grant select on queues.task to public'
    finds 1 'fail grants: PUBLIC has rights on 1: table queues.task' '*'
    sql "$DATABASE_URL" 'revoke select on queues.task from public; grant usage on schema queues to public'
    finds 1 'fail grants: PUBLIC has rights on 1: schema queues' '*'
}

@test "work, and nobody to do it" {
    "$PGKIN" enqueue run
    finds 0 'warn workers: 0 alive, and tasks are due' '*pgkin work'
    sql "$DATABASE_URL" "select worker.register_worker('mine')"
    finds 0 'ok workers: 1 alive'
}

@test "abandoned work" {
    "$PGKIN" enqueue run
    sql "$DATABASE_URL" "select worker.register_worker('mine')"
    sql "$DATABASE_URL" "select task_id from queues.exchange('q', 1, p_worker_id => 1, p_lanes => '{0}')"
    finds 0 'ok leases: *'
    PGOPTIONS=$(later 30) finds 0 'warn leases: abandoned: worker 1 (mine) holds 1, silent for 00:00:*' '*'
    PGOPTIONS=$(later 90) finds 1 'fail leases: abandoned: worker 1 (mine) holds 1, silent for 00:01:*' '*'
    sql "$DATABASE_URL" 'select worker.stop_worker(1)'
    PGOPTIONS=$(later 90) finds 0 'ok leases: *'
    # A session that took a task and is gone.
    sql "$DATABASE_URL" "select task_ids from worker.lease_sql_tasks('q', 1, null, '{0}', false)"
    finds 0 'warn leases: abandoned: session * holds 1, gone' '*'
}

@test "a parent that waits in vain" {
    "$PGKIN" enqueue run '{"children": 1}'
    sql "$DATABASE_URL" 'call worker.process_tasks()'
    PGOPTIONS=$(later 60) finds 0 'ok parents: *'
    sql "$DATABASE_URL" "
        delete from queues.ready;
        insert into queues.task_completed (task_id, completed_at, queue_id, state)
          select task_id, now(), queue_id, 'completed' from queues.task where task_id = 2"
    finds 0 'ok parents: *'
    PGOPTIONS=$(later 60) finds 1 'fail parents: 1 wait although their children have ended: 1' '*'
}

@test "a leaked slot" {
    [ "$(sql "$DATABASE_URL" "select to_regclass('worker.slot_problem') is not null")" = t ] ||
        skip 'there are no limits'
    sql "$DATABASE_URL" "select worker.register_command('limited', 'q', 'app.run', p_concurrency_limit => 2)"
    "$PGKIN" enqueue limited
    sql "$DATABASE_URL" "select worker.register_worker('mine')"
    sql "$DATABASE_URL" "select task_id from queues.exchange('q', 1, p_worker_id => 1, p_lanes => queues.all_lanes())"
    finds 0 'ok slots: *'
    sql "$DATABASE_URL" 'delete from queues.lease_open'
    finds 1 'fail slots: limited of lease * has ended' '*reconcile_slots*'
}

@test "who holds the oldest snapshot" {
    in_background "$BATS_TEST_TMPDIR/log" env PGAPPNAME=holder psql -X -q -A -t -d "$DATABASE_URL" \
        -c 'begin isolation level repeatable read' -c 'select pg_backend_pid()' -c 'select pg_sleep(60)'
    wait_until 20 grep -q '[0-9]' "$BATS_TEST_TMPDIR/log"
    sql "$DATABASE_URL" 'create table advance ()'
    finds 0 "ok snapshot: the oldest is held by session $(cat "$BATS_TEST_TMPDIR/log") of user postgres (holder, *"
}

@test "dead rows, and no autovacuum" {
    sql "$DATABASE_URL" "
        alter table queues.error set (autovacuum_enabled = off);
        insert into queues.error (task_id, error_message, created_at)
          select 1, '', now() from generate_series(1, 100001);
        delete from queues.error"
    has_dead_rows()
    {
        [ "$(sql "$DATABASE_URL" "select n_dead_tup > 100000 from pg_stat_user_tables
                                   where relid = 'queues.error'::regclass")" = t ]
    }
    wait_until 20 has_dead_rows
    finds 1 'warn dead-rows: queues.error has 100001 dead rows and 0 others' '*'
    finds 1 'fail autovacuum: autovacuum is off for queues.error' '*'
}

@test "the state machines" {
    run --separate-stderr "$PGKIN" doctor --machines -d 'host=/nowhere'
    [ "$status" -eq 0 ]
    [ "${lines[0]}" = '```mermaid' ]
    [ "${lines[-1]}" = '```' ]
    [[ $output == *$'title: connection\n---\nstateDiagram-v2\n'* ]]
}

@test "ARCHITECTURE.md shows the state machines as they are" {
    local page=$BATS_TEST_DIRNAME/../../ARCHITECTURE.md
    diff <("$PGKIN" doctor --machines | grep -v '^$') \
        <(sed -n '/^### State machines/,/^## /p' "$page" | sed -n '/^```mermaid/,/^```$/p' | grep -v '^$')
}
