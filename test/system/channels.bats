#!/usr/bin/env bats
# SPDX-License-Identifier: Apache-2.0
#
# Channels with a real worker, a real mail server and a real object store: the
# examples from end to end, and a worker that is killed at every step.

bats_require_minimum_version 1.5.0
load ../lib/system

ROOT=$BATS_TEST_DIRNAME/../..

setup()
{
    "$PGKIN" work --help >/dev/null 2>&1 || skip "this pgkin has no worker"
    URL=$(migrated_database)
    SENT=$BATS_TEST_TMPDIR/sent
    HOLD=$BATS_TEST_TMPDIR/hold
    in_background "$SENT" /usr/bin/python3 "$ROOT/test/lib/smtp_sink.py" --stay --hold "$HOLD"
    wait_until 20 grep -qE '^[0-9]+$' "$SENT"
    export PGKIN_SMTP_URL
    PGKIN_SMTP_URL=smtp://127.0.0.1:$(grep -m1 -E '^[0-9]+$' "$SENT")
}

# start_worker: in the background, ready; its pid is $WORKER.
start_worker()
{
    WORK_LOG=$BATS_TEST_TMPDIR/work.$BATS_TEST_NUMBER.$RANDOM
    in_background "$WORK_LOG" "$PGKIN" work -d "$URL" --log-level debug "$@"
    WORKER=${background_pid:?}
    wait_until 20 grep -q 'worker started' "$WORK_LOG"
}

# answers EXPECTED SQL
answers()
{
    local answer
    answer=$(sql "$URL" "$2") || return
    [ "$answer" = "$1" ] || {
        echo "$2: $answer instead of $1"
        return 1
    } >&2
}

# load_example NAME: with minutes that pass quickly.
load_example()
{
    sed "s/'1 minute'/'300 ms'/; s/'30 seconds'/'300 ms'/" "$ROOT/examples/$1.sql" |
        psql -X -q -v ON_ERROR_STOP=1 -d "$URL" >/dev/null
}

message_ids()
{
    grep -o 'Message-ID: <[^>]*>' "$SENT" | sort | uniq -c | awk '{ print $1, $3 }'
}

@test "examples/send_email.sql: sent, recorded, and over" {
    load_example send_email
    start_worker
    sql "$URL" "select comms.send_email(1), comms.send_sms(1)"
    wait_until 30 answers 't|t' "select comms.has_send_email_succeeded_attempt(1),
                                        comms.has_send_sms_succeeded_attempt(1)"
    [ "$(message_ids)" = '1 <email-1@comms.example>' ]
    grep -q 'multipart/alternative' "$SENT"
    # The supervisors notice, and nothing is left.
    wait_until 30 answers 0 "select count(*) from worker.tasks where state not in ('completed')"
    answers 0 "select count(*) from queues.error"
}

@test "examples/send_email.sql: by a worker with no more rights than it needs, strictly" {
    local database role=channels_worker_$BASHPID worker_url
    database=$(sql "$URL" "select current_database()")
    load_example send_email
    sql "$URL" "select worker.require_allowed(true); create role $role login in role worker_service_user"
    worker_url=$(url_of "$database" "$role")
    in_background "$BATS_TEST_TMPDIR/least.log" "$PGKIN" work -d "$worker_url"
    sql "$URL" "select comms.send_email(1), comms.send_sms(1)"
    wait_until 30 answers 't|t' "select comms.has_send_email_succeeded_attempt(1),
                                        comms.has_send_sms_succeeded_attempt(1)"
    answers 0 "select count(*) from queues.error"
    run ! sql "$worker_url" "select * from comms.email_message"
    stop_background
    sql "$URL" "drop role $role"
}

@test "examples/send_email.sql: refused until it is given up" {
    load_example send_email
    sql "$URL" "update comms.email_message set to_address = 'late@example.org'"
    start_worker
    sql "$URL" "select comms.send_email(1)"
    wait_until 60 answers t "select comms.is_send_email_stuck(1)"
    answers 4 "select comms.count_send_email_failed_attempts(1)"
    answers 'the mail server said: 451 4.7.1 greylisted' \
        "select distinct error_message from comms.send_email_attempt_failed"
    wait_until 30 answers 1 "select count(*) from comms.send_email_task_failed"
}

@test "examples/account_deletion.sql: happy, a stuck file, a stuck account" {
    local store=$BATS_TEST_TMPDIR/store conf=$BATS_TEST_TMPDIR/pgkin.conf
    in_background "$store" /usr/bin/python3 "$ROOT/test/lib/object_store.py"
    wait_until 20 grep -qE '^[0-9]+$' "$store"
    cat >"$conf" <<END
[files]
provider = http
url = http://127.0.0.1:$(head -1 "$store")/sign
allow_private = 127.0.0.0/8
END
    export PGKIN_CONFIG=$conf
    load_example account_deletion
    # One whose connection is closed after the file was deleted.
    sql "$URL" "insert into files.file (account_id, bucket, object_key)
                values (1, 'recordings', '1/drop.ogg')"
    start_worker
    sql "$URL" "select api.request_account_deletion(1)"
    wait_until 60 answers 1 "select count(*) from accounts.account_deletion_task_succeeded"
    answers anonymized,deleted "select string_agg(flag, ',' order by flag) from accounts.account_flag"
    answers 3 "select count(*) from files.file_metadata where metadata = '{\"deleted\": true}'"
    [ "$(grep -c '^delete 1/drop.ogg' "$store")" = 2 ]

    sql "$URL" "insert into accounts.account (name) values ('Bob'), ('Eve');
                insert into files.file (account_id, bucket, object_key) values (2, 'b', '2/bad.ogg');
                create function accounts.refuse() returns trigger language plpgsql as
                  'begin raise exception ''not today''; end';
                create trigger refuse before update on accounts.account
                  for each row execute function accounts.refuse()"
    sql "$URL" "select api.request_account_deletion(2), api.request_account_deletion(3)"
    wait_until 60 answers '1 of 1 file(s) cannot be deleted,the account cannot be anonymized' \
        "select string_agg(error_message, ',' order by error_message)
           from accounts.account_deletion_task_failed"
    wait_until 60 answers 0 "select count(*) from worker.tasks where state in ('pending', 'processing')"
}

# A process that stops where app.block says so.
load_blocking()
{
    sql "$URL" "
        create schema app;
        create table app.block (step text);
        create table app.fact (n int, what text);
        create procedure app.wait(p_step text) language plpgsql as \$\$
        begin
          while exists (select from app.block where step = p_step) loop
            perform pg_sleep(0.02);
          end loop;
        end \$\$;
        create function app.before(p jsonb) returns jsonb language plpgsql as \$\$
        begin
          call app.wait('before');
          return jsonb_build_object('status', 'succeeded', 'payload', jsonb_build_object(
            'from_address', 'shop@example.org', 'to_address', 'a@example.org', 'text', 'hello'));
        end \$\$;
        create function app.success(p jsonb) returns jsonb language plpgsql as \$\$
        begin
          insert into app.fact values ((p #>> '{original_payload,n}')::int, 'sent');
          call app.wait('success');
          return '{\"status\": \"succeeded\"}';
        end \$\$"
}

enqueue_mail()
{
    sql "$URL" "select worker.enqueue('email', '{\"n\": $1, \"before_handler\": \"app.before\",
                                                 \"success_handler\": \"app.success\"}')"
}

# in_step STEP: a handler of the worker waits there.
in_step()
{
    answers 1 "select count(*) from pg_stat_activity where datname = current_database()
                and pid <> pg_backend_pid() and query ~ 'channel_' and state = 'active'"
}

no_backend()
{
    answers 0 "select count(*) from pg_stat_activity where datname = current_database()
                and pid <> pg_backend_pid()"
}

# kill_worker: and its sessions are gone, with what they had not committed.
kill_worker()
{
    kill -KILL "$WORKER"
    wait_until 10 is_gone "$WORKER"
    sql "$URL" "select pg_terminate_backend(pid) from pg_stat_activity
                 where datname = current_database() and pid <> pg_backend_pid()" >/dev/null
    wait_until 10 no_backend
}

# ends_well DELIVERIES: with one fact, and as many messages with one id.
ends_well()
{
    start_worker
    wait_until 30 answers completed "select state from worker.tasks"
    answers 1 "select count(*) from app.fact"
    [ "$(message_ids | wc -l)" = 1 ]
    message_ids | grep -q "^$1 "
}

@test "killed before the before handler is done: sent once" {
    load_blocking
    sql "$URL" "insert into app.block values ('before')"
    start_worker
    enqueue_mail 1
    wait_until 20 in_step
    kill_worker
    sql "$URL" "delete from app.block"
    ends_well 1
}

@test "killed after the provider has taken it: sent again with the same id" {
    load_blocking
    touch "$HOLD"
    start_worker
    enqueue_mail 1
    wait_until 20 grep -q Message-ID "$SENT"
    kill_worker
    answers 0 "select count(*) from app.fact"
    rm "$HOLD"
    ends_well 2
}

@test "killed in the success handler: sent again with the same id, one fact" {
    load_blocking
    sql "$URL" "insert into app.block values ('success')"
    start_worker
    enqueue_mail 1
    wait_until 20 grep -q Message-ID "$SENT"
    wait_until 20 in_step
    kill_worker
    sql "$URL" "delete from app.block"
    ends_well 2
}

@test "killed when all is done: nothing more happens" {
    load_blocking
    start_worker
    enqueue_mail 1
    wait_until 20 answers completed "select state from worker.tasks"
    kill_worker
    ends_well 1
}

@test "asked to stop while it records: that goes through, and it is not sent again" {
    load_blocking
    sql "$URL" "insert into app.block values ('success')"
    start_worker
    enqueue_mail 1
    wait_until 20 in_step
    wait_until 20 grep -q Message-ID "$SENT"
    kill -TERM "$WORKER"
    wait_until 20 grep -qi 'stop' "$WORK_LOG"
    sql "$URL" "delete from app.block"
    wait_until 20 is_gone "$WORKER"
    answers completed "select state from worker.tasks"
    ends_well 1
}

@test "a thousand e-mails at once: each arrives, none twice" {
    load_blocking
    sql "$URL" "select count(*) from worker.enqueue_many('email', array(
                  select jsonb_build_object('n', i, 'before_handler', 'app.before',
                           'success_handler', 'app.success') from generate_series(1, 1000) i))"
    start_worker --queue default:50
    wait_until 120 answers 1000 "select count(*) from worker.tasks where state = 'completed'"
    [ "$(message_ids | wc -l)" = 1000 ]
    [ "$(message_ids | grep -vc '^1 ')" = 0 ]
    answers 1000 "select count(distinct n) from app.fact"
}

at_least()
{
    [ "$(sql "$URL" "select count(*) from queues.task_completed")" -ge "$1" ]
}

@test "killed again and again: a fact for each, and repetitions can be told" {
    load_blocking
    sql "$URL" "select count(*) from worker.enqueue_many('email', array(
                  select jsonb_build_object('n', i, 'before_handler', 'app.before',
                           'success_handler', 'app.success') from generate_series(1, 600) i))"
    for n in 50 150 250 350; do
        start_worker --queue default:20
        wait_until 60 at_least "$n"
        kill -KILL "$WORKER"
    done
    start_worker --queue default:20
    wait_until 60 at_least 600
    answers 600 "select count(*) from worker.tasks where state = 'completed'"
    answers '600|600' "select count(*), count(distinct n) from app.fact"
    [ "$(message_ids | wc -l)" = 600 ]
}
