// SPDX-License-Identifier: Apache-2.0
//
// `pgkin psql`: becomes psql on the database in use.

#include <errno.h>
#include <libpq-fe.h>
#include <signal.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "cli/cli.h"
#include "cli/db.h"
#include "cli/options.h"
#include "core/conninfo.h"
#include "embed/bindir.h"
#include "embed/place.h"

extern const struct cli_command cmd_psql;

// Everybody on the machine can read the command line of a process, but only
// its owner its environment. So what libpq calls a password goes there.
static bool hide_secret(const PQconninfoOption *o, struct err *e)
{
    if (o->envvar == NULL) {
        err_set(e, "%s in the connection string cannot be handed to psql unseen",
                o->keyword);
        return err_hint(e, "put it into a service file and use service=NAME");
    }
    if (setenv(o->envvar, o->val, 1) != 0)
        return err_errno(e, errno, "cannot set %s", o->envvar);
    return true;
}

// Appends the connection string without its passwords.
static bool split_conninfo(const char *conninfo, struct buf *out, struct err *e)
{
    bool ok = true;
    if (!conninfo_check(conninfo, e))
        return false;
    PQconninfoOption *opts = PQconninfoParse(conninfo, NULL);
    if (opts == NULL)
        return err_set(e, "the connection string is not valid");
    for (const PQconninfoOption *o = opts; ok && o->keyword != NULL; o++) {
        if (o->val == NULL)
            continue;
        if (strchr(o->dispchar, '*') != NULL)
            ok = hide_secret(o, e);
        else
            place_add_conninfo(out, o->keyword, o->val);
    }
    PQconninfoFree(opts);
    return ok;
}

static bool become_psql(const char *conninfo, char **args, int n, struct err *e)
{
    struct buf program = BUF_INIT;
    bindir_find_client("psql", &program);
    const char **argv = xcalloc((size_t)n + 4, sizeof(*argv));
    int k = 0;
    argv[k++] = "psql";
    if (conninfo[0] != '\0') {
        argv[k++] = "--dbname";
        argv[k++] = conninfo;
    }
    for (int i = 0; i < n; i++)
        argv[k++] = args[i];
    signal(SIGPIPE, SIG_DFL);
    execvp(program.data, (char *const *)argv);
    int saved = errno;
    err_errno(e, saved, "cannot run %s", program.data);
    if (saved == ENOENT)
        err_hint(e, "install the package postgresql-client");
    free(argv);
    buf_clear(&program);
    return false;
}

static bool run_psql(int argc, char **argv, struct err *e)
{
    struct cli_common common;
    struct buf info = BUF_INIT;
    struct buf safe = BUF_INIT;
    int first;
    if (!cli_parse(&cmd_psql, argc, argv, NULL, &common, &first, e))
        return false;
    bool ok = db_conninfo_in(common.database, common.data_dir, &info, e) &&
              split_conninfo(buf_str(&info), &safe, e) &&
              become_psql(buf_str(&safe), argv + first, argc - first, e);
    buf_clear(&info);
    buf_clear(&safe);
    cli_common_clear(&common);
    return ok;
}

const struct cli_command cmd_psql = {
    .name = "psql",
    .args = "[ARGS...]",
    .summary = "psql on the database in use",
    .help =
        "Everything after the options above goes to psql. Passwords of the connection\n"
        "string are handed over in the environment, not on the command line.\n"
        "\n"
        "Examples:\n"
        "  pgkin psql\n"
        "  pgkin psql -c 'select count(*) from queues.task'\n"
        "  pgkin psql -d postgresql://host/db -f script.sql\n",
    .max_operands = -1,
    .pass_rest = true,
    .run = run_psql,
};
