# SPDX-License-Identifier: Apache-2.0
# shellcheck shell=bash
#
# What the tests of the commands share, besides test/lib/system.bash.

# cli_database: sets DATABASE_URL to a new database with three commands in queue
# "q": run (payload keys fail, children, sleep), and later.
cli_database()
{
    export PGKIN_CONFIG=/dev/null
    DATABASE_URL=$(migrated_database)
    export DATABASE_URL
    sql "$DATABASE_URL" "
        create schema app;
        create procedure app.run(payload jsonb, inout result jsonb) language plpgsql as \$\$
        begin
          for i in 1..coalesce((payload ->> 'children')::int, 0) loop
            call worker.spawn('run', jsonb_build_object('n', i));
          end loop;
          if payload ? 'fail' then raise exception '%', payload ->> 'fail'; end if;
          result := jsonb_build_object('done', payload);
        end \$\$;
        set client_min_messages = warning;
        select worker.register_command('run', 'q', 'app.run'),
               worker.register_command('later', 'q', 'app.run')" >/dev/null
}

# work: runs what is due, until nothing is left.
work()
{
    sql "$DATABASE_URL" 'select worker.drain()' >/dev/null
}

# fails STATUS MESSAGE HINT COMMAND...: these lines on standard error, patterns
# both, and nothing on standard output. An empty HINT: none is given.
fails()
{
    local expected=$1 message=$2 hint=$3
    shift 3
    run --separate-stderr "$@"
    # shellcheck disable=SC2154 # from bats
    echo "status $status, stdout: $output, stderr: $stderr"
    [ "$status" -eq "$expected" ]
    [ -z "$output" ]
    # shellcheck disable=SC2154,SC2053 # from bats; patterns are wanted
    [[ ${stderr_lines[0]} == pgkin:\ $message ]]
    # shellcheck disable=SC2053
    [[ ${stderr_lines[1]:-} == ${hint:+hint: }$hint ]]
    [ "${#stderr_lines[@]}" -le 2 ]
}

# json EXPRESSION: prints what the Python expression makes of the JSON on
# standard input, which is `d`.
json()
{
    python3 -c 'import json, sys; d = json.load(sys.stdin); print('"$1"')'
}

# has_function SIGNATURE: is it there?
has_function()
{
    [ "$(sql "$DATABASE_URL" "select to_regprocedure('$1') is not null")" = t ]
}
