# SPDX-License-Identifier: Apache-2.0
# shellcheck shell=bash
#
# What the system tests share; each .bats file starts with `load ../lib/system`.
# From test/run come
#   PGKIN           the binary under test
#   PGKIN_TEST_URL  the throw-away cluster, as superuser
#   PGKIN_TEST_DIR  the run's directory; every user may enter it
# A file that defines teardown() itself calls system_teardown in it.

: "${PGKIN:?run the tests with test/run}"

# Files that belong to the test or, in setup_file, to the file.
system_tmpdir()
{
    echo "${BATS_TEST_TMPDIR:-$BATS_FILE_TMPDIR}"
}

# sql URL STATEMENT: prints the rows, unaligned; false when it failed.
sql()
{
    psql -X -q -A -t -v ON_ERROR_STOP=1 -d "$1" -c "$2"
}

# url_of DATABASE [ROLE]: a database of the throw-away cluster.
url_of()
{
    local url=${PGKIN_TEST_URL/\/postgres\?//$1?}
    echo "${url/postgres@/${2:-postgres}@}"
}

# new_database [TEMPLATE]: prints the URL of a database of the test's own,
# empty or a copy. It is dropped at teardown.
new_database()
{
    local name
    name=t_${BASHPID}_$(date +%s%N)
    sql "$PGKIN_TEST_URL" "create database $name template ${1:-template0}" || return
    echo "$name" >>"$(system_tmpdir)/databases"
    url_of "$name"
}

# migrated_database: the same, with pgkin's schema as `pgkin migrate` makes it.
migrated_database()
{
    if ! new_database "$PGKIN_TEST_TEMPLATE"; then
        cat "$PGKIN_TEST_DIR/migrate.log" >&2
        return 1
    fi
}

# wait_until SECONDS COMMAND...: repeats the command until it succeeds. When
# time is up, shows its last output and fails.
wait_until()
{
    local deadline output
    deadline=$((${EPOCHREALTIME/[.,]/} + $1 * 1000000))
    shift
    until output=$("$@" 2>&1 3>&-); do
        if ((${EPOCHREALTIME/[.,]/} > deadline)); then
            echo "still not true at the deadline: $*" >&2
            echo "$output" >&2
            return 1
        fi
        sleep 0.05
    done
}

# in_background LOG COMMAND...: starts a command with its output in the file
# LOG and sets $background_pid. It is stopped at teardown. Descriptor 3 is
# bats's own: a process that keeps it open keeps bats waiting.
in_background()
{
    local log=$1
    shift
    "$@" </dev/null >"$log" 2>&1 3>&- &
    background_pid=$!
    echo "$background_pid" >>"$(system_tmpdir)/pids"
}

# is_gone PID: true when there is no such process, or only its zombie.
is_gone()
{
    local state
    state=$(ps -o stat= -p "$1" 2>/dev/null) || return 0
    [[ $state == Z* ]]
}

# user_directory: prints a new directory that run_as_user may write to.
user_directory()
{
    local dir
    dir=$(mktemp -d "$PGKIN_TEST_DIR/tmp/user.XXXXXX") || return
    if ((EUID == 0)); then
        chown "$PGKIN_TEST_USER:" "$dir"
    fi
    echo "$dir"
}

# Who run_as_user is.
user_name()
{
    if ((EUID == 0)); then
        echo "$PGKIN_TEST_USER"
    else
        id -un
    fi
}

# run_as_user COMMAND...: as an ordinary user with an empty environment but for
# PATH (USER_PATH, if set) and a home directory that lasts as long as the test.
# For root a user of its own, or the test is skipped when there is none.
run_as_user()
{
    local home name drop=() pass=()
    if ((EUID == 0)); then
        [ -n "${PGKIN_TEST_USER:-}" ] || skip "there is no user to run it as"
        drop=(setpriv --reuid "$PGKIN_TEST_USER" --regid "$PGKIN_TEST_USER" --init-groups)
    fi
    home=$(cat "$(system_tmpdir)/home" 2>/dev/null) || home=
    if [ -z "$home" ]; then
        home=$(user_directory) || return
        echo "$home" >"$(system_tmpdir)/home"
    fi
    for name in PGKIN PGKIN_TEST_URL PGKIN_TEST_DIR ASAN_OPTIONS UBSAN_OPTIONS; do
        [ -z "${!name:-}" ] || pass+=("$name=${!name}")
    done
    (cd "$home" && exec "${drop[@]}" env -i HOME="$home" USER="$(user_name)" LANG=C.UTF-8 \
        TMPDIR="$PGKIN_TEST_DIR/tmp" PATH="${USER_PATH:-$PATH}" "${pass[@]}" "$@")
}

stop_background()
{
    local pid
    [ -e "$(system_tmpdir)/pids" ] || return 0
    while read -r pid; do
        kill -TERM "$pid" 2>/dev/null || continue
        wait_until 20 is_gone "$pid" || kill -KILL "$pid"
    done <"$(system_tmpdir)/pids"
    rm "$(system_tmpdir)/pids"
}

drop_databases()
{
    local name
    [ -e "$(system_tmpdir)/databases" ] || return 0
    while read -r name; do
        sql "$PGKIN_TEST_URL" "drop database if exists $name with (force)" </dev/null
    done <"$(system_tmpdir)/databases"
    rm "$(system_tmpdir)/databases"
}

system_teardown()
{
    stop_background
    drop_databases
}

teardown()
{
    system_teardown
}
