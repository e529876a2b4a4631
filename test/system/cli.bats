#!/usr/bin/env bats
# SPDX-License-Identifier: Apache-2.0
#
# What holds for every command: help, wrong usage, exit statuses, which
# database is used, and that no password is ever shown.

bats_require_minimum_version 1.5.0
load ../lib/system

setup()
{
    SOCKETS=${PGKIN_TEST_URL##*host=}
    export PGKIN_DATA=$BATS_TEST_TMPDIR/none
    export PGKIN_CONFIG=/dev/null
}

commands()
{
    "$PGKIN" --help | sed -n '/^commands:/,/^$/s/^  \([a-z]*\) .*/\1/p'
}

# fails STATUS MESSAGE HINT COMMAND...: exactly these lines on standard error,
# and nothing else anywhere. Both are patterns.
fails()
{
    local expected=$1 message=$2 hint=$3
    shift 3
    run --separate-stderr "$@"
    echo "status $status, stdout: $output, stderr: $stderr"
    [ "$status" -eq "$expected" ]
    [ -z "$output" ]
    # shellcheck disable=SC2154,SC2053 # from bats; patterns are wanted
    [[ ${stderr_lines[0]} == pgkin:\ $message ]]
    # shellcheck disable=SC2053
    [[ ${stderr_lines[1]} == hint:\ $hint ]]
    [ "${#stderr_lines[@]}" -eq 2 ]
}

@test "--version" {
    run --separate-stderr "$PGKIN" --version
    [ "$status" -eq 0 ]
    [[ $output =~ ^pgkin\ [0-9]+\.[0-9]+\.[0-9]+$ ]]
}

@test "--help lists the commands, on standard output" {
    run --separate-stderr "$PGKIN" --help
    [ "$status" -eq 0 ]
    [ -z "$stderr" ]
    [[ $output == usage:* ]]
    for command in start migrate psql help; do
        commands | grep -qx "$command"
    done
    [ "$("$PGKIN" help)" = "$output" ]
    [ "$("$PGKIN" -h)" = "$output" ]
}

@test "every command has its help" {
    for command in $(commands); do
        run --separate-stderr "$PGKIN" "$command" --help
        [ "$status" -eq 0 ]
        [ -z "$stderr" ]
        [[ $output == "usage: pgkin $command"* ]]
        [[ $output == *"-d, --database URL"* ]]
        [ "$("$PGKIN" help "$command")" = "$output" ]
        [ "$("$PGKIN" "$command" -h)" = "$output" ]
    done
}

@test "help needs no readable configuration" {
    PGKIN_CONFIG=/nowhere "$PGKIN" help migrate
    PGKIN_CONFIG=/nowhere "$PGKIN" migrate --help
    PGKIN_CONFIG=/nowhere run "$PGKIN" migrate
    [ "$status" -eq 1 ]
    [[ $output == *"/nowhere"* ]]
}

@test "a mistyped command" {
    fails 2 'unknown command "migrat"' 'did you mean "migrate"?' "$PGKIN" migrat
    fails 2 'unknown command "pqsl"' 'did you mean "psql"?' "$PGKIN" help pqsl
    fails 2 'unknown command "fly"' 'pgkin --help lists the commands' "$PGKIN" fly
    fails 2 'no command given' 'pgkin --help lists the commands' "$PGKIN"
}

@test "a mistyped option" {
    fails 2 'unknown option "--dryrun"' 'did you mean "--dry-run"?' "$PGKIN" migrate --dryrun
    fails 2 'unknown option "-x"' 'see pgkin migrate --help' "$PGKIN" migrate -x
    fails 2 'unknown option "-d"' 'options come after the command*' "$PGKIN" -d x migrate
    fails 2 'option "--database" needs a value' '*' "$PGKIN" migrate -d
    fails 2 'option "--database" needs a value' '*' "$PGKIN" migrate -d ""
    fails 2 'option "--json" takes no value' '*' "$PGKIN" migrate --json=yes
    fails 2 'unexpected argument "now"' '*' "$PGKIN" migrate now
    fails 2 'unexpected argument "b"' '*' "$PGKIN" help migrate b
}

@test "a bad setting is wrong usage" {
    run "$PGKIN" migrate --log-level=loud
    [ "$status" -eq 2 ]
    [[ $output == *--log-level* ]]
}

@test "output that cannot be written is an error" {
    for arguments in --help --version "migrate --dump"; do
        # shellcheck disable=SC2086
        run bash -c '"$@" >/dev/full' - "$PGKIN" $arguments
        echo "$output"
        [ "$status" -eq 1 ]
        [[ $output == "pgkin: cannot write to standard output"* ]]
        # shellcheck disable=SC2086
        run bash -c '"$@" >&-' - "$PGKIN" $arguments
        [ "$status" -eq 1 ]
    done
}

@test "a reader that goes away is an error, not a signal" {
    mkfifo "$BATS_TEST_TMPDIR/pipe"
    # Opened for reading and writing, so that opening it blocks nobody; closed
    # before pgkin starts to write.
    run bash -c '
        exec 4<>"$1" 5>"$1" 4>&-
        "$2" migrate --dump >&5' - "$BATS_TEST_TMPDIR/pipe" "$PGKIN"
    echo "$output"
    [ "$status" -eq 1 ]
    [[ $output == "pgkin: cannot write to standard output"* ]]
}

# ------------------------------------------------------------ which database

# A database that does not exist is named in the error: that tells which was
# looked for.
looks_for()
{
    local name=$1
    shift
    fails 1 "cannot connect: *database \"$name\" does not exist" '*createdb*' "$@"
}

@test "the flag, DATABASE_URL, the file, PG*, the private cluster" {
    local config=$BATS_TEST_TMPDIR/pgkin.conf host="host=$SOCKETS user=postgres"
    fails 1 "*no private cluster in $PGKIN_DATA*" '*pgkin start*' "$PGKIN" migrate

    export PGHOST=$SOCKETS PGUSER=postgres PGDATABASE=from_pg
    looks_for from_pg "$PGKIN" migrate

    printf '[database]\nurl = %s dbname=from_file\n' "$host" >"$config"
    looks_for from_file "$PGKIN" migrate --config "$config"
    PGKIN_CONFIG=$config looks_for from_file "$PGKIN" migrate

    export DATABASE_URL="postgresql://postgres@/from_env?host=$SOCKETS"
    looks_for from_env "$PGKIN" migrate --config "$config"
    looks_for from_flag "$PGKIN" migrate --config "$config" -d "$host dbname=from_flag"
    looks_for from_name "$PGKIN" migrate -d from_name
}

@test "an empty DATABASE_URL is none" {
    DATABASE_URL='' PGHOST=$SOCKETS PGUSER=postgres PGDATABASE=from_pg \
        looks_for from_pg "$PGKIN" migrate
}

@test "every PG* variable that says where counts" {
    for setting in PGHOST=/nowhere PGPORT=1 PGDATABASE=x PGUSER=x; do
        fails 1 "cannot connect: *" '*' env "$setting" "$PGKIN" migrate
    done
    PGSERVICE=x run "$PGKIN" migrate
    [ "$status" -eq 1 ]
    [[ $output == *'service "x" not found'* ]]
}

# ------------------------------------------------------------------ failures

@test "no server" {
    fails 1 'cannot connect: connection to server on socket "/nowhere/*" failed: *' \
        'is the server running*' "$PGKIN" migrate -d "host=/nowhere"
    fails 1 'cannot connect: connection to server at "127.0.0.1", port 1 failed: *refused' \
        'is the server running*' "$PGKIN" migrate -d postgresql://127.0.0.1:1/x
}

@test "no such role, no such host" {
    fails 1 'cannot connect: *role "nobody_at_all" does not exist' '*createuser*' \
        "$PGKIN" migrate -d "postgresql://nobody_at_all@/postgres?host=$SOCKETS"
    fails 1 'cannot connect: could not translate host name "no.such.host.invalid"*' \
        'check the name of the host' "$PGKIN" migrate -d postgresql://no.such.host.invalid/x
}

@test "a server that does not answer is given up" {
    # The backlog of a listener that never accepts: the connection is made,
    # and then nothing comes.
    python3 -c '
import socket, sys, time
s = socket.socket(); s.bind(("127.0.0.1", 0)); s.listen(1)
print(s.getsockname()[1], flush=True)
time.sleep(60)' >"$BATS_TEST_TMPDIR/port" 3>&- &
    echo $! >>"$BATS_TEST_TMPDIR/pids"
    wait_until 10 test -s "$BATS_TEST_TMPDIR/port"
    fails 1 'cannot connect: *timeout expired' '*firewall*' timeout 20 "$PGKIN" migrate \
        -d "postgresql://u:hush@127.0.0.1:$(cat "$BATS_TEST_TMPDIR/port")/x?connect_timeout=2"
}

@test "no password is ever shown" {
    local url
    for url in \
        "postgresql://u:hush@127.0.0.1:1/x" \
        "postgresql://u:hush@no.such.host.invalid/x" \
        "postgresql://u@127.0.0.1:1/x?password=hush" \
        "host=127.0.0.1 port=1 password=hush" \
        "postgresql://u:hush@hush@127.0.0.1/x" \
        "postgresql://u:hush/hush@127.0.0.1/x" \
        "postgresql://u:hush%zz@127.0.0.1/x" \
        "postgresql://u:hush@[::1/x" \
        "postgresql://u:hush@127.0.0.1/x?nonsense=hush" \
        "host=127.0.0.1 password=a hush" \
        "host=127.0.0.1 password='hush" \
        "mysql://u:hush@127.0.0.1/x"; do
        for command in migrate psql; do
            run "$PGKIN" "$command" --log-level=debug -d "$url"
            [ "$status" -ne 0 ]
            [ -n "$output" ]
            [[ $output != *hush* ]] || { echo "$command -d $url: $output" && false; }
            DATABASE_URL=$url run "$PGKIN" "$command"
            [ "$status" -ne 0 ]
            [[ $output != *hush* ]] || { echo "DATABASE_URL=$url: $output" && false; }
        done
    done
}

@test "a malformed connection string is wrong usage and says where it is" {
    fails 2 "DATABASE_URL: *" '*' env DATABASE_URL=postgresql://u:x@y@h/x "$PGKIN" migrate
    fails 2 "*not a connection string of PostgreSQL" '*postgresql://*' \
        "$PGKIN" migrate -d mysql://h/x
}
