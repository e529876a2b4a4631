#!/usr/bin/env bats
# SPDX-License-Identifier: Apache-2.0
#
# `pgkin migrate` with the real schema: once, twice, many at once, as a script,
# by people with fewer rights, and on databases it must leave alone.

bats_require_minimum_version 1.5.0
load ../lib/system

setup()
{
    URL=$(new_database)
    DATABASE=$(sql "$URL" "select current_database()")
}

# The schema as text. pg_dump of late puts a random key into it, and refuses a
# server that is newer than itself; then the catalogue has to do.
schema_of()
{
    local text
    if [ "$(server_major "$1")" -le "$(pg_dump --version | grep -oE '[0-9]+' | head -n 1)" ]; then
        text=$(pg_dump --schema-only -d "$1") || return
        grep -v -e '^\\restrict ' -e '^\\unrestrict ' <<<"$text"
    else
        catalogue_of "$1"
    fi
}

server_major()
{
    sql "$1" "select current_setting('server_version_num')::int / 10000"
}

catalogue_of()
{
    sql "$1" "
        with ours as (
          select oid, nspname, nspacl from pg_namespace
          where nspname in ('worker', 'queues', 'internal'))
        select nspname, nspacl, obj_description(oid, 'pg_namespace') from ours order by 1"
    sql "$1" "
        with ours as (
          select oid from pg_namespace where nspname in ('worker', 'queues', 'internal'))
        select c.oid::regclass::text, c.relkind, c.relacl, c.reloptions, a.attname,
          format_type(a.atttypid, a.atttypmod), a.attnotnull, a.attacl,
          pg_get_expr(d.adbin, d.adrelid), obj_description(c.oid, 'pg_class'),
          case when c.relkind = 'v' then pg_get_viewdef(c.oid) end,
          case when c.relkind = 'i' then pg_get_indexdef(c.oid) end
        from pg_class c
        join ours on ours.oid = c.relnamespace
        left join pg_attribute a on a.attrelid = c.oid and a.attnum > 0 and not attisdropped
        left join pg_attrdef d on d.adrelid = c.oid and d.adnum = a.attnum
        order by 1, a.attnum"
    sql "$1" "
        with ours as (
          select oid from pg_namespace where nspname in ('worker', 'queues', 'internal'))
        select conrelid::regclass::text, conname, pg_get_constraintdef(c.oid)
        from pg_constraint c join ours on ours.oid = c.connamespace
        union all
        select tgrelid::regclass::text, tgname, pg_get_triggerdef(t.oid)
        from pg_trigger t join pg_class c on c.oid = tgrelid
          join ours on ours.oid = c.relnamespace
        where not tgisinternal
        union all
        select p.oid::regprocedure::text, proacl::text, pg_get_functiondef(p.oid)
        from pg_proc p join ours on ours.oid = p.pronamespace where prokind <> 'a'
        order by 1, 2, 3"
}

records_of()
{
    sql "$1" "select version, name, checksum, applied_by from worker.schema_migration order by 1"
    sql "$1" "select name, checksum from worker.schema_function order by 1"
}

is_empty()
{
    [ "$(sql "$1" "select count(*) from pg_namespace
                   where nspname in ('worker', 'queues', 'internal')")" = 0 ]
}

# new_role ATTRIBUTES: a role of the test's own, dropped with its database.
new_role()
{
    ROLE=owner_${BATS_TEST_NUMBER}_$$
    sql "$PGKIN_TEST_URL" "create role $ROLE login $1"
}

teardown()
{
    system_teardown
    [ -z "${ROLE:-}" ] || sql "$PGKIN_TEST_URL" "drop role $ROLE"
}

@test "installs, and then has nothing to do" {
    run --separate-stderr "$PGKIN" migrate -d "$URL"
    echo "$output $stderr"
    [ "$status" -eq 0 ]
    [ -z "$stderr" ]
    [[ ${lines[0]} == "applied migration 0001_schemas" ]]
    version=$(sql "$URL" "select max(version) from worker.schema_migration")
    [[ ${lines[-1]} == "schema is at version $version" ]]
    [ "$(sql "$URL" "select count(*) from worker.schema_migration")" = \
        "$(grep -c '^applied migration' <<<"$output")" ]

    before=$(schema_of "$URL" && records_of "$URL")
    run --separate-stderr "$PGKIN" migrate -d "$URL"
    [ "$status" -eq 0 ]
    [ "$output" = "schema is at version $version" ]
    [ "$before" = "$(schema_of "$URL" && records_of "$URL")" ]
}

@test "--json" {
    "$PGKIN" migrate -d "$URL" --json >"$BATS_TEST_TMPDIR/first"
    "$PGKIN" migrate -d "$URL" --json >"$BATS_TEST_TMPDIR/second"
    python3 - "$BATS_TEST_TMPDIR" <<'END'
import json, sys
first = json.load(open(sys.argv[1] + "/first"))
second = json.load(open(sys.argv[1] + "/second"))
assert first["from_version"] == 0 and first["version"] > 0, first
assert first["migrations"][0] == "0001_schemas", first
assert "90_roles" in first["functions"], first
assert second["from_version"] == second["version"] == first["version"], second
assert second["migrations"] == second["functions"] == second["warnings"] == [], second
END
}

@test "eight at once" {
    local i pids=()
    for i in {1..8}; do
        "$PGKIN" migrate -d "$URL" >"$BATS_TEST_TMPDIR/out.$i" 2>&1 3>&- &
        pids+=($!)
    done
    for i in "${pids[@]}"; do
        wait "$i"
    done
    cat "$BATS_TEST_TMPDIR"/out.*
    # One did it, and the others saw that it was done.
    [ "$(grep -l '^applied' "$BATS_TEST_TMPDIR"/out.* | wc -l)" -eq 1 ]
    [ "$(grep -l '^schema is at version' "$BATS_TEST_TMPDIR"/out.* | wc -l)" -eq 8 ]
}

@test "two databases at once" {
    local other
    other=$(new_database)
    "$PGKIN" migrate -d "$other" >"$BATS_TEST_TMPDIR/other" 2>&1 3>&- &
    "$PGKIN" migrate -d "$URL"
    wait $!
    [ "$(schema_of "$URL")" = "$(schema_of "$other")" ]
}

@test "--dump through psql gives the same schema" {
    local other
    other=$(new_database)
    "$PGKIN" migrate -d "$URL"
    # It needs no database to make the script.
    PGHOST=/nowhere "$PGKIN" migrate --dump >"$BATS_TEST_TMPDIR/dump.sql"
    run --separate-stderr psql -X -d "$other" -f "$BATS_TEST_TMPDIR/dump.sql"
    echo "$output $stderr"
    [ "$status" -eq 0 ]
    [ -z "$output$stderr" ]
    schema_of "$URL" >"$BATS_TEST_TMPDIR/expected"
    schema_of "$other" >"$BATS_TEST_TMPDIR/actual"
    grep -q apply_roles "$BATS_TEST_TMPDIR/expected"
    diff "$BATS_TEST_TMPDIR/expected" "$BATS_TEST_TMPDIR/actual"
    diff <(records_of "$URL") <(records_of "$other")
    # pgkin finds its own work in it.
    run "$PGKIN" migrate -d "$other"
    [[ $output == "schema is at version "* ]]
}

@test "--dump into a database that has a schema already changes nothing" {
    "$PGKIN" migrate -d "$URL"
    before=$(schema_of "$URL" && records_of "$URL")
    "$PGKIN" migrate --dump >"$BATS_TEST_TMPDIR/dump.sql"
    run psql -X -d "$URL" -f "$BATS_TEST_TMPDIR/dump.sql"
    [ "$status" -eq 3 ]
    [ "$before" = "$(schema_of "$URL" && records_of "$URL")" ]
}

@test "--dump is of no use together with others" {
    for option in --dry-run --json; do
        run "$PGKIN" migrate --dump "$option"
        [ "$status" -eq 2 ]
        [[ $output == *"--dump cannot be combined with $option"* ]]
    done
}

@test "--dry-run shows the same and changes nothing" {
    run --separate-stderr "$PGKIN" migrate --dry-run -d "$URL"
    [ "$status" -eq 0 ]
    planned=$(sed -n 's/^would apply /applied /p' <<<"$output")
    [[ $output == *"schema is not installed, would be at version "* ]]
    is_empty "$URL"
    [ "$("$PGKIN" migrate -d "$URL" | grep '^applied')" = "$planned" ]
    run "$PGKIN" migrate --dry-run -d "$URL"
    [[ $output =~ ^schema\ is\ at\ version\ [0-9]+$ ]]
}

@test "--dry-run by somebody who may only read, and while another migrates" {
    new_role "in role pg_read_all_data"
    local reader
    reader=$(url_of "$DATABASE" "$ROLE")
    run "$PGKIN" migrate --dry-run -d "$reader"
    [ "$status" -eq 0 ]
    "$PGKIN" migrate -d "$URL"
    hold_lock
    run timeout 10 "$PGKIN" migrate --dry-run -d "$reader"
    [ "$status" -eq 0 ]
    [[ $output =~ ^schema\ is\ at\ version\ [0-9]+$ ]]

    # Without the right to read it says so, and is no "not installed".
    sql "$URL" "revoke pg_read_all_data from $ROLE"
    run "$PGKIN" migrate --dry-run -d "$reader"
    [ "$status" -eq 1 ]
    [[ $output == *"cannot read the schema's records: permission denied"* ]]
}

# Holds the lock of a migration until the background process is ended.
hold_lock()
{
    (
        echo "begin;"
        grep -v lock_timeout "$BATS_TEST_DIRNAME/../../sql/queries/migrate_lock.sql"
        echo "select pg_sleep(60);"
    ) >"$BATS_TEST_TMPDIR/lock.sql"
    in_background "$BATS_TEST_TMPDIR/lock.log" \
        env PGAPPNAME=holder psql -X -d "$URL" -f "$BATS_TEST_TMPDIR/lock.sql"
    wait_until 10 is_running "query like '%pg_sleep%' and application_name = 'holder'"
}

is_running()
{
    [ "$(sql "$URL" "select count(*) from pg_stat_activity
                     where datname = '$DATABASE' and pid <> pg_backend_pid() and $1")" = 1 ]
}

@test "waits for a migration that is running, and says so" {
    hold_lock
    in_background "$BATS_TEST_TMPDIR/out" "$PGKIN" migrate --lock-timeout 1ms -d "$URL"
    wait_until 10 is_running "application_name = 'pgkin' and wait_event_type = 'Lock'"
    wait_until 10 grep -q 'pgkin: another migration is running' "$BATS_TEST_TMPDIR/out"
    is_empty "$URL"
    sql "$URL" "select pg_terminate_backend(pid) from pg_stat_activity
                where application_name = 'holder' and datname = '$DATABASE'"
    # shellcheck disable=SC2154 # set by in_background
    wait "$background_pid"
    grep -q '^schema is at version' "$BATS_TEST_TMPDIR/out"
}

@test "a database that is newer is left alone" {
    "$PGKIN" migrate -d "$URL"
    known=$(sql "$URL" "select max(version) from worker.schema_migration")
    sql "$URL" "insert into worker.schema_migration (version, name, checksum, applied_by)
                values (9000, '9000_later', 'x', '9.0.0')"
    before=$(schema_of "$URL" && records_of "$URL")
    for option in --dry-run --json; do
        run --separate-stderr "$PGKIN" migrate "$option" -d "$URL"
        [ "$status" -eq 1 ]
        [ -z "$output" ]
        # shellcheck disable=SC2154
        [ "${stderr_lines[0]}" = "pgkin: the database has schema version 9000 (9000_later), this pgkin knows $known" ]
        [[ ${stderr_lines[1]} == "hint: upgrade pgkin"* ]]
    done
    [ "$before" = "$(schema_of "$URL" && records_of "$URL")" ]
}

@test "a migration that is not the one applied is an error" {
    "$PGKIN" migrate -d "$URL"
    sql "$URL" "update worker.schema_migration set checksum = 'other' where version = 1"
    run "$PGKIN" migrate -d "$URL"
    [ "$status" -eq 1 ]
    [[ ${lines[0]} == "pgkin: migration 0001_schemas is not the one that was applied: checksum "*", recorded other" ]]
    [[ ${lines[1]} == hint:* ]]
}

@test "changed functions are made again, all of them" {
    "$PGKIN" migrate -d "$URL"
    count=$(sql "$URL" "select count(*) from worker.schema_function")
    before=$(schema_of "$URL" && records_of "$URL")
    sql "$URL" "create or replace procedure worker.apply_roles() language sql as '';
                update worker.schema_function set checksum = 'old' where name = '90_roles';
                insert into worker.schema_function values ('99_gone', 'x')"
    run "$PGKIN" migrate -d "$URL"
    echo "$output"
    [ "$status" -eq 0 ]
    [[ ${lines[0]} == "applied functions, $count file"*", changed: 90_roles" ]]
    [[ ${lines[1]} == "removed the record of functions 99_gone" ]]
    [ "$before" = "$(schema_of "$URL" && records_of "$URL")" ]
}

@test "a failure leaves nothing behind" {
    sql "$URL" "create schema queues"
    run --separate-stderr "$PGKIN" migrate -d "$URL"
    echo "$stderr"
    [ "$status" -eq 1 ]
    [ -z "$output" ]
    [[ ${stderr_lines[0]} =~ ^pgkin:\ sql/migrations/0001_schemas.sql:[0-9]+:\ schema\ \"queues\"\ already\ exists$ ]]
    [[ ${stderr_lines[1]} == hint:* ]]
    [ "$(sql "$URL" "select count(*) from pg_namespace where nspname = 'worker'")" = 0 ]
    sql "$URL" "drop schema queues"
    "$PGKIN" migrate -d "$URL"
}

@test "somebody else's schema worker is left alone" {
    sql "$URL" "create schema worker; create table worker.bee ()"
    run "$PGKIN" migrate -d "$URL"
    [ "$status" -eq 1 ]
    [[ ${lines[0]} == 'pgkin: cannot install the schema: schema "worker" already exists' ]]
    [ "$(sql "$URL" "select count(*) from pg_class where relnamespace = 'worker'::regnamespace")" = 1 ]
}

@test "as an ordinary owner of the database" {
    new_role ""
    sql "$PGKIN_TEST_URL" "alter database $DATABASE owner to $ROLE"
    run "$PGKIN" migrate -d "$(url_of "$DATABASE" "$ROLE")"
    echo "$output"
    [ "$status" -eq 0 ]
    [ "$(sql "$URL" "select nspowner::regrole from pg_namespace where nspname = 'worker'")" = "$ROLE" ]
    run "$PGKIN" migrate -d "$(url_of "$DATABASE" "$ROLE")"
    [ "$status" -eq 0 ]
}

@test "without the right to create a schema" {
    new_role ""
    run "$PGKIN" migrate -d "$(url_of "$DATABASE" "$ROLE")"
    [ "$status" -eq 1 ]
    [[ ${lines[0]} == "pgkin: cannot install the schema: permission denied for database $DATABASE" ]]
    [[ ${lines[1]} == "hint: run it as the owner"* ]]
}

@test "a table that stays locked" {
    "$PGKIN" migrate -d "$URL"
    sql "$URL" "delete from worker.schema_function"
    sql "$URL" "begin; lock worker.schema_function in share mode; select pg_sleep(60)" \
        >/dev/null 2>&1 3>&- &
    echo $! >>"$BATS_TEST_TMPDIR/pids"
    wait_until 10 is_running "query like '%pg_sleep%'"
    run timeout 20 "$PGKIN" migrate --lock-timeout 100ms -d "$URL"
    echo "$output"
    [ "$status" -eq 1 ]
    [[ ${lines[0]} == *"a lock was not granted in time" ]]
    [[ ${lines[1]} == hint:*pg_stat_activity* ]]
    run "$PGKIN" migrate --lock-timeout soon -d "$URL"
    [ "$status" -eq 2 ]
}

# Roles belong to the whole cluster, so this needs one that has none of them.
@test "without CREATEROLE: a warning, and the rest is there" {
    local dir=$PGKIN_TEST_DIR/tmp/migrate.$$ bindir socket owner role
    bindir=$(sql "$PGKIN_TEST_URL" "select setting from pg_config where name = 'BINDIR'")
    in_background "$dir.log" env PGKIN_BINDIR="$bindir" "$PGKIN" start --data "$dir"
    wait_until 60 grep -q 'Ctrl-C stops it' "$dir.log"
    private()
    {
        PGKIN_DATA=$dir "$PGKIN" psql -X -q -A -t -v ON_ERROR_STOP=1 "$@"
    }
    for role in service_user enqueuer monitor admin; do
        private -c "drop owned by worker_$role" -c "drop role worker_$role"
    done
    private -c "create role app" -c "create database app owner app"
    socket=$(private -c "show unix_socket_directories" | tr -d '"')

    # With the rights of `app` and of nobody else.
    owner="host='$socket' user=pgkin dbname=app options='-c role=app'"
    run --separate-stderr "$PGKIN" migrate -d "$owner"
    echo "$stderr"
    [ "$status" -eq 0 ]
    [[ ${lines[-1]} == "schema is at version "* ]]
    [ "$(grep -c '^pgkin: warning: role worker_[a-z_]* does not exist' <<<"$stderr")" -eq 4 ]
    [ "$(grep -c '^hint: ' <<<"$stderr")" -eq 1 ]
    [ "${#stderr_lines[@]}" -eq 5 ]

    # Once they are there the next run gives them their rights, silently.
    for role in service_user enqueuer monitor admin; do
        private -c "create role worker_$role"
    done
    run --separate-stderr "$PGKIN" migrate -d "$owner"
    [ "$status" -eq 0 ]
    [ -z "$stderr" ]

    # Peer authentication knows no `app`.
    run "$PGKIN" migrate -d "host='$socket' user=app dbname=app"
    [ "$status" -eq 1 ]
    [[ ${lines[0]} == *"uthentication failed for user \"app\""* ]]
    [[ ${lines[1]} == "hint: check the user and the password"* ]]

    stop_background
    run env PGKIN_DATA="$dir" "$PGKIN" migrate
    [ "$status" -eq 1 ]
    [ "${lines[0]}" = "pgkin: the private cluster does not run" ]
    [ "${lines[1]}" = "hint: start it with: pgkin start" ]
    rm -rf "$dir" "$dir.log"
}
