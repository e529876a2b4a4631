# SPDX-License-Identifier: Apache-2.0
# shellcheck shell=bash
#
# The throw-away cluster of a test run: unix socket only, no fsync, made from a
# template that is initialised once for each server version and kept in the
# build directory. Used by test/run, which owns $work, $build and $root.

# shellcheck disable=SC2034,SC2154 # variables of test/run and groups.bash
server_pid=
test_user=pgkin-test

# A socket's path may have 107 bytes, so a long TMPDIR is of no use.
short_tmpdir()
{
    if [ -n "${TMPDIR:-}" ] && ((${#TMPDIR} <= 40)); then
        echo "$TMPDIR"
    else
        echo /tmp
    fi
}

# newest_bindir PROGRAM...: Debian's newest directory with all of them.
newest_bindir()
{
    local dir name
    for dir in $(printf '%s\n' /usr/lib/postgresql/*/bin | sort -rV); do
        for name; do
            [ -x "$dir/$name" ] || continue 2
        done
        echo "$dir"
        return
    done
    return 1
}

# as_server COMMAND...: as the user who may run a PostgreSQL server. exec it
# in a subshell where the process id matters.
as_server()
{
    if ((EUID != 0)); then
        "$@"
    else
        setpriv --reuid postgres --regid postgres --groups "$server_groups" \
            --inh-caps=-all "$@"
    fi
}

# The unprivileged user of some system tests. The server's socket is open to
# root and to that user's group only.
make_test_user()
{
    server_groups=$(id -G postgres | tr ' ' ,)
    if ! id "$test_user" >/dev/null 2>&1; then
        useradd --system --user-group --create-home --home-dir "/var/lib/$test_user" \
            --shell /bin/sh "$test_user" 2>/dev/null
    fi
    if id "$test_user" >/dev/null 2>&1; then
        export PGKIN_TEST_USER=$test_user
        socket_group=$test_user
        server_groups+=",$(id -g "$test_user")"
    else
        socket_group=postgres
    fi
}

find_programs()
{
    client_bindir=$(newest_bindir psql pg_isready pg_dump) ||
        die "PostgreSQL's client programs are missing; run scripts/setup test"
    server_bindir=${PGKIN_TEST_BINDIR:-$(newest_bindir postgres initdb)}
    [ -x "$server_bindir/postgres" ] ||
        die "no PostgreSQL server in '$server_bindir'; run scripts/setup test"
    isolationtester=$(printf '%s\n' \
        /usr/lib/postgresql/*/lib/pgxs/src/test/isolation/isolationtester | tail -n 1)
    # Debian's psql on the path is a wrapper that is slow to start.
    export PATH=$client_bindir:$PATH
    if ((EUID == 0)); then
        id postgres >/dev/null 2>&1 || die "there is no user postgres to run the server as"
        make_test_user
        # The server's user may not be able to get into this checkout.
        if ! as_server test -x "$server_bindir/postgres"; then
            cp -a "${server_bindir%/bin}" "$work/server"
            server_bindir=$work/server/bin
        fi
    fi
}

# Initialises a data directory, or copies one made before by the same version.
make_data_directory()
{
    local version template
    version=$("$server_bindir/postgres" --version | tr -c 'A-Za-z0-9.\n' -)
    template=$build/test/template-$version-$EUID
    if [ ! -e "$template" ]; then
        as_server "$server_bindir/initdb" -D "$work/pg/new" -U postgres -A trust \
            -E UTF8 --no-locale --no-sync >"$work/initdb.log" 2>&1 || {
            cat "$work/initdb.log" >&2
            die "initdb failed"
        }
        mkdir -p "$build/test"
        cp -a "$work/pg/new" "$template.$$" && mv -T "$template.$$" "$template" 2>/dev/null
        rm -rf "$template.$$"
        mv "$work/pg/new" "$work/pg/data"
    else
        cp -a "$template" "$work/pg/data" || die "cannot copy $template"
    fi
}

write_settings()
{
    cat >>"$work/pg/data/postgresql.conf" <<END
listen_addresses = ''
unix_socket_directories = '$work/pg/s'
fsync = off
synchronous_commit = off
full_page_writes = off
max_connections = 200
shared_buffers = 64MB
log_line_prefix = '%m [%p] %d %a '
END
    if ((EUID == 0)); then
        cat >>"$work/pg/data/postgresql.conf" <<END
unix_socket_group = '$socket_group'
unix_socket_permissions = 0770
END
    fi
}

cluster_start()
{
    find_programs
    chmod 711 "$work"
    mkdir -p "$work/pg/s" "$work/tmp" "$work/bin"
    chmod 1777 "$work/tmp"
    ((EUID != 0)) || chown -R postgres: "$work/pg"
    ((EUID == 0)) || chmod 700 "$work/pg"
    make_data_directory
    write_settings

    # Not a pid written by a shell in between: the signal that comes when this
    # runner dies, even by SIGKILL, and the stop at the end must reach the server.
    local drop=()
    ((EUID != 0)) || drop=(--reuid postgres --regid postgres --groups "$server_groups")
    setpriv "${drop[@]}" --pdeathsig INT "$server_bindir/postgres" -D "$work/pg/data" \
        </dev/null >"$work/server.log" 2>&1 &
    server_pid=$!
    wait_for_server

    # Tests get a copy that every user can execute wherever the checkout is.
    install -m 755 "$build/pgkin" "$work/bin/pgkin"
    export PGKIN=$work/bin/pgkin
    export PGKIN_TEST_DIR=$work
    export PGKIN_TEST_URL="postgresql://postgres@/postgres?host=$work/pg/s"
    export PGKIN_TEST_TEMPLATE=pgkin_migrated
    export TMPDIR=$work/tmp
}

wait_for_server()
{
    local i
    for ((i = 0; i < 600; i++)); do
        pg_isready -q -h "$work/pg/s" && return
        if ! kill -0 "$server_pid" 2>/dev/null; then
            cat "$work/server.log" >&2
            die "the PostgreSQL server did not start"
        fi
        sleep 0.05
    done
    die "the PostgreSQL server was not ready after 30 seconds"
}

cluster_stop()
{
    [ -n "$server_pid" ] || return
    kill -INT "$server_pid" 2>/dev/null && wait "$server_pid" 2>/dev/null
    server_pid=
}

sql()
{
    psql -X -q -A -t -v ON_ERROR_STOP=1 -d "$PGKIN_TEST_URL" -c "$1"
}

database_url()
{
    echo "postgresql://postgres@/$1?host=$work/pg/s"
}

# The migrated database that is the template of every test that wants one.
# Made when it is first needed; false, with the reason in $work/migrate.log,
# when that did not work.
template_made=
make_migrated_template()
{
    if [ -z "$template_made" ]; then
        template_made=no
        {
            sql "create database $PGKIN_TEST_TEMPLATE" &&
                timeout 60 "$PGKIN" migrate -d "$(database_url "$PGKIN_TEST_TEMPLATE")" &&
                sql "alter database $PGKIN_TEST_TEMPLATE with is_template true allow_connections false"
        } </dev/null >"$work/migrate.log" 2>&1 && template_made=yes
    fi
    [ "$template_made" = yes ]
}
