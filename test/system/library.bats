#!/usr/bin/env bats
# SPDX-License-Identifier: Apache-2.0
#
# libpgkin as a stranger uses it: installed somewhere, found by pkg-config, and
# the example program built with it.

bats_require_minimum_version 1.5.0
load ../lib/system

setup_file()
{
    ROOT=$(cd "$BATS_TEST_DIRNAME/../.." && pwd)
    PREFIX=$BATS_FILE_TMPDIR/usr
    export ROOT PREFIX
    make -s -C "$ROOT" BUILD="${PGKIN_BUILD:-build}" PREFIX="$PREFIX" install >"$BATS_FILE_TMPDIR/install.log" 2>&1
    # shellcheck disable=SC2046 # a list of words
    PKG_CONFIG_PATH=$PREFIX/lib/pkgconfig ${CC:-cc} -Wall -Wextra -Werror \
        "$ROOT/examples/native.c" -o "$BATS_FILE_TMPDIR/native" \
        $(PKG_CONFIG_PATH=$PREFIX/lib/pkgconfig pkg-config --cflags --libs pgkin libpq)
}

setup()
{
    URL=$(migrated_database)
    NATIVE=(env LD_LIBRARY_PATH="$PREFIX/lib" PGHOST="$PGKIN_TEST_DIR/pg/s" PGUSER=postgres
        PGDATABASE="$(sql "$URL" 'select current_database()')" "$BATS_FILE_TMPDIR/native")
    sql "$URL" "select worker.register_command('thumbnail', p_kind => 'native', p_max_attempts => 3)" >/dev/null
}

@test "the example enqueues in one transaction, and handles" {
    run -0 "${NATIVE[@]}" enqueue 3
    [ "$output" = $'task 1\ntask 2\ntask 3' ]
    bad=$(sql "$URL" "select worker.enqueue('thumbnail', '{}')")
    in_background "$BATS_TEST_TMPDIR/log" "${NATIVE[@]}" work
    ended() { [ "$(sql "$URL" "select count(*) from queues.task_completed")" = 4 ]; }
    wait_until 20 ended
    [ "$(sql "$URL" "select string_agg(result ->> 'file', ',' order by id) from worker.tasks")" = 1.png,2.png,3.png ]
    [ "$(sql "$URL" "select state, attempt, error from worker.tasks where id = $bad")" = 'failed|1|the payload has no image' ]
    kill -TERM "$background_pid"
    wait "$background_pid"
    grep -q 'worker stopped' "$BATS_TEST_TMPDIR/log"
}

@test "an unknown command adds nothing, and a database that is not there is an error" {
    sql "$URL" "delete from worker.command_registry where command = 'thumbnail'"
    run -1 --separate-stderr "${NATIVE[@]}" enqueue 2
    [[ $stderr == *'unknown command "thumbnail"'* ]]
    [ "$(sql "$URL" "select count(*) from queues.task")" = 0 ]
}
