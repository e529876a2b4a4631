# SPDX-License-Identifier: Apache-2.0
# shellcheck shell=bash
#
# The groups of tests. group_X starts a job for each chosen test file; job_X
# runs one and leaves NAME.tap (the results) and NAME.log (what to show when
# something failed) in $work/results/X. Used by test/run.

# shellcheck disable=SC2154 # variables of test/run and cluster.bash

# chosen PATTERN FILE...: prints the names of the test files to run.
chosen()
{
    local pattern=$1 file name names=()
    shift
    for file; do
        name=${file##*/}
        name=${name%.*}
        if [ "$name" = "$pattern" ]; then
            echo "$name"
            return
        fi
        [[ $name != *"$pattern"* ]] || names+=("$name")
    done
    printf '%s\n' "${names[@]}"
}

# failed_job GROUP NAME REASON: a test that could not run is a failed test.
failed_job()
{
    echo "not ok 1 - $2" >"$work/results/$1/$2.tap"
    echo "$3" >"$work/results/$1/$2.log"
}

# ---------------------------------------------------------------------- unit

group_unit()
{
    local name
    for name in $(chosen "$1" test/unit/test_*.c); do
        run_job job_unit "$name"
    done
}

job_unit()
{
    local out=$work/results/unit/$1 status planned seen
    [ -z "$test_regex" ] || export CMOCKA_TEST_FILTER=$test_regex
    # The braces keep the shell's own "Aborted" out of sight.
    {
        CMOCKA_MESSAGE_OUTPUT=TAP timeout --foreground -k 5 120 \
            "$build/test/unit/$1" >"$out.log" 2>&1
        status=$?
    } 2>/dev/null
    grep -aE '^(not )?ok ' "$out.log" >"$out.tap"
    # A crash, a leak report, a test program that ended early.
    planned=$(sed -n 's/^1\.\.\([0-9]*\).*/\1/p' "$out.log" | awk '{ n += $1 } END { print n + 0 }')
    seen=$(wc -l <"$out.tap")
    if ((planned != seen || planned == 0)) ||
        { ((status != 0)) && ! grep -q '^not ok' "$out.tap"; }; then
        echo "not ok $((seen + 1)) - $1 (exit status $status, $seen of $planned tests)" >>"$out.tap"
        echo "exit status $status after $seen of $planned tests" >>"$out.log"
    fi
}

# ------------------------------------------------------------- sql, isolation

group_sql()
{
    local name
    for name in $(chosen "$1" test/sql/*.sql); do
        compared_job sql "$name"
    done
}

group_isolation()
{
    local name
    for name in $(chosen "$1" test/isolation/specs/*.spec); do
        compared_job isolation "$name"
    done
}

# compared_job GROUP NAME
compared_job()
{
    if make_migrated_template; then
        run_job job_compared "$1" "$2"
    else
        failed_job "$1" "$2" "pgkin migrate failed: $(cat "$work/migrate.log")"
    fi
}

# job_compared GROUP NAME: runs the test in a migrated database of its own and
# compares what it prints with what is expected.
job_compared()
{
    local group=$1 name=$2 out=$work/results/$1/$2 database=$1_$2 status
    if ! sql "create database \"$database\" template $PGKIN_TEST_TEMPLATE" >"$out.log" 2>&1; then
        echo "not ok 1 - $name" >"$out.tap"
        return
    fi
    PGTZ=UTC PGDATESTYLE=ISO "run_$group" "$name" "$(database_url "$database")" \
        >"$out.out" 2>&1
    status=$?
    if judge_output "$group" "$name" "$status" >"$out.log"; then
        echo "ok 1 - $name" >"$out.tap"
    else
        echo "not ok 1 - $name" >"$out.tap"
    fi
    sql "drop database \"$database\" with (force)" >/dev/null 2>&1
}

# The flags of pg_regress.
run_sql()
{
    (
        cd test/sql && timeout --foreground -k 5 120 psql -X -a -q -v HIDE_TABLEAM=on \
            -v HIDE_TOAST_COMPRESSION=on -d "$2" <"$1.sql"
    )
}

run_isolation()
{
    PGISOLATIONTIMEOUT=60 timeout --foreground -k 5 180 \
        "$isolationtester" "$2" <"test/isolation/specs/$1.spec"
}

# judge_output GROUP NAME STATUS: a program that could not do its work has
# failed even when its output is the expected one, which may be empty then.
# NAME_1.out and so on are other outputs that are as good.
judge_output()
{
    local expected=test/$1/expected/$2.out out=$work/results/$1/$2.out other
    # psql: 0, also when statements failed; isolationtester: 0 or it broke.
    if (($3 != 0)); then
        echo "exit status $3"
        tail -n 20 "$out"
        return 1
    elif [ ! -s "$out" ]; then
        echo "no output"
        return 1
    elif [ "$accept" = "$2" ]; then
        mkdir -p "${expected%/*}"
        cp "$out" "$expected"
    elif [ ! -s "$expected" ]; then
        echo "no expected output in $expected; look at this, then test/run --accept $2"
        cat "$out"
        return 1
    fi
    for other in "$expected" "${expected%.out}"_[0-9].out; do
        cmp -s "$other" "$out" && return
    done
    diff -U3 --label "$expected" --label "output" "$expected" "$out"
    return 1
}

# -------------------------------------------------------------------- system

group_system()
{
    local name files
    make_migrated_template || true # each test that needs it says so
    # The largest first: it is likely the one that takes longest.
    mapfile -t files < <(stat -c '%s %n' test/system/*.bats 2>/dev/null | sort -rn | cut -d ' ' -f 2-)
    for name in $(chosen "$1" "${files[@]}"); do
        run_job job_system "$name"
    done
}

job_system()
{
    local out=$work/results/system/$1 status planned seen options=()
    [ -z "$test_regex" ] || options+=(--filter "$test_regex")
    [ -z "$verbose" ] || options+=(--timing)
    timeout --foreground -k 10 300 bats --tap "${options[@]}" "test/system/$1.bats" \
        >"$out.log" 2>&1
    status=$?
    grep -aE '^(not )?ok ' "$out.log" >"$out.tap"
    planned=$(sed -n 's/^1\.\.\([0-9]*\).*/\1/p' "$out.log" | head -n 1)
    seen=$(wc -l <"$out.tap")
    if [ -z "$planned" ] || ((planned != seen)) ||
        { ((status != 0)) && ! grep -q '^not ok' "$out.tap"; }; then
        echo "not ok $((seen + 1)) $1 (exit status $status, $seen of ${planned:-?} tests)" >>"$out.tap"
    fi
}
