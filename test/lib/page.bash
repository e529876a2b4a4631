# SPDX-License-Identifier: Apache-2.0
# shellcheck shell=bash
#
# Documentation that is run. Load after lib/system.

# check_page FILE: runs the ```sql blocks of a page in order, in one session on
# $URL, and compares what they print with the ```text block that follows one.
check_page()
{
    awk '/^```sql$/ { on = 1; next } /^```text$/ { on = 2; next } /^```/ { on = 0; next }
         on == 1 { print > (dir "/sql") } on == 2 { print > (dir "/text") }' \
        dir="$BATS_TEST_TMPDIR" "$1"
    psql -X -q -A -t -v ON_ERROR_STOP=1 -d "$URL" <"$BATS_TEST_TMPDIR/sql" 2>&1 |
        grep -v '^$' >"$BATS_TEST_TMPDIR/out" || true
    diff <(grep -v '^$' "$BATS_TEST_TMPDIR/text" | sed 's/ *$//') <(sed 's/ *$//' "$BATS_TEST_TMPDIR/out")
}

# check_console FILE: runs the commands of the ```console blocks, which follow
# "$ ", each in a shell of its own in the project's directory, and compares what
# they print, errors included, with the lines below.
check_console()
{
    local page=$1 line block
    block=$(awk '/^```console$/ { on = 1; next } /^```/ { on = 0; next } on' "$page")
    while IFS= read -r line; do
        echo "$line"
        [[ $line != '$ '* ]] || (cd "$BATS_TEST_DIRNAME/../.." && bash -c "${line#??}" 2>&1 </dev/null 3>&-)
    done < <(grep '^\$ ' <<<"$block") >"$BATS_TEST_TMPDIR/console"
    diff <(echo "$block") "$BATS_TEST_TMPDIR/console"
}
