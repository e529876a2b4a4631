// SPDX-License-Identifier: Apache-2.0
//
// The command line: a table of commands (main.c), each in a file cmd_NAME.c.
// A command is a row; nothing else has to change to add one. Its options are
// rows too: getopt's tables and the help text are made from them (options.h).

#ifndef PGKIN_CLI_CLI_H
#define PGKIN_CLI_CLI_H

#include <stdbool.h>
#include <stddef.h>

#include "core/err.h"

enum cli_option_type {
    CLI_FLAG,   // bool
    CLI_STRING, // const char *, pointing into argv
    CLI_INT,    // int, not negative
    CLI_LIST,   // struct cli_list: may be repeated
};

// The values of an option that may be repeated, pointing into argv.
#define CLI_LIST_MAX 64
struct cli_list {
    const char *items[CLI_LIST_MAX];
    size_t count;
};

// One row of a table that ends with a row without a name. `offset` says where
// in the command's own struct of values the option goes:
//     {"dry-run", 0, CLI_FLAG, offsetof(struct values, dry_run), NULL, "change nothing"},
struct cli_option {
    const char *name; // the long form, without dashes
    char letter;      // the short form, or 0
    enum cli_option_type type;
    size_t offset;
    const char *arg;  // what the help calls the value: "FILE"
    const char *help; // one line
};

struct cli_command {
    const char *name;
    const char *args;    // "[--dry-run] [--dump]", for the usage line
    const char *summary; // one line, for the list
    const char *help;    // the rest of --help, after the options; may be NULL
    const struct cli_option *options; // besides those common to all; may be NULL
    int max_operands;                 // how many arguments that are not options; -1: any
    // What follows the first argument that is not one of our options, options
    // included, is operands (`pgkin psql -c 'select 1'`).
    bool pass_rest;
    // argv[0] is the command's name. False with `e` filled: the error is
    // printed and e->code is the exit status. A command that has already
    // reported an unsuccessful outcome sets e->code and leaves e->msg empty.
    // False with e->code ERR_NONE (help was asked for and printed) is success.
    bool (*run)(int argc, char **argv, struct err *e);
};

#endif
