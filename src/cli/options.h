// SPDX-License-Identifier: Apache-2.0
//
// Options as rows of a table (struct cli_option in cli.h): getopt's arrays,
// the help text and the suggestions for a mistyped option all come from them.

#ifndef PGKIN_CLI_OPTIONS_H
#define PGKIN_CLI_OPTIONS_H

#include <stdbool.h>

#include "cli/cli.h"
#include "core/buf.h"
#include "core/err.h"
#include "core/log.h"

struct conf;

// What the options that every command takes come to, together with the
// configuration file and the environment.
struct cli_common {
    const char *database; // for db_connect(); NULL: PG*, else the private cluster
    const char *data_dir; // the private cluster's directory; NULL: the default
    struct log log;       // to standard error
    struct conf *conf;    // every setting; owned, the strings above live in it
};

// Reads argv (argv[0] is the command's name) into `values`, the command's own
// struct that cmd->options point into and that already holds the defaults,
// and into `common`. `first` gets the index of the first operand; argv is
// reordered so that all operands are at its end. `common` and `first` may be
// NULL; without `common`, neither file nor environment is read.
//
// False with `e` filled: wrong usage, or a bad setting. False with e->code
// ERR_NONE: --help was given and has been printed. `common` needs clearing
// only after true.
bool cli_parse(const struct cli_command *cmd, int argc, char **argv, void *values,
               struct cli_common *common, int *first, struct err *e);

void cli_common_clear(struct cli_common *common);

// Appends the text of `pgkin CMD --help`.
void cli_help_command(const struct cli_command *cmd, struct buf *out);

#endif
