#!/usr/bin/env bats
# SPDX-License-Identifier: Apache-2.0
#
# Schedules from several sessions at once, over a virtual year, while sessions
# are ended in the middle; what it costs to ask; waiting for a task; and the
# examples of the page.

bats_require_minimum_version 1.5.0
load ../lib/system
load ../lib/queue

setup()
{
    URL=$(migrated_database)
    sql "$URL" "
        set client_min_messages = warning;
        create schema app;
        create procedure app.work(payload jsonb) language sql as '';
        select worker.register_command('work', 'app', 'app.work')" >/dev/null
}

is_sql()
{
    local got
    got=$(sql "$URL" "$2") || return
    [ "$got" = "$1" ] || {
        echo "expected: $1"
        echo "got: $got"
        return 1
    } >&2
}

# One that asks again and again, in sessions that may be ended at any moment.
scheduler()
{
    while [ ! -e "$BATS_TEST_TMPDIR/over" ]; do
        queue_pgbench -c 1 -t 300 -f "$BATS_TEST_TMPDIR/ask" "$URL" >/dev/null 2>&1 || true
    done
}

@test "eight schedulers, ended at random, over a virtual year: every fire once" {
    local clock='2026-01-01 00:00+00' i
    # The hours of the year are numbers; whoever takes one asks at that hour.
    sql "$URL" "
        create sequence app.hour;
        set worker.fake_now = '$clock';
        select worker.schedule('two hours', '0 */2 * * *', 'work', p_time_zone => 'America/New_York',
                               p_missed => 'all', p_missed_window => '400 days'),
               worker.schedule('night', '30 2 * * *', 'work', p_time_zone => 'Europe/Berlin',
                               p_missed => 'all', p_missed_window => '400 days'),
               worker.schedule('half', '*/30 1 * * *', 'work', p_time_zone => 'Australia/Lord_Howe',
                               p_missed => 'all', p_missed_window => '400 days'),
               worker.schedule('interval', interval '5 hours', 'work',
                               p_missed => 'all', p_missed_window => '400 days')" >/dev/null
    cat >"$BATS_TEST_TMPDIR/ask" <<END
select set_config('worker.fake_now', ('$clock'::timestamptz + least(nextval('app.hour'), 8760) * interval '1 hour')::text, false);
select worker.fire_schedules();
END
    for ((i = 0; i < 8; i++)); do
        in_background "$BATS_TEST_TMPDIR/scheduler$i" scheduler
    done
    # Ends one of them every now and then, in whatever it does.
    sql "$URL" "
        create table app.ended (pid int);
        do \$\$ begin
          while (select last_value < 8760 from app.hour) loop
            perform pg_stat_clear_snapshot();
            insert into app.ended
              select s.pid from (
                select pid from pg_stat_activity
                 where datname = current_database() and application_name = 'pgbench' and state = 'active'
                 order by random() limit 1) s
               where pg_terminate_backend(s.pid);
            perform pg_sleep(0.08);
          end loop;
        end \$\$"
    touch "$BATS_TEST_TMPDIR/over"
    is_sql t "select count(distinct pid) > 10 from app.ended"
    wait_until 60 is_sql 0 "select count(*) from pg_stat_activity
        where datname = current_database() and application_name = 'pgbench'"
    # What the last of them left, if it was ended in the middle.
    sql "$URL" "set worker.fake_now = '2027-01-01 00:00+00';
        select worker.fire_schedules() from generate_series(1, 100)" >/dev/null
    is_sql "" "
        with should as (
          select 'two hours' as name, t from worker.cron_times('0 */2 * * *', 'America/New_York', 5000, '$clock') t
          union all select 'night', t from worker.cron_times('30 2 * * *', 'Europe/Berlin', 500, '$clock') t
          union all select 'half', t from worker.cron_times('*/30 1 * * *', 'Australia/Lord_Howe', 1000, '$clock') t
          union all select 'interval', '$clock'::timestamptz + n * interval '5 hours' from generate_series(1, 2000) n),
        does as (
          select context ->> 'schedule' as name, (context ->> 'fire_at')::timestamptz as t from queues.task)
        (select 'lost', * from (select * from should where t <= '2027-01-01 00:00+00' except all select * from does) s)
        union all
        (select 'too many', * from (select * from does except all select * from should) s)"
    is_sql 4 "select count(distinct context ->> 'schedule') from queues.task having count(*) > 7000"
}

@test "asking costs the same however many fires there were, also with a snapshot held" {
    hold "$URL" "$BATS_TEST_TMPDIR/held" "begin isolation level repeatable read; select count(*) from queues.task"
    sql "$URL" "
        set worker.fake_now = '2026-01-01 00:00+00';
        select worker.schedule('s' || n, '* * * * *', 'work') from generate_series(1, 20) n" >/dev/null
    local minute
    for minute in {1..60}; do
        echo "set worker.fake_now = '2026-01-01 00:$((minute - 1)):59+00';
              select worker.fire_schedules();"
    done >"$BATS_TEST_TMPDIR/hour"
    psql -X -q -A -t -v ON_ERROR_STOP=1 -d "$URL" -f "$BATS_TEST_TMPDIR/hour" >/dev/null
    is_sql 1180 "select count(*) from worker.schedule_fire"
    # Nothing is due: 1,180 dead rows before it, of which none is looked at. The
    # first call of a session is for its caches.
    local hit
    hit=$(psql -X -q -A -t -d "$URL" -c "set worker.fake_now = '2026-01-01 00:59:59+00'" \
        -c "select worker.fire_schedules()" -c "select worker.fire_schedules()" \
        -c "explain (analyze, buffers, timing off, costs off) select worker.fire_schedules()" |
        sed -n '/Planning/q; s/.*shared hit=\([0-9]*\).*/\1/p' | head -1)
    echo "buffers: $hit"
    [ "$hit" -lt 12 ]
    run ! bad_schedule_scans
}

# Scans of the tables of schedules without bounds, when nothing is due.
bad_schedule_scans()
{
    explained "$URL" "set worker.fake_now = '2026-01-01 00:59:59+00'" "select worker.fire_schedules()" |
        grep -E 'Seq Scan on schedule|Bitmap'
}

# ----------------------------------------------------------------------- wait

@test "who waits for a task hears of its end, and keeps nobody from anything" {
    local id
    id=$(sql "$URL" "select worker.enqueue('work')")
    in_background "$BATS_TEST_TMPDIR/waited" psql -X -q -A -t -d "$URL" -c "select worker.wait($id)"
    wait_until 10 is_sql 1 "select count(*) from pg_stat_activity
        where datname = current_database() and wait_event = 'PgSleep'"
    is_sql "AccessShareLock" "select distinct l.mode from pg_locks l join pg_stat_activity a using (pid)
        where a.wait_event = 'PgSleep' and a.datname = current_database() and l.locktype = 'relation'"
    is_sql 0 "select count(*) from pg_locks l join pg_stat_activity a using (pid)
        where a.wait_event = 'PgSleep' and a.datname = current_database()
          and l.locktype not in ('relation', 'virtualxid')"
    sql "$URL" "call worker.process_tasks()"
    wait_until 10 grep -qx completed "$BATS_TEST_TMPDIR/waited"
}
