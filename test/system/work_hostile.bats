#!/usr/bin/env bats
# SPDX-License-Identifier: Apache-2.0
#
# A worker among people who mean it ill: sessions that freeze or are cut in the
# middle of a call, and a registry that changes under its hands.

bats_require_minimum_version 1.5.0
load ../lib/system

setup()
{
    URL=$(migrated_database)
    sql "$URL" "
        set client_min_messages = warning;
        create schema app;
        create table app.ran (task bigint);
        create procedure app.note(payload jsonb) language plpgsql as \$\$
        begin
          insert into app.ran (task) values (worker.current_task_id());
          perform pg_sleep(coalesce((payload ->> 's')::float, 0));
        end \$\$;
        select worker.register_command('note', 'default', 'app.note');
        select worker.register_command('nap', 'default', p_kind => 'native', p_handler => 'sleep');
        select worker.register_command('echo', 'default', p_kind => 'native');
        select worker.register_command('noop', 'default', p_kind => 'native');" >/dev/null
    LOG=$BATS_TEST_TMPDIR/work.log
}

# Frozen sessions go on, so that they can end; workers are not asked.
teardown()
{
    local pid
    for pid in ${frozen:-}; do
        kill -CONT "$pid" 2>/dev/null || true
    done
    while read -r pid; do
        kill -KILL "$pid" 2>/dev/null || true
    done < <(cat "$BATS_TEST_TMPDIR/pids" 2>/dev/null)
    system_teardown
}

work()
{
    in_background "$LOG" "$PGKIN" work -d "$URL" --log-level debug "$@"
    wait_until 20 grep -q 'worker started' "$LOG"
}

completed()
{
    [ "$(sql "$URL" "select count(*) from queues.task_completed where state = 'completed'")" = "$1" ]
}

# enqueue_many COMMAND PAYLOAD COUNT
enqueue_many()
{
    sql "$URL" "select count(*) from worker.enqueue_many('$1', array_fill('$2'::jsonb, '{$3}'))" >/dev/null
}

# sessions QUERY: those of the worker whose query is like that.
sessions()
{
    sql "$URL" "select pid from pg_stat_activity where datname = current_database()
                and pid <> pg_backend_pid() and query like '$1'"
}

# stopped_with STATUS: the worker in the background has ended with it.
stopped_with()
{
    local status=0
    wait "$background_pid" || status=$?
    [ "$status" -eq "$1" ] || {
        echo "exit status $status, not $1"
        tail -20 "$LOG"
        return 1
    } >&2
}

@test "leaves a server that does not answer" {
    work --grace 1
    wait_until 10 grep -q 'to=idle' "$LOG"
    frozen=$(sql "$URL" "select pid from pg_stat_activity where application_name = 'pgkin worker'
                         and datname = current_database()")
    # shellcheck disable=SC2086
    kill -STOP $frozen
    sleep 1.2 # until it has asked for what nobody answers
    kill -TERM "$background_pid"
    wait_until 20 is_gone "$background_pid"
    # 1 if that was in the middle of a claim: then something may be unfinished.
    status=0
    wait "$background_pid" || status=$?
    ((status <= 1))
    grep -q "without the server's word" "$LOG"
    ! grep -q AddressSanitizer "$LOG" || return 1
}

@test "does not take a lost session for the end of work" {
    enqueue_many note '{"s": 0.1}' 12
    in_background "$LOG" "$PGKIN" work -d "$URL" --queue default:1 --stop-when-idle
    some() { [ "$(sql "$URL" "select count(*) from app.ran")" -ge "$1" ]; }
    for n in 1 3 5; do
        wait_until 20 some "$n"
        for pid in $(sessions '%run_fiber%'); do
            sql "$URL" "select pg_terminate_backend($pid)" >/dev/null
        done
    done
    stopped_with 0
    completed 12
    [ "$(sql "$URL" "select count(*), count(distinct task) from app.ran")" = "12|12" ]
    grep -q 'fiber failed' "$LOG"
}

@test "what was claimed ahead of slow ones goes back" {
    work --queue default:2
    enqueue_many noop '{}' 3000
    wait_until 30 completed 3000
    # As quick as the last ones, by all that is known of them.
    enqueue_many nap '{"ms": 1000}' 200
    held() { [ "$(sql "$URL" "select coalesce(sum(cardinality(queues.unfinished(l))), 0)
                              from queues.lease_open o join queues.lease l using (lease_id)")" = "$1" ]; }
    wait_until 10 held 2
    id=$(sql "$URL" "select worker.enqueue('echo', p_priority => -1)")
    urgent() { [ "$(sql "$URL" "select state from worker.tasks where id = $id")" = completed ]; }
    wait_until 5 urgent
    # Handed back is not tried.
    [ "$(sql "$URL" "select max(attempt) from worker.tasks where state = 'completed'")" = 1 ]
    [ "$(sql "$URL" "select count(*) from queues.error")" = 0 ]
}

@test "a busy queue gets more sessions, and fewer, when it is told to" {
    sql "$URL" "update worker.queue_registry set default_concurrency = 2 where queue = 'default'"
    enqueue_many note '{"s": 0.1}' 1000
    work
    busy() { [ "$(sessions '%run_fiber%' | wc -l)" = "$1" ]; }
    wait_until 10 busy 2
    sql "$URL" "update worker.queue_registry set default_concurrency = 5 where queue = 'default'"
    wait_until 10 busy 5
    sql "$URL" "update worker.queue_registry set default_concurrency = 1 where queue = 'default'"
    wait_until 10 busy 1
    # A serial queue keeps one fiber for its top-level tasks throughout.
    sql "$URL" "update worker.queue_registry set default_concurrency = 3, top_concurrency = 1
                where queue = 'default'"
    n=$(sql "$URL" "select count(*) from app.ran")
    more() { [ "$(sql "$URL" "select count(*) from app.ran")" -gt $((n + 12)) ]; }
    wait_until 10 more
    sql "$URL" "update worker.queue_registry set default_concurrency = 2 where queue = 'default'"
    n=$(sql "$URL" "select count(*) from app.ran")
    wait_until 10 more
    ! grep -q 'fiber failed' "$LOG" || return 1
    kill -TERM "$background_pid"
    stopped_with 0
    [ "$(sql "$URL" "select count(*) - count(distinct task) from app.ran")" = 0 ]
}

@test "a handler that talks nonsense harms itself only" {
    root=$(cd "$BATS_TEST_DIRNAME/../.." && pwd)
    prefix=$BATS_TEST_TMPDIR/usr
    make -s -C "$root" BUILD="${PGKIN_BUILD:-build}" PREFIX="$prefix" install >"$BATS_TEST_TMPDIR/install.log" 2>&1
    # shellcheck disable=SC2046,SC2086 # lists of words
    ${CC:-cc} -Wall -Wextra -Werror ${PGKIN_TEST_CFLAGS:-} "$root/test/lib/odd_handler.c" \
        -o "$BATS_TEST_TMPDIR/odd" $(PKG_CONFIG_PATH=$prefix/lib/pkgconfig pkg-config --cflags --libs pgkin)
    sql "$URL" "select worker.register_command('odd', p_kind => 'native', p_max_attempts => 2,
                                               p_backoff_initial => '1 ms')" >/dev/null
    for key in malformed empty bytes zero number deep error outcome negative late later; do
        sql "$URL" "select worker.enqueue('odd', '{\"$key\": 1}')" >/dev/null
        enqueue_many odd '{"fine": 1}' 3
    done
    LD_LIBRARY_PATH=$prefix/lib timeout 60 "$BATS_TEST_TMPDIR/odd" "$URL" >"$LOG" 2>&1
    [ "$(sql "$URL" "select count(*) from worker.tasks where payload ? 'fine' and state = 'completed'")" = 33 ]
    # Each with its own trouble, which is told.
    [ "$(sql "$URL" "select string_agg(k, ' ' order by t.id) from worker.tasks t, jsonb_object_keys(payload) k
                     where state = 'failed' and error <> '' and k <> 'fine'")" = \
        "malformed empty bytes zero number deep error outcome negative" ]
    [ "$(sql "$URL" "select attempt, error from worker.tasks where payload ? 'error'")" = "2|bad � error" ]
    [ "$(sql "$URL" "select count(*) from worker.tasks where state = 'pending' and payload ?| '{late,later}'")" = 2 ]
    [ "$(sql "$URL" "select error from worker.tasks where payload ? 'deep'")" = \
        "the server refused the result: stack depth limit exceeded" ]
    [ "$(sql "$URL" "select count(*) from queues.lease_open")" = 0 ]
}

@test "an end that the server does not take holds up nobody else" {
    # What only the server's own faults can do: the first task cannot succeed, the
    # second cannot end at all.
    sql "$URL" "
        create function app.refuse() returns trigger language plpgsql as \$\$
        begin
          if new.task_id = 1 and new.state = 'completed' or new.task_id = 2 then
            raise exception 'no end for %', new.task_id;
          end if;
          return new;
        end \$\$;
        create trigger refuse before insert on queues.task_completed
          for each row execute function app.refuse()" >/dev/null
    enqueue_many echo '{}' 20
    work
    wait_until 10 completed 18
    [ "$(sql "$URL" "select state, error from worker.tasks where id = 1")" = \
        "failed|the server refused the result: no end for 1" ]
    # Its lease was given up, and it comes again, alone.
    lost() { [ "$(sql "$URL" "select count(*) from queues.task_lease where task_id = 2 and outcome = 'lost'")" -gt 0 ]; }
    wait_until 10 lost
    enqueue_many echo '{}' 20
    wait_until 10 completed 38
    sql "$URL" "drop trigger refuse on queues.task_completed" >/dev/null
    all_ended() { [ "$(sql "$URL" "select count(*) from queues.task_completed")" = 40 ]; }
    wait_until 20 all_ended
    kill -TERM "$background_pid"
    stopped_with 0
}

@test "more queues than connections" {
    sql "$URL" "
        set client_min_messages = warning;
        select worker.register_command('c' || i, 'q' || i, 'app.note') from generate_series(1, 24) i;
        create role hostile_service login in role worker_service_user connection limit 10;
        grant usage on schema app to hostile_service;
        grant all on app.ran to hostile_service;
        select worker.enqueue('c' || i) from generate_series(1, 24) i" >/dev/null
    URL=${URL/postgres@/hostile_service@} work
    wait_until 30 completed 24
    kill -TERM "$background_pid"
    stopped_with 0
    sql "$URL" "drop owned by hostile_service; drop role hostile_service"
}

@test "a change of the registry is not lost with the reading of it" {
    work
    wait_until 10 grep -q 'to=idle' "$LOG"
    # It reads, and waits; it hears of a change, and then its reading fails.
    in_background "$BATS_TEST_TMPDIR/lock.log" psql -X -q -d "$URL" -c "
        begin; lock table worker.installation in access exclusive mode; select pg_sleep(60)"
    waiting() { [ -n "$(sql "$URL" "select pid from pg_stat_activity where wait_event_type = 'Lock'
                                    and datname = current_database() and query like '%work_registry%'")" ]; }
    reads() { kill -HUP "$background_pid" && waiting; }
    locker=$background_pid
    background_pid=$(head -n 1 "$BATS_TEST_TMPDIR/pids")
    wait_until 10 reads
    sql "$URL" "set client_min_messages = warning;
                select worker.register_command('late', 'late', p_kind => 'native', p_handler => 'noop')" >/dev/null
    sql "$URL" "select pg_cancel_backend(pid) from pg_stat_activity where query like '%work_registry%'
                and datname = current_database() and pid <> pg_backend_pid()" >/dev/null
    wait_until 10 grep -q 'cannot read the registry' "$LOG"
    sql "$URL" "select pg_terminate_backend(pid) from pg_stat_activity where query like '%lock table%'
                and datname = current_database() and pid <> pg_backend_pid()" >/dev/null
    wait_until 10 is_gone "$locker"
    sql "$URL" "select worker.enqueue('late')" >/dev/null
    wait_until 4 completed 1
}

@test "ends that cannot be recorded for a while are not run again" {
    work
    sql "$URL" "select worker.enqueue('nap', '{\"ms\": 500}')" >/dev/null
    held() { [ "$(sql "$URL" "select count(*) from queues.lease_open")" = 1 ]; }
    wait_until 10 held
    # The exchange is cut off in the middle, and then refused.
    exchange=$(sql "$URL" "select oid::regprocedure from pg_proc where proname = 'exchange'
                           and pronamespace = 'queues'::regnamespace")
    other=${exchange/exchange/exchange_away}
    [[ $other == queues.exchange_away* ]]
    sql "$URL" "
        begin;
        lock table queues.task_completed in access exclusive mode;
        alter function $exchange rename to exchange_away;
        do \$\$ begin
          loop
            perform pg_stat_clear_snapshot();
            exit when (select bool_or(pg_terminate_backend(pid)) from pg_stat_get_activity(null) a
                        where query like '%queues.exchange%' and wait_event_type = 'Lock');
            perform pg_sleep(0.05);
          end loop;
        end \$\$;
        commit" >/dev/null
    # What nobody knows of goes back after five seconds, which are asked for every five.
    asked() { [ "$(grep -c 'exchange failed' "$LOG")" -ge 1 ]; }
    wait_until 10 asked
    old() { [ "$(sql "$URL" "select count(*) from queues.lease where leased_at > now() - interval '11 s'")" = 0 ]; }
    wait_until 20 old
    sql "$URL" "alter function $other rename to exchange"
    wait_until 20 completed 1
    [ "$(sql "$URL" "select attempt from worker.tasks")" = 1 ]
    ! grep -q 'end refused' "$LOG" || return 1
}
