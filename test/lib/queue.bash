# SPDX-License-Identifier: Apache-2.0
# shellcheck shell=bash
#
# What the tests of the queue share, besides test/lib/system.bash.

# pgbench is in the server's package, next to psql's.
queue_pgbench()
{
    local dir
    dir=$(dirname "$(command -v psql)")
    "$dir/pgbench" -n "$@"
}

# explained URL STATEMENT...: the plans of every statement that the last of these
# executes, also inside functions. The ones before it are executed only.
explained()
{
    local url=$1 arguments=()
    shift
    while (($# > 1)); do
        arguments+=(-c "$1")
        shift
    done
    psql -X -q -A -t -v ON_ERROR_STOP=1 -d "$url" "${arguments[@]}" \
        -c "load 'auto_explain'" -c 'set auto_explain.log_min_duration = 0' \
        -c 'set auto_explain.log_nested_statements = on' -c 'set auto_explain.log_analyze = off' \
        -c 'set client_min_messages = log' -c "$1" 2>&1
}

# bad_scans: of the plans on standard input, prints the scans that read a table
# or an index of the queue without bounds, and what the planner was told to avoid.
bad_scans()
{
    awk '
        function judge()
        {
            if (scan != "" && !bounded)
                print scan
            scan = ""
        }
        /Seq Scan on (task|ready|timer|lease|task_completed|attempt_end|error|waiting|lease_open|cursor_mark|generation_ledger|pending_key|merged_payload)( |$)|Bitmap|cost=1000000/ { print }
        /->|^LOG/ { judge() }
        /Index (Only )?Scan.* on (task|ready|timer|lease|task_completed|attempt_end|error|waiting|lease_open|cursor_mark|generation_ledger|pending_key|merged_payload)( |$)/ {
            scan = $0
            bounded = 0
        }
        /Index Cond:/ { bounded = 1 }
        END { judge() }'
}

# claim_buffers URL: how many buffers one claim of one task touches. The first
# claim of the session is for its caches.
claim_buffers()
{
    psql -X -q -A -t -v ON_ERROR_STOP=1 -d "$1" \
        -c "select from queues.enqueue_many('email', array_fill('{}'::jsonb, '{2}'))" \
        -c "select count(*) from queues.exchange('default', 1)" \
        -c "explain (analyze, buffers, timing off, costs off) select * from queues.exchange('default', 1)" |
        sed -n '/Planning/q; s/.*shared hit=\([0-9]*\)\( read=\([0-9]*\)\)\?.*/\1 \3/p' |
        awk '{ n += $1 + $2 } END { print n + 0 }'
}

# hold URL LOG STATEMENTS: a session that executes these and stays as it is then,
# until the test ends. Ready when this returns.
hold()
{
    PGOPTIONS='-c client_connection_check_interval=50' \
        in_background "$2" psql -X -q -A -t -v ON_ERROR_STOP=1 -d "$1" \
        -c "$3" -c "select 'holding'" -c 'select pg_sleep(600)'
    wait_until 20 grep -q holding "$2"
}

# hold_until URL LOG TABLE STATEMENTS: the same, but the session goes on, and
# commits, when TABLE is created.
hold_until()
{
    in_background "$2" psql -X -q -A -t -v ON_ERROR_STOP=1 -d "$1" -c "$4" -c "select 'holding'" \
        -c "do \$\$ begin
              while not exists (select from pg_class where relname = '$3') loop
                perform pg_sleep(0.005);
              end loop;
            end \$\$" -c commit
    wait_until 20 grep -q holding "$2"
}
