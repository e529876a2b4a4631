#!/usr/bin/env bats
# SPDX-License-Identifier: Apache-2.0
#
# The programs in examples/ and the page that explains them: what is shown runs.

bats_require_minimum_version 1.5.0
load ../lib/system
load ../lib/page

ROOT=$BATS_TEST_DIRNAME/../..
INVOICE='{"items": [{"price": 3.5, "quantity": 2}]}'
SECRET=whsec_c2VzYW1l

setup()
{
    BODY=$BATS_TEST_TMPDIR/body
    case $BATS_TEST_DESCRIPTION in
    *.mjs*) command -v node >/dev/null || skip "there is no node" ;;
    esac
}

# sign SECRET ID TIMESTAMP BODY: the header that a worker would send.
sign()
{
    python3 - "$@" <<'END'
import base64, hashlib, hmac, sys
secret, message_id, timestamp, body = sys.argv[1:]
key = base64.b64decode(secret[6:]) if secret.startswith("whsec_") else secret.encode()
text = ".".join((message_id, timestamp, body)).encode()
print("v1," + base64.b64encode(hmac.new(key, text, hashlib.sha256).digest()).decode())
END
}

# post BODY SIGNATURE TIMESTAMP: prints the status; the answer is in $BODY.
post()
{
    curl -sS --noproxy '*' -o "$BODY" -w '%{http_code}' --max-time 20 \
        -H 'content-type: application/json' -H 'webhook-id: msg-1' \
        -H "webhook-timestamp: $3" -H "webhook-signature: $2" \
        --data-binary "$1" "$SERVICE"
}

# start_service FILE SECRET: sets $SERVICE.
start_service()
{
    local log=$BATS_TEST_TMPDIR/service.log
    in_background "$log" env PGKIN_SIGNING_SECRET="$2" "$ROOT/examples/$1" 0
    wait_until 20 grep -q '^listening on ' "$log"
    SERVICE=$(sed -n 's/^listening on //p' "$log")
}

# What Python writes as 7.0 is 7 to Node.
check_service()
{
    local now old
    now=$(date +%s)
    old=$((now - 3600))
    start_service "$1" "$SECRET"
    [ "$(post "$INVOICE" "$(sign "$SECRET" msg-1 "$now" "$INVOICE")" "$now")" = 200 ]
    grep -qE '^\{"total": ?7(\.0)?\}$' "$BODY"
    # While a key is replaced, a request has two signatures.
    [ "$(post "$INVOICE" "v1,AAAA $(sign "$SECRET" msg-1 "$now" "$INVOICE")" "$now")" = 200 ]
    # Signed, but nonsense.
    for bad in '{}' '[]' 'null' 'x' '{"items": [{"price": 1}]}' ''; do
        [ "$(post "$bad" "$(sign "$SECRET" msg-1 "$now" "$bad")" "$now")" = 422 ]
    done
    # Not signed, with another secret, for another body or id, too old, no time.
    [ "$(post "$INVOICE" '' "$now")" = 401 ]
    [ "$(post "$INVOICE" 'v1,AAAA' "$now")" = 401 ]
    [ "$(post "$INVOICE" "$(sign whsec_b3RoZXI= msg-1 "$now" "$INVOICE")" "$now")" = 401 ]
    [ "$(post "$INVOICE" "$(sign "$SECRET" msg-1 "$now" '{}')" "$now")" = 401 ]
    [ "$(post "$INVOICE" "$(sign "$SECRET" msg-2 "$now" "$INVOICE")" "$now")" = 401 ]
    [ "$(post "$INVOICE" "$(sign "$SECRET" msg-1 "$old" "$INVOICE")" "$old")" = 401 ]
    [ "$(post "$INVOICE" "$(sign "$SECRET" msg-1 now "$INVOICE")" now)" = 401 ]
}

check_program()
{
    local program=$ROOT/examples/$1 closed=$BATS_TEST_TMPDIR/closed
    run --separate-stderr -0 env -i PATH="$PATH" "$program" "$closed" <<<"$INVOICE"
    [[ $output =~ ^\{\"total\":\ ?7(\.0)?\}$ ]]
    [ -z "$stderr" ]
    for bad in '{}' '[]' 'null' 'x' '{"items": [{"price": 1}]}' ''; do
        run --separate-stderr -65 "$program" "$closed" <<<"$bad"
        [ -z "$output" ]
        [[ $stderr == 'not an invoice: '* ]]
    done
    touch "$closed"
    run --separate-stderr -75 "$program" "$closed" <<<"$INVOICE"
    [[ $output =~ ^\{\"retry_after\":\ ?60\}$ ]]
}

# What the head of an example says to register the handler with works.
check_registration()
{
    URL=$(migrated_database)
    awk '/select worker\./ { on = 1 } on { sub("^// ", ""); print } /;$/ { on = 0 }' "$ROOT/examples/$1" |
        psql -X -q -A -t -v ON_ERROR_STOP=1 -d "$URL"
    [ "$(sql "$URL" "select command || ' ' || state from worker.tasks")" = 'invoice_total pending' ]
    [ "$(sql "$URL" "select kind from worker.command_registry where command = 'invoice_total'")" = "${1%%_*}" ]
}

@test "http_handler.py checks signatures and adds up" {
    check_service http_handler.py
}

@test "http_handler.mjs checks signatures and adds up" {
    check_service http_handler.mjs
}

@test "http_handler.py takes a plain secret" {
    local now
    now=$(date +%s)
    start_service http_handler.py 'plain text'
    [ "$(post "$INVOICE" "$(sign 'plain text' msg-1 "$now" "$INVOICE")" "$now")" = 200 ]
}

@test "exec_handler.py adds up, refuses nonsense and waits" {
    check_program exec_handler.py
}

@test "exec_handler.mjs adds up, refuses nonsense and waits" {
    check_program exec_handler.mjs
}

@test "the examples say how to register them" {
    for example in http_handler.py http_handler.mjs exec_handler.py exec_handler.mjs; do
        check_registration "$example"
    done
}

@test "docs/handlers.md does what it says" {
    URL=$(migrated_database)
    check_page "$ROOT/docs/handlers.md"
    check_console "$ROOT/docs/handlers.md"
}
