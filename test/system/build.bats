#!/usr/bin/env bats
# SPDX-License-Identifier: Apache-2.0
#
# The build, the installation and the set-up script, on a copy of the sources
# so that the checkout's own build is left alone.

bats_require_minimum_version 1.5.0
load ../lib/system

setup_file()
{
    export COPY=$BATS_FILE_TMPDIR/copy
    mkdir "$COPY"
    cp -a Makefile include src sql scripts packaging man "$COPY"
    [ ! -d web ] || cp -a web "$COPY"
    mkdir -p "$COPY/test/unit"
    cp test/unit/test_asset.c "$COPY/test/unit"
    # Quick rather than good code; the same in every test, or all is rebuilt.
    export OPT='-O0' FORTIFY=''
    make -C "$COPY" -s -j2 all unit-tests
}

setup()
{
    cd "$COPY" || exit 1
}

# compiled: the files that make says it would compile, one in a line.
compiled()
{
    make -n "$@" | sed -n 's/.* -c -o [^ ]* \([^ ;]*\.c\)$/\1/p' | sort
}

@test "a second make has nothing to do" {
    run make all
    [ "$status" -eq 0 ]
    [ "$output" = "make: Nothing to be done for 'all'." ]
    make -q unit-tests
}

@test "a touched header rebuilds what includes it, directly or not, and nothing else" {
    grep -lE '^# *include "core/asset.h"' src/*/*.c test/unit/test_asset.c | sort >direct
    run compiled -W src/core/asset.h all unit-tests
    [ "$output" != "" ]
    # All that name it, and only files whose dependency file names it.
    comm -13 <(echo "$output") direct >forgotten
    [ ! -s forgotten ]
    for source in $output; do
        grep -q 'src/core/asset\.h' "build/${source%.c}.d"
    done
    run compiled -W src/core/asset.h build/src/core/buf.o
    [ "$output" = "" ]
}

@test "a touched header that nobody includes rebuilds nothing" {
    : >src/core/nobody.h
    run compiled -W src/core/nobody.h all unit-tests
    rm src/core/nobody.h
    [ "$output" = "" ]
}

@test "a changed SQL file is embedded anew without compiling C" {
    file=$(printf '%s\n' sql/queries/*.sql | head -n 1)
    run make -n -W "$file" build/libpgkin.a
    [[ $output == *"scripts/embed-assets"*"ar rcs build/libpgkin.a"* ]]
    run compiled -W "$file" all
    [ "$output" = "" ]
}

@test "other flags or another compiler rebuild everything" {
    sources=$(printf '%s\n' src/*/*.c | sort)
    run compiled CFLAGS=-DSOMETHING all
    [ "$output" = "$sources" ]
    run compiled CC=clang all
    [ "$output" = "$sources" ]
    make -q all
}

@test "a source that was removed is taken out of the library" {
    printf '%s\n' '#include "pgkin.h"' 'int extra(void);' 'int extra(void) { return 1; }' \
        >src/lib/extra.c
    make -s build/libpgkin.a
    nm build/libpgkin.a | grep -q ' T extra$'
    rm src/lib/extra.c
    make -s all
    run ! grep -q extra <(nm build/libpgkin.a)
    make -q all
}

@test "the shared library exports what the public header declares" {
    grep -oE 'PGKIN_API [^(]*\(' include/pgkin.h | grep -oE 'pgkin_[a-z_]+\(' | tr -d '(' | sort >declared
    nm -D --defined-only build/libpgkin.so | awk '{ print $3 }' | sort >exported
    diff declared exported
}

@test "make install, and a program built against it" {
    destination=$BATS_TEST_TMPDIR/destination
    make -s install DESTDIR="$destination" PREFIX=/opt/kin
    cd "$destination/opt/kin"
    version=$(PKG_CONFIG_LIBDIR=lib/pkgconfig pkg-config --modversion pgkin)
    grep -q "^#define PGKIN_VERSION \"$version\"" include/pgkin.h
    [ "$(readlink lib/libpgkin.so)" = libpgkin.so.0 ]
    [ "$(readlink lib/libpgkin.so.0)" = "libpgkin.so.$version" ]
    [[ $(bin/pgkin --version) == *"$version"* ]]
    grep -q "pgkin $version" share/man/man1/pgkin.1
    grep -q '^ExecStart=/opt/kin/bin/pgkin work$' lib/systemd/system/pgkin.service
    run ! grep -rE '@[A-Z]+@' share lib/systemd lib/pkgconfig

    printf '%s\n' '#include <pgkin.h>' '#include <stdio.h>' \
        'int main(void) { return puts(pgkin_version()) < 0; }' >program.c
    export PKG_CONFIG_LIBDIR=lib/pkgconfig PKG_CONFIG_SYSROOT_DIR=$destination
    # shellcheck disable=SC2046 # words
    gcc -Wall -Werror -o program program.c $(pkg-config --cflags --libs pgkin)
    ldd program >needed || true
    grep -q 'libpgkin\.so\.0' needed
    [ "$(LD_LIBRARY_PATH=lib ./program)" = "$version" ]
}

@test "the static library links with what pkg-config --static says" {
    destination=$BATS_TEST_TMPDIR/destination
    make -s install DESTDIR="$destination" PREFIX=/usr
    cd "$destination/usr"
    rm lib/libpgkin.so*
    printf '%s\n' '#include <pgkin.h>' '#include <stdio.h>' \
        'int main(void) { return puts(pgkin_version()) < 0; }' >program.c
    export PKG_CONFIG_LIBDIR=lib/pkgconfig PKG_CONFIG_SYSROOT_DIR=$destination
    # shellcheck disable=SC2046 # words
    gcc -o program program.c -I include -L lib $(pkg-config --static --libs pgkin)
    ./program
}

@test "make uninstall leaves no file" {
    destination=$BATS_TEST_TMPDIR/destination
    make -s install DESTDIR="$destination"
    [ -x "$destination/usr/local/bin/pgkin" ]
    make -s uninstall DESTDIR="$destination"
    run find "$destination" ! -type d
    [ "$output" = "" ]
}

@test "make help names every target that has a description" {
    run make help
    [ "$status" -eq 0 ]
    for target in all run test asan lint format install uninstall test-majors clean; do
        [[ $output == *$'\n'"  $target "* ]] || [[ $output == "  $target "* ]]
    done
}

# ------------------------------------------------------------ scripts/setup

@test "setup is quick when nothing is missing" {
    start=${EPOCHREALTIME/./}
    run scripts/setup test
    took=$((${EPOCHREALTIME/./} - start))
    [ "$status" -eq 0 ]
    [ "$output" = "" ]
    ((took < 500000))
}

# A directory with links to the ordinary commands only: no compiler, no bats.
bare_path()
{
    local dir name
    dir=$(user_directory)
    for name in sh env id sort tr printf; do
        ln -s "$(command -v "$name")" "$dir/$name"
    done
    chmod 755 "$dir"
    echo "$dir"
}

@test "setup as an ordinary user prints the one line to run" {
    install -m 755 scripts/setup "$PGKIN_TEST_DIR/bin/setup"
    USER_PATH=$(bare_path) # for run_as_user
    export USER_PATH
    run run_as_user "$PGKIN_TEST_DIR/bin/setup" test
    [ "$status" -eq 1 ]
    [ "${#lines[@]}" -eq 2 ]
    [[ ${lines[1]} == "sudo apt-get install --no-install-recommends "* ]]
    for package in gcc make pkg-config libpq-dev libevent-dev libcurl4-openssl-dev \
        libjansson-dev libinih-dev libcmocka-dev bats; do
        [[ " ${lines[1]} " == *" $package "* ]]
    done
}

@test "setup asks for less to run than to test" {
    PATH=$(bare_path) run scripts/setup --check run
    [ "$status" -eq 1 ]
    [[ $output == *libpq-dev* ]]
    [[ $output != *cmocka* ]]
    [[ $output != *bats* ]]
}

@test "setup asks for a server when there is only a client" {
    PGKIN_BINDIR=$BATS_TEST_TMPDIR run scripts/setup --check run
    [ "$status" -eq 1 ]
    [[ ${lines[1]} == "sudo apt-get install --no-install-recommends postgresql-15" ]]
}

@test "setup refuses a group that it does not know" {
    run scripts/setup everything
    [ "$status" -eq 2 ]
    [[ $output == usage:* ]]
}

# ------------------------------------------------------------- scripts/run

@test "make run's helper hands a signal to the whole group on once" {
    log=$BATS_TEST_TMPDIR/log
    cat >"$BATS_TEST_TMPDIR/Makefile" <<END
run:
	@exec $COPY/scripts/run $BATS_TEST_TMPDIR/child
END
    cat >"$BATS_TEST_TMPDIR/child" <<'END'
#!/bin/bash
trap 'echo signal' TERM INT
echo ready
for _ in {1..10}; do sleep 0.1; done # time for a second one to come
echo end
END
    chmod +x "$BATS_TEST_TMPDIR/child"
    setsid make -s -C "$BATS_TEST_TMPDIR" run >"$log" 2>&1 3>&- &
    wait_until 10 grep -q ready "$log"
    kill -TERM -- "-$!"
    wait_until 10 grep -q end "$log"
    [ "$(grep -c signal "$log")" -eq 1 ]
    run ! grep -q '\*\*\*' "$log"
}
