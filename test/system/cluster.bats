#!/usr/bin/env bats
# SPDX-License-Identifier: Apache-2.0
#
# The private cluster, through `pgkin start` and `pgkin psql`: what it makes,
# how it ends, and how it comes back after anything that can happen to it.
#
# One cluster is made at the beginning; most tests work on a copy of it.

load ../lib/system

setup_file()
{
    PLACE=$(mktemp -d "$PGKIN_TEST_DIR/tmp/cluster.XXXXXX")
    chmod 755 "$PLACE"
    export PLACE
    local t0=${EPOCHREALTIME/[.,]/} t1
    start "$PLACE/template"
    t1=${EPOCHREALTIME/[.,]/}
    stop "$PLACE/template"
    echo "# first start took $(((t1 - t0) / 1000)) ms" >&3
}

setup()
{
    DIR=$PLACE/$BATS_TEST_NUMBER
    LOG=$DIR.log
}

teardown()
{
    system_teardown
    end_servers "$PLACE/$BATS_TEST_NUMBER"
}

teardown_file()
{
    stop_background
    rm -rf "$PLACE"
}

# A failed test may leave servers without their pgkin.
end_servers()
{
    local pid
    for pid in $(servers_of "$1"); do
        kill -KILL "$pid" 2>/dev/null || true
    done
}

# A copy of the template as $DIR.
copy()
{
    cp -a "$PLACE/template" "$DIR"
}

# start DIR [OPTION...]: starts in the background and waits until it runs.
start()
{
    start_as "" "$@"
}

start_as()
{
    local run=$1 dir=$2
    shift 2
    in_background "$dir.log" ${run:+"$run"} "$PGKIN" start --data "$dir" "$@"
    wait_until 60 ready_or_dead "$background_pid" "$dir.log"
    grep -q 'Ctrl-C stops it' "$dir.log" || {
        cat "$dir.log" >&2
        return 1
    }
}

ready_or_dead()
{
    grep -q 'Ctrl-C stops it' "$2" || is_gone "$1"
}

# stop DIR: asks it to stop and expects exit status 0.
stop()
{
    local pid=$background_pid status=0
    kill -TERM "$pid"
    wait "$pid" || status=$?
    [ "$status" -eq 0 ] || {
        echo "status $status" >&2
        cat "$1.log" >&2
        return 1
    }
    [ -z "$(servers_of "$1")" ]
}

# The server processes that work in DIR/data.
servers_of()
{
    local proc
    for proc in /proc/[0-9]*; do
        [ "$proc/cwd" -ef "$1/data" ] && [[ $(readlink "$proc/exe") == */postgres ]] &&
            echo "${proc#/proc/}"
    done
    return 0
}

is_alive()
{
    if is_gone "$1"; then return 1; fi
}

no_servers_of()
{
    [ -z "$(servers_of "$1")" ]
}

postmaster_of()
{
    head -n 1 "$1/data/postmaster.pid"
}

query()
{
    PGKIN_DATA=$DIR "$PGKIN" psql -X -q -A -t -v ON_ERROR_STOP=1 -c "$1"
}

# busy STATEMENT: a client with a statement that runs; sets $busy_pid to its
# backend.
busy()
{
    PGKIN_DATA=$DIR in_background "$DIR.busy" "$PGKIN" psql -X -c "$1"
    wait_until 20 busy_backend "$1"
    busy_pid=$(busy_backend "$1")
}

busy_backend()
{
    local pid
    pid=$(query "select pid from pg_stat_activity where query = \$q\$$1\$q\$ and state = 'active'
        and pid <> pg_backend_pid()")
    [ -n "$pid" ] && echo "$pid"
}

# fails STATUS COMMAND...: expects that status, one line of error (and a hint
# at most), in $output.
fails()
{
    local expected=$1
    shift
    run "$@"
    echo "$output"
    [ "$status" -eq "$expected" ]
    [ "$(grep -vc '^hint: ' <<<"$output")" -eq 1 ]
}

as_root_only()
{
    ((EUID == 0)) || skip "needs root"
}

# Runs a command in a mount namespace of its own.
isolated()
{
    unshare -m sh -c "$1" sh "${@:2}"
}

needs_namespaces()
{
    as_root_only
    unshare -m true 2>/dev/null || skip "mount namespaces are not available"
}

@test "start again is quick and finds the schema" {
    copy
    local t0=${EPOCHREALTIME/[.,]/}
    start "$DIR"
    echo "# warm start took $(((${EPOCHREALTIME/[.,]/} - t0) / 1000)) ms" >&3
    [ "$(query "select count(*) from pg_namespace where nspname in ('queues', 'worker')")" = 2 ]
    stop "$DIR"
}

@test "the cluster is private, durable and without TCP" {
    copy
    start "$DIR"
    [ "$(stat -c %a "$DIR")" = 700 ]
    [ "$(query 'show listen_addresses')" = "" ]
    [ "$(query 'show fsync')" = on ]
    [ "$(query 'show data_checksums')" = on ]
    [ "$(query 'show server_encoding')" = UTF8 ]
    [ "$(query "select datcollate from pg_database where datname = 'pgkin'")" = C ]
    [ "$(query 'select current_user || rolsuper from pg_roles where rolname = current_user')" = pgkintrue ]
    [ "$(query "select string_agg(distinct auth_method, ',') from pg_hba_file_rules")" = peer ]
    [ "$(query "select count(*) from pg_stat_ssl where ssl")" = 0 ]
}

@test "the connection string that is printed works" {
    copy
    start "$DIR"
    local url
    url=$(sed -n 's/^ *DATABASE_URL *//p' "$LOG")
    [ "$(sql "$url" 'select current_database()')" = pgkin ]
    [ "$(DATABASE_URL=$url "$PGKIN" psql -X -A -t -c 'select 42')" = 42 ]
}

@test "stop ends every server process also with clients connected" {
    copy
    start "$DIR"
    local pgkin=$background_pid
    busy 'select pg_sleep(1000)'
    background_pid=$pgkin
    stop "$DIR"
    [ ! -e "$DIR/data/postmaster.pid" ]
    [ ! -e "$DIR/.s.PGSQL.5432" ]
}

@test "a second signal does not wait" {
    copy
    rm -f "$DIR/server.log" # the template has been shut down before
    start "$DIR"
    local pgkin=$background_pid status=0
    # A checkpointer that is stopped keeps a fast shutdown from ending.
    local checkpointer
    checkpointer=$(query "select pid from pg_stat_activity where backend_type = 'checkpointer'")
    kill -STOP "$checkpointer"
    kill -TERM "$pgkin"
    wait_until 10 grep -q 'fast shutdown' "$DIR/server.log"
    kill -TERM "$pgkin"
    wait "$pgkin" || status=$?
    [ "$status" -eq 1 ]
    grep -q 'ended at once' "$LOG" || { cat "$LOG" >&2; return 1; }
    no_servers_of "$DIR"
    start "$DIR"
    [ "$(query 'select 1')" = 1 ]
}

@test "kill -9 of pgkin start stops the server, and the next start works" {
    copy
    start "$DIR"
    query 'create table kept as select 7 as n'
    kill -KILL "$background_pid"
    start "$DIR"
    [ "$(query 'select n from kept')" = 7 ]
    [ "$(servers_of "$DIR" | grep -cx "$(postmaster_of "$DIR")")" = 1 ]
    stop "$DIR"
}

@test "kill -9 of pgkin start alone leaves no server behind" {
    copy
    start "$DIR"
    kill -KILL "$background_pid"
    wait_until 20 no_servers_of "$DIR"
    [ ! -e "$DIR/data/postmaster.pid" ]
}

@test "kill -9 of the postmaster ends pgkin start with an error" {
    copy
    start "$DIR"
    local status=0
    busy 'select count(*) from generate_series(1, 1000000000000)'
    local pgkin
    pgkin=$(cat "$DIR/pgkin.pid")
    kill -KILL "$(postmaster_of "$DIR")"
    wait "$pgkin" || status=$?
    cat "$LOG"
    [ "$status" -eq 1 ]
    grep -q '^pgkin: the private cluster has ended: the server was killed by signal 9' "$LOG"
    no_servers_of "$DIR"
}

@test "start after kill -9 of both with a sleeping and a busy backend" {
    copy
    start "$DIR"
    query 'create table kept as select 7 as n'
    busy 'select pg_sleep(1000)'
    busy 'select count(*) from generate_series(1, 1000000000000)'
    local orphan=$busy_pid postmaster
    postmaster=$(postmaster_of "$DIR")
    # pgkin first held, then killed, so that it cannot clean up.
    kill -STOP "$(cat "$DIR/pgkin.pid")"
    kill -KILL "$postmaster" "$(cat "$DIR/pgkin.pid")"
    wait_until 10 is_gone "$postmaster"
    is_alive "$orphan"
    [ -e "$DIR/data/postmaster.pid" ]
    start "$DIR"
    is_gone "$orphan"
    [ "$(query 'select n from kept')" = 7 ]
    stop "$DIR"
}

@test "a backend that does not react to SIGQUIT is killed" {
    copy
    start "$DIR"
    busy 'select count(*) from generate_series(1, 1000000000000)'
    local orphan=$busy_pid
    kill -STOP "$orphan" "$(cat "$DIR/pgkin.pid")"
    kill -KILL "$(postmaster_of "$DIR")" "$(cat "$DIR/pgkin.pid")"
    start "$DIR"
    is_gone "$orphan"
}

@test "of two starts at once the second says who has the directory" {
    copy
    start "$DIR"
    fails 1 "$PGKIN" start --data "$DIR"
    [[ $output == "pgkin: another pgkin start is using $DIR (pid $background_pid)"* ]]
    [ "$(query 'select 1')" = 1 ]
}

@test "of two first starts at once exactly one runs" {
    in_background "$DIR.a" "$PGKIN" start --data "$DIR"
    local a=$background_pid
    in_background "$DIR.b" "$PGKIN" start --data "$DIR"
    local b=$background_pid
    wait_until 60 one_is_ready "$DIR.a" "$DIR.b"
    wait_until 20 one_is_gone "$a" "$b"
    [ "$(cat "$DIR.a" "$DIR.b" | grep -c '^pgkin: another pgkin start is using')" = 1 ]
    [ "$(query 'select 1')" = 1 ]
}

one_is_ready()
{
    grep -q 'Ctrl-C stops it' "$@"
}

one_is_gone()
{
    is_gone "$1" || is_gone "$2"
}

@test "a data directory of 120 characters" {
    local long=$DIR- short
    while ((${#long} < 120)); do
        long+=x
    done
    cp -a "$PLACE/template" "$long"
    DIR=$long
    start "$DIR"
    short=$(cat "$DIR/socket")
    echo "$short" >"$BATS_TEST_TMPDIR/short"
    [ -S "$short/.s.PGSQL.5432" ]
    [ "$(stat -c '%a %U' "$short")" = "700 $(stat -c %U "$DIR")" ]
    [ "$(query 'select current_database()')" = pgkin ]
    [ "$(sql "$(sed -n 's/^ *DATABASE_URL *//p' "$DIR.log")" 'select 1')" = 1 ]
    stop "$DIR"
    # The connection string stays the same.
    start "$DIR"
    [ "$(cat "$DIR/socket")" = "$short" ]
    stop "$DIR"
    # Somebody else's directory under that name is not used, by neither side.
    chmod 755 "$short"
    fails 1 query 'select 1'
    [[ $output == *"does not belong to the owner"* ]]
    start "$DIR"
    [ "$(cat "$DIR/socket")" != "$short" ]
    [ "$(query 'select 1')" = 1 ]
    stop "$DIR"
    rmdir "$short" "$(cat "$DIR/socket")"
}

@test "a directory with spaces, quotes and a comma in its name" {
    DIR="$DIR it's \"a\", b\\c %41"
    cp -a "$PLACE/template" "$DIR"
    start "$DIR"
    [ "$(query 'select 1')" = 1 ]
    [ "$(sql "$(sed -n 's/^ *DATABASE_URL *//p' "$DIR.log")" 'select 1')" = 1 ]
    stop "$DIR"
    rmdir "$(cat "$DIR/socket")"
    DIR=${DIR//,/}
    cp -a "$PLACE/template" "$DIR"
    start "$DIR"
    [ ! -e "$DIR/socket" ]
    [ "$(query 'select 1')" = 1 ]
    [ "$(sql "$(sed -n 's/^ *DATABASE_URL *//p' "$DIR.log")" 'select 1')" = 1 ]
}

@test "a read-only directory" {
    mkdir -m 555 "$DIR"
    fails 1 "$PGKIN" start --data "$DIR"
    [[ $output == *"$DIR is read-only"*hint:* ]]
    [ -z "$(ls -A "$DIR")" ]
    [ "$(stat -c %a "$DIR")" = 555 ]
}

@test "a directory below one that cannot be written" {
    mkdir -m 555 "$DIR"
    fails 1 run_as_user "$PGKIN" start --data "$DIR/a/b"
    [[ $output == *"cannot make the directory $DIR/a: Permission denied"*hint:* ]]
}

@test "a read-only file system" {
    needs_namespaces
    copy
    fails 1 isolated 'mount --bind -o ro "$1" "$1" && exec "$2" start --data "$1"' "$DIR" "$PGKIN"
    [[ $output == *"Read-only file system"*hint:* ]]
}

@test "a full disk while the cluster is made" {
    needs_namespaces
    mkdir "$DIR"
    fails 1 isolated 'mount -t tmpfs -o size=20m tmpfs "$1" && chmod 755 "$1" || exit 99
        "$2" start --data "$1/a/b" --log-level error; s=$?; test -z "$(ls -A "$1")" || exit 98; exit $s' \
        "$DIR" "$PGKIN"
    [[ $output == "pgkin: cannot start the private cluster: initdb failed: "*space*"hint: make room"* ]]
}

@test "a limit that makes initdb fail leaves nothing behind" {
    fails 1 bash -c 'ulimit -f 1024; exec "$0" start --data "$1/a" --log-level error' "$PGKIN" "$DIR"
    [[ $output == "pgkin: cannot start the private cluster: initdb failed: "* ]]
    [ ! -e "$DIR" ]
}

@test "no server binaries where PGKIN_BINDIR points" {
    mkdir "$DIR.bin"
    ln -s /bin/true "$DIR.bin/postgres" # but no initdb
    PGKIN_BINDIR=$DIR.bin fails 1 "$PGKIN" start --data "$DIR"
    [[ $output == *"no PostgreSQL server (postgres and initdb) in $DIR.bin"*"hint: check PGKIN_BINDIR"* ]]
    [ ! -e "$DIR" ]
}

@test "no server binaries on the machine" {
    needs_namespaces
    fails 1 isolated 'mount -t tmpfs tmpfs /usr/lib/postgresql || exit 99
        mount --bind /bin/false "$(command -v pg_config || echo /bin/false)"
        exec "$1" start --data "$2"' "$PGKIN" "$DIR"
    [[ $output == *"no PostgreSQL server was found on this machine"*"hint: install the package postgresql"* ]]
    [ ! -e "$DIR" ]
}

@test "data of another major version" {
    copy
    echo 9 >"$DIR/data/PG_VERSION"
    fails 1 "$PGKIN" start --data "$DIR"
    [[ $output == *"$DIR: the data was made by PostgreSQL 9, but the server found is 1"*postgresql-9* ]]
    [ -e "$DIR/data/PG_VERSION" ]
}

@test "a postmaster.pid that names an unrelated live process" {
    copy
    # Of the same user, or the server itself would see that it is stale; and
    # one that stands in the data directory.
    in_background "$DIR.sleep" sh -c 'cd "$1" && exec sleep 1000' sh "$DIR/data"
    local other=$background_pid
    if ((EUID == 0)); then
        in_background "$DIR.sleep" setpriv --reuid postgres --regid postgres --clear-groups sleep 1000
        other=$background_pid
    fi
    printf '%s\n' "$other" "$DIR/data" "$(date +%s)" 5432 "$DIR" '' ready >"$DIR/data/postmaster.pid"
    cp "$DIR/data/postmaster.pid" "$DIR/.s.PGSQL.5432.lock"
    ((EUID != 0)) || chown postgres: "$DIR/data/postmaster.pid" "$DIR/.s.PGSQL.5432.lock"
    start "$DIR"
    [ "$(query 'select 1')" = 1 ]
    is_alive "$other"
    stop "$DIR"
    is_alive "$other"
}

@test "what an interrupted initdb has left is made anew" {
    mkdir -p "$DIR/data.new/base"
    echo 15 >"$DIR/data.new/PG_VERSION"
    ((EUID != 0)) || chown -R postgres: "$DIR"
    chmod 700 "$DIR"
    start "$DIR"
    [ ! -e "$DIR/data.new" ]
    [ "$(query 'select 1')" = 1 ]
}

@test "a signal while the cluster is being made leaves nothing behind" {
    in_background "$LOG" "$PGKIN" start --data "$DIR"
    wait_until 20 test -e "$DIR/data.new/PG_VERSION"
    local status=0
    kill -INT "$background_pid"
    wait "$background_pid" || status=$?
    cat "$LOG"
    [ "$status" -eq 0 ]
    [ ! -e "$DIR" ]
}

@test "kill -9 while the cluster is being made, then start" {
    in_background "$LOG" "$PGKIN" start --data "$DIR"
    wait_until 20 test -e "$DIR/data.new/PG_VERSION"
    kill -KILL "$background_pid"
    start "$DIR"
    [ ! -e "$DIR/data.new" ]
    [ "$(query 'select 1')" = 1 ]
}

@test "a directory with other things in it is refused" {
    mkdir "$DIR"
    echo mine >"$DIR/thesis.txt"
    fails 1 "$PGKIN" start --data "$DIR"
    [[ $output == *"neither empty nor a private cluster"*hint:* ]]
    [ "$(ls -A "$DIR")" = thesis.txt ]
    [ "$(stat -c %u "$DIR")" = "$EUID" ]
}

@test "a server that does not come up says why" {
    copy
    echo "no_such_setting = 1" >>"$DIR/data/postgresql.conf"
    fails 1 "$PGKIN" start --data "$DIR" --log-level error
    [[ $output == *"no_such_setting"*"hint: see $DIR/server.log"* ]]
}

@test "root: a directory that the server's user cannot enter" {
    as_root_only
    mkdir -m 700 "$DIR"
    fails 1 "$PGKIN" start --data "$DIR/a"
    [[ $output == *"user postgres, who runs the server, cannot enter $DIR: Permission denied"*hint:* ]]
    [ -z "$(ls -A "$DIR")" ]
}

@test "root: the server runs as another user, the owner of what is there" {
    as_root_only
    copy
    start "$DIR"
    [ "$(stat -c %U "/proc/$(postmaster_of "$DIR")")" = postgres ]
    stop "$DIR"
    [ -n "${PGKIN_TEST_USER:-}" ] || skip "there is no user to run it as"
    chown -R "$PGKIN_TEST_USER:" "$DIR"
    start "$DIR"
    [ "$(stat -c %U "/proc/$(postmaster_of "$DIR")")" = "$PGKIN_TEST_USER" ]
    [ "$(query 'select 1')" = 1 ]
    stop "$DIR"
    PGKIN_SERVER_USER=postgres fails 1 "$PGKIN" start --data "$DIR"
    [[ $output == *"$DIR does not belong to user postgres"* ]]
}

@test "root: the server gets none of our environment and rights" {
    as_root_only
    copy
    LC_ALL=C.UTF-8 DATABASE_URL=postgresql://u:secret@h/d PGOPTIONS='-c work_mem=1MB' start "$DIR"
    run cat "/proc/$(postmaster_of "$DIR")/environ"
    [[ $output != *secret* && $output != *LC_ALL=* && $output != *PGOPTIONS* ]]
    run grep -E '^(Uid|Gid|Groups|CapEff)' "/proc/$(postmaster_of "$DIR")/status"
    [[ $output =~ CapEff:[[:space:]]*0+$ ]]
    [[ ! $output =~ [[:space:]]0[[:space:]] ]]
}

@test "root: orphans are found without the right to trace, as in a container" {
    as_root_only
    copy
    start "$DIR"
    busy 'select count(*) from generate_series(1, 1000000000000)'
    local orphan=$busy_pid
    kill -STOP "$(cat "$DIR/pgkin.pid")"
    kill -KILL "$(postmaster_of "$DIR")" "$(cat "$DIR/pgkin.pid")"
    is_alive "$orphan"
    in_background "$LOG" setpriv --bounding-set=-sys_ptrace "$PGKIN" start --data "$DIR"
    wait_until 60 ready_or_dead "$background_pid" "$LOG"
    cat "$LOG"
    is_gone "$orphan"
    [ "$(query 'select 1')" = 1 ]
}

@test "an ordinary user: the default directory, psql, stop" {
    local home
    home=$(user_directory)
    echo "$home" >"$BATS_TEST_TMPDIR/home"
    DIR=$home/.local/share/pgkin
    in_background "$LOG" run_as_user "$PGKIN" start
    wait_until 60 ready_or_dead "$background_pid" "$LOG"
    cat "$LOG"
    grep -q 'Ctrl-C stops it' "$LOG"
    [ "$(stat -c '%a %u' "$DIR")" = "700 $(stat -c %u "$home")" ]
    [ "$(run_as_user "$PGKIN" psql -X -A -t -c 'select current_user')" = pgkin ]
    if ((EUID == 0)); then
        [ "$(query 'select current_user')" = pgkin ]
        # Nobody else gets in.
        run setpriv --reuid nobody --regid nogroup --clear-groups env PGKIN_DATA="$DIR" "$PGKIN" psql -c 'select 1'
        [ "$status" -eq 1 ]
    fi
    kill -TERM "$(cat "$DIR/pgkin.pid")"
    wait_until 20 no_servers_of "$DIR"
    wait_until 20 is_gone "$background_pid"
}

@test "psql without a cluster says how to start one" {
    fails 1 env PGKIN_DATA="$DIR" "$PGKIN" psql -c 'select 1'
    [[ $output == *"there is no private cluster in $DIR"*"hint: start it with: pgkin start"* ]]
}

@test "psql shows no password on its command line" {
    local url=${PGKIN_TEST_URL/postgres@/postgres:top-secret@}
    [[ $url == *top-secret* ]]
    run "$PGKIN" psql -d "$url" -X -A -t -c 'select 42' -c "\\! tr '\\0' ' ' </proc/\$PPID/cmdline"
    echo "$output"
    [ "$status" -eq 0 ]
    [[ $output == *42* && $output == *--dbname* && $output != *top-secret* ]]
}

@test "psql passes its arguments and exit status through" {
    run "$PGKIN" psql -d "$PGKIN_TEST_URL" -X -v ON_ERROR_STOP=1 -c 'select no_such_column'
    [ "$status" -eq 1 ]
    [ "$("$PGKIN" psql -d "$PGKIN_TEST_URL" -X -A -t -v n=5 <<<'select :n + 1')" = 6 ]
}

@test "start with a database given uses that one, --data overrides the environment" {
    local url
    url=$(new_database)
    DATABASE_URL=$url in_background "$DIR.given" "$PGKIN" start
    wait_until 20 grep -q 'worker started' "$DIR.given"
    [ "$(sql "$url" "select count(*) from worker.worker where stopped_at is null")" = 1 ]
    kill -TERM "$background_pid"
    wait "$background_pid"
    [ "$(sql "$url" "select count(*) from worker.worker where stopped_at is null")" = 0 ]
    PGHOST=/nowhere fails 1 "$PGKIN" start
    fails 2 "$PGKIN" start --data "$DIR" -d "$PGKIN_TEST_URL"
    copy
    DATABASE_URL=$PGKIN_TEST_URL PGHOSTADDR=127.0.0.1 PGPORT=1 PGUSER=x start "$DIR"
    stop "$DIR"
}

@test "start runs tasks, and Ctrl-C lets them finish" {
    copy
    start "$DIR"
    query "create schema app; create table app.ran (n int)"
    query "create procedure app.slow(payload jsonb) language sql as 'select pg_sleep(0.5); insert into app.ran values (1)'"
    query "select worker.register_command('slow', 'default', 'app.slow')"
    query "select worker.enqueue('slow')"
    busy() { [ "$(query "select state from worker.tasks")" != pending ]; }
    wait_until 10 busy
    stop "$DIR"
    start "$DIR"
    [ "$(query "select count(*) from app.ran")" = 1 ]
    stop "$DIR"
}

@test "start --demo has something to show, also the second time" {
    copy
    start "$DIR" --demo
    invoiced() { [ "$(query "select count(*) from demo.invoice")" -ge "$1" ]; }
    wait_until 20 invoiced 3
    [ "$(query "select count(*) from worker.schedules where name like 'demo %'")" = 2 ]
    stop "$DIR"
    start "$DIR" --demo
    wait_until 20 invoiced 6
    stop "$DIR"
}

@test "systemd is told when it is ready and when it stops" {
    copy
    in_background "$DIR.notify" python3 -c '
import socket, sys
s = socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM)
s.bind(sys.argv[1])
print("bound", flush=True)
while True:
    print(s.recv(4096).decode(), flush=True)' "$DIR.sock"
    wait_until 10 grep -q bound "$DIR.notify"
    NOTIFY_SOCKET=$DIR.sock start "$DIR"
    wait_until 10 grep -q '^READY=1' "$DIR.notify"
    [ "$(grep -c '^READY=1' "$DIR.notify")" = 1 ]
    stop "$DIR"
    wait_until 10 grep -q '^STOPPING=1' "$DIR.notify"
}
