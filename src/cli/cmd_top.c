// SPDX-License-Identifier: Apache-2.0
//
// `pgkin top`: the overview and the newest tasks, drawn again every second. The
// terminal is left as it was found, however it ends.

#include <poll.h>
#include <signal.h>
#include <stdio.h>
#include <string.h>
#include <termios.h>
#include <unistd.h>

#include "cli/cli.h"
#include "cli/client.h"
#include "cli/overview.h"
#include "cli/task_list.h"
#include "cli/text.h"

#define SCREEN_ENTER "\033[?1049h\033[?25l"
#define SCREEN_LEAVE "\033[?25h\033[?1049l"
#define GO_HOME      "\033[H"
#define CLEAR_LINE   "\033[K"
#define CLEAR_BELOW  "\033[J"

// Of a terminal that does not say.
#define DEFAULT_HEIGHT 24

struct values {
    int interval_s;
};

static const struct cli_option options[] = {
    {"interval", 'i', CLI_INT, offsetof(struct values, interval_s), "SECONDS",
     "between two looks (1)"},
    {0},
};

// Appends everything, as many lines as there may be. `tasks`: how many of these.
static bool add_view(PGconn *conn, size_t width, int tasks, struct buf *out,
                     struct err *e)
{
    struct task_filter filter = {.limit = tasks};
    bool cut;
    bool ok = client_begin_look(conn, e) && overview_add_text(conn, width, out, e);
    buf_addc(out, '\n');
    ok = ok && task_list_add_text(conn, &filter, width, out, &cut, e);
    client_end_look(conn);
    return ok;
}

// ---------------------------------------------------------------- full screen

static volatile sig_atomic_t stop_asked;

static void on_stop(int sig)
{
    (void)sig;
    stop_asked = 1;
}

static void on_resize(int sig)
{
    (void)sig; // poll() ends early, and the next drawing has the new size
}

static void catch_signals(void)
{
    const int stops[] = {SIGINT, SIGTERM, SIGHUP};
    struct sigaction stop = {.sa_handler = on_stop};
    struct sigaction resize = {.sa_handler = on_resize};
    for (size_t i = 0; i < sizeof stops / sizeof stops[0]; i++)
        sigaction(stops[i], &stop, NULL);
    sigaction(SIGWINCH, &resize, NULL);
}

// The first `height` lines of `text`, over what was there before.
static void draw(const char *text, size_t height)
{
    struct buf out = BUF_INIT;
    buf_adds(&out, GO_HOME);
    for (size_t i = 0; i < height && *text != '\0'; i++) {
        size_t len = strcspn(text, "\n");
        buf_addf(&out, "%s%.*s" CLEAR_LINE, i > 0 ? "\r\n" : "", (int)len, text);
        text += len + (text[len] == '\n');
    }
    buf_adds(&out, CLEAR_BELOW);
    fputs(buf_str(&out), stdout);
    fflush(stdout);
    buf_clear(&out);
}

// True: a key was pressed that ends it.
static bool wait_for_key(int interval_s, bool keys)
{
    struct pollfd in = {.fd = STDIN_FILENO, .events = POLLIN};
    if (poll(&in, keys ? 1 : 0, interval_s * 1000) <= 0)
        return false;
    char key = 'q'; // also when the terminal is gone
    return read(STDIN_FILENO, &key, 1) != 1 || key == 'q' || key == 'Q';
}

// One drawing. The connection is made anew when it was lost: whoever watches a
// failover wants to go on watching.
static void refresh(const struct cli_common *common, PGconn **conn)
{
    struct err e = ERR_INIT;
    struct buf view = BUF_INIT;
    size_t height = text_terminal_height();
    if (height == 0)
        height = DEFAULT_HEIGHT;
    if (*conn != NULL && PQstatus(*conn) != CONNECTION_OK) {
        PQfinish(*conn);
        *conn = NULL;
    }
    if (*conn == NULL)
        *conn = client_open(common, &e);
    if (*conn == NULL ||
        !add_view(*conn, text_terminal_width(), (int)height, &view, &e)) {
        buf_reset(&view);
        buf_addf(&view, "%s\n%s\n", e.msg, e.hint);
    }
    draw(buf_str(&view), height);
    buf_clear(&view);
}

static bool watch(const struct cli_common *common, int interval_s, struct err *e)
{
    struct termios before, raw;
    PGconn *conn = client_open(common, e);
    if (conn == NULL)
        return false;
    bool keys = tcgetattr(STDIN_FILENO, &before) == 0;
    catch_signals();
    if (keys) {
        raw = before;
        raw.c_lflag &= ~(tcflag_t)(ICANON | ECHO);
        tcsetattr(STDIN_FILENO, TCSANOW, &raw);
    }
    fputs(SCREEN_ENTER, stdout);
    do
        refresh(common, &conn);
    while (!stop_asked && !ferror(stdout) && !wait_for_key(interval_s, keys) &&
           !stop_asked);
    fputs(SCREEN_LEAVE, stdout);
    fflush(stdout);
    if (keys)
        tcsetattr(STDIN_FILENO, TCSANOW, &before);
    PQfinish(conn);
    return true;
}

// ---------------------------------------------------------------- the command

static bool print_once(const struct cli_common *common, struct err *e)
{
    struct buf out = BUF_INIT;
    PGconn *conn = client_open(common, e);
    bool ok = conn != NULL && add_view(conn, 0, 20, &out, e);
    fputs(buf_str(&out), stdout);
    buf_clear(&out);
    PQfinish(conn);
    return ok;
}

static bool run(int argc, char **argv, struct err *e);

const struct cli_command cmd_top = {
    .name = "top",
    .args = "[--interval SECONDS]",
    .summary = "watch the queues, workers and newest tasks",
    .help = "q ends it. Without a terminal it prints once.\n",
    .options = options,
    .run = run,
};

static bool run(int argc, char **argv, struct err *e)
{
    struct values v = {.interval_s = 1};
    struct cli_common common;
    if (!cli_parse(&cmd_top, argc, argv, &v, &common, NULL, e))
        return false;
    bool ok;
    if (v.interval_s < 1 || v.interval_s > 3600)
        ok = err_usage(e, "option \"--interval\" is 1 to 3600 seconds");
    else
        ok = isatty(STDOUT_FILENO) ? watch(&common, v.interval_s, e)
                                   : print_once(&common, e);
    cli_common_clear(&common);
    return ok;
}
