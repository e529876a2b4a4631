// SPDX-License-Identifier: Apache-2.0
//
// The program: finds the command in the table, runs it, and turns its outcome
// into an exit status: 0 it worked, 1 it failed, 2 it was asked wrongly.

#include <errno.h>
#include <fcntl.h>
#include <signal.h>
#include <stdio.h>
#include <string.h>
#include <unistd.h>

#include "cli/cli.h"
#include "cli/options.h"
#include "core/buf.h"
#include "core/suggest.h"
#include "pgkin.h"

extern const struct cli_command cmd_start, cmd_work, cmd_migrate, cmd_enqueue, cmd_tasks,
    cmd_show, cmd_cancel, cmd_retry, cmd_pause, cmd_resume, cmd_status, cmd_top,
    cmd_slots, cmd_doctor, cmd_psql, cmd_bench;
static const struct cli_command cmd_help;

static const struct cli_command *const commands[] = {
    &cmd_start,  &cmd_work,   &cmd_migrate, &cmd_enqueue, &cmd_tasks,  &cmd_show,
    &cmd_cancel, &cmd_retry,  &cmd_pause,   &cmd_resume,  &cmd_status, &cmd_top,
    &cmd_slots,  &cmd_doctor, &cmd_psql,    &cmd_bench,   &cmd_help,
};

#define COMMAND_COUNT (sizeof commands / sizeof commands[0])

static const struct cli_command *find_command(const char *name)
{
    for (size_t i = 0; i < COMMAND_COUNT; i++)
        if (strcmp(commands[i]->name, name) == 0)
            return commands[i];
    return NULL;
}

static bool unknown_command(const char *name, struct err *e)
{
    const char *names[COMMAND_COUNT];
    for (size_t i = 0; i < COMMAND_COUNT; i++)
        names[i] = commands[i]->name;
    err_usage(e, "unknown command \"%s\"", name);
    const char *near = suggest_nearest(name, names, COMMAND_COUNT);
    if (near != NULL)
        return err_hint(e, "did you mean \"%s\"?", near);
    return err_hint(e, "pgkin --help lists the commands");
}

static void print_command_help(const struct cli_command *cmd)
{
    struct buf text = BUF_INIT;
    cli_help_command(cmd, &text);
    fputs(buf_str(&text), stdout);
    buf_clear(&text);
}

static void print_help(void)
{
    fputs("usage: pgkin COMMAND [OPTION...]\n\n"
          "background work that lives in PostgreSQL\n\n"
          "commands:\n",
          stdout);
    for (size_t i = 0; i < COMMAND_COUNT; i++)
        printf("  %-10s %s\n", commands[i]->name, commands[i]->summary);
    fputs("\noptions:\n"
          "  -h, --help     show this text; after a command, its own\n"
          "  -V, --version  show the version\n",
          stdout);
}

static bool run_help(int argc, char **argv, struct err *e)
{
    int first;
    if (!cli_parse(&cmd_help, argc, argv, NULL, NULL, &first, e))
        return false;
    if (first == argc) {
        print_help();
        return true;
    }
    const struct cli_command *cmd = find_command(argv[first]);
    if (cmd == NULL)
        return unknown_command(argv[first], e);
    print_command_help(cmd);
    return true;
}

static const struct cli_command cmd_help = {
    .name = "help",
    .args = "[COMMAND]",
    .summary = "show the help of a command, or the list of commands",
    .max_operands = 1,
    .run = run_help,
};

static bool run(int argc, char **argv, struct err *e)
{
    const char *word = argc > 1 ? argv[1] : NULL;
    if (word == NULL) {
        err_usage(e, "no command given");
        return err_hint(e, "pgkin --help lists the commands");
    }
    if (strcmp(word, "--version") == 0 || strcmp(word, "-V") == 0) {
        printf("pgkin %s\n", pgkin_version());
        return true;
    }
    if (strcmp(word, "--help") == 0 || strcmp(word, "-h") == 0) {
        print_help();
        return true;
    }
    if (word[0] == '-') {
        err_usage(e, "unknown option \"%.*s\"", (int)strcspn(word, "="), word);
        return err_hint(e, "options come after the command: pgkin COMMAND [OPTION...]");
    }
    const struct cli_command *cmd = find_command(word);
    if (cmd == NULL)
        return unknown_command(word, e);
    return cmd->run(argc - 1, argv + 1, e);
}

// Without it the next file or socket opened would become standard output, and
// get our lines. Opened for reading only: to write to it is an error still.
static void hold_standard_files(void)
{
    for (int fd = 0; fd <= 2; fd++)
        if (fcntl(fd, F_GETFD) < 0 && errno == EBADF && open("/dev/null", O_RDONLY) != fd)
            BUG("cannot open /dev/null");
}

// A reader that went away is an error of the write, not of the process. A
// handler, and not SIG_IGN, because that one would be inherited by programs
// we run.
static void on_sigpipe(int sig)
{
    (void)sig;
}

static void close_stdout(bool *ok, struct err *e)
{
    bool failed = ferror(stdout) != 0;
    bool closed = fclose(stdout) == 0;
    int errnum = errno;
    if (closed && !failed)
        return;
    // Of an earlier write the reason is no longer known.
    if (*ok || e->code == ERR_NONE)
        closed ? err_set(e, "cannot write to standard output")
               : err_errno(e, errnum, "cannot write to standard output");
    *ok = false;
}

int main(int argc, char **argv)
{
    struct err e = ERR_INIT;
    struct sigaction sa = {.sa_handler = on_sigpipe, .sa_flags = SA_RESTART};
    hold_standard_files();
    sigaction(SIGPIPE, &sa, NULL);

    bool ok = run(argc, argv, &e);
    close_stdout(&ok, &e);
    if (ok)
        return ERR_NONE;
    if (e.msg[0] != '\0')
        fprintf(stderr, "pgkin: %s\n", e.msg);
    if (e.hint[0] != '\0')
        fprintf(stderr, "hint: %s\n", e.hint);
    return (int)e.code;
}
