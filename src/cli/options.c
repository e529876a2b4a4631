// SPDX-License-Identifier: Apache-2.0

#include "cli/options.h"

#include <errno.h>
#include <getopt.h>
#include <limits.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "core/conf.h"
#include "core/suggest.h"

// What the common options say, before the file and the environment are added.
struct common_values {
    bool help;
    const char *database;
    const char *config;
    const char *log_level;
    const char *log_format;
};

#define COMMON(field) offsetof(struct common_values, field)

static const struct cli_option common_options[] = {
    {"database", 'd', CLI_STRING, COMMON(database), "URL",
     "the database (else DATABASE_URL, PG*, the private cluster)"},
    {"config", 0, CLI_STRING, COMMON(config), "FILE", "the configuration file"},
    {"log-level", 0, CLI_STRING, COMMON(log_level), "LEVEL",
     "debug, info, warn or error"},
    {"log-format", 0, CLI_STRING, COMMON(log_format), "FORMAT", "logfmt or json"},
    {"help", 'h', CLI_FLAG, COMMON(help), NULL, "show this text"},
    {0},
};

// The options of one command and the common ones, as getopt wants them. An
// option is known to getopt as LONG_BASE plus its index here.
#define LONG_BASE    256
#define OPTIONS_MAX  64
#define SHORT_LENGTH (2 * OPTIONS_MAX + 2)

struct option_set {
    const struct cli_option *options[OPTIONS_MAX];
    void *values[OPTIONS_MAX]; // the struct that the offset is into
    struct option longs[OPTIONS_MAX + 1];
    char shorts[SHORT_LENGTH];
    size_t count;
};

static void add_options(struct option_set *set, const struct cli_option *o, void *values)
{
    for (; o != NULL && o->name != NULL; o++) {
        size_t i = set->count++;
        if (i == OPTIONS_MAX)
            BUG("more than %d options", OPTIONS_MAX);
        set->options[i] = o;
        set->values[i] = values;
        set->longs[i] = (struct option){
            .name = o->name,
            .has_arg = o->type == CLI_FLAG ? no_argument : required_argument,
            .val = LONG_BASE + (int)i,
        };
        if (o->letter != 0) {
            size_t len = strlen(set->shorts);
            set->shorts[len] = o->letter;
            if (o->type != CLI_FLAG)
                set->shorts[len + 1] = ':';
        }
    }
}

static void make_set(struct option_set *set, const struct cli_command *cmd, void *values,
                     struct common_values *common)
{
    // A colon first: getopt tells a missing value from an unknown option.
    *set = (struct option_set){.shorts = ":"};
    add_options(set, cmd->options, values);
    add_options(set, common_options, common);
}

// By what getopt returned. -1 when it is none of them.
static int find_option(const struct option_set *set, int c)
{
    if (c >= LONG_BASE)
        return c - LONG_BASE;
    for (size_t i = 0; c != 0 && i < set->count; i++)
        if (set->options[i]->letter == c)
            return (int)i;
    return -1;
}

// ---------------------------------------------------------------- mistakes

static bool unknown_option(const struct option_set *set, const char *given, struct err *e)
{
    const char *names[OPTIONS_MAX];
    size_t len = strcspn(given, "=");
    char *name = xasprintf("%.*s", (int)len, given);
    for (size_t i = 0; i < set->count; i++)
        names[i] = set->options[i]->name;
    err_usage(e, "unknown option \"%s\"", name);
    const char *near =
        strncmp(name, "--", 2) == 0 ? suggest_nearest(name + 2, names, set->count) : NULL;
    if (near != NULL)
        err_hint(e, "did you mean \"--%s\"?", near);
    free(name);
    return false;
}

// getopt returned '?' or ':'. It leaves in optopt the letter, or the value of
// a long option that it knows, or 0.
static bool option_mistake(const struct option_set *set, int c, char **argv,
                           struct err *e)
{
    int i = find_option(set, optopt);
    if (i >= 0)
        return err_usage(e, "option \"--%s\" %s", set->options[i]->name,
                         c == ':' ? "needs a value" : "takes no value");
    if (optopt == 0)
        return unknown_option(set, argv[optind - 1], e);
    char letter[] = {'-', (char)optopt, '\0'};
    return unknown_option(set, letter, e);
}

// ---------------------------------------------------------------- values

static bool set_value(const struct option_set *set, int i, const char *text,
                      struct err *e)
{
    if (i < 0)
        BUG("getopt found an option that is not in the table");
    const struct cli_option *o = set->options[i];
    char *where = (char *)set->values[i] + o->offset;
    if (o->type == CLI_FLAG) {
        *(bool *)(void *)where = true;
        return true;
    }
    if (text[0] == '\0')
        return err_usage(e, "option \"--%s\" needs a value", o->name);
    if (o->type == CLI_STRING) {
        *(const char **)(void *)where = text;
        return true;
    }
    if (o->type == CLI_LIST) {
        struct cli_list *list = (struct cli_list *)(void *)where;
        if (list->count == CLI_LIST_MAX)
            return err_usage(e, "option \"--%s\" is given too often", o->name);
        list->items[list->count++] = text;
        return true;
    }
    char *end;
    errno = 0;
    long n = strtol(text, &end, 10);
    if (*end != '\0' || errno != 0 || n < 0 || n > INT_MAX)
        return err_usage(e, "option \"--%s\": \"%s\" is not a whole number", o->name,
                         text);
    *(int *)(void *)where = (int)n;
    return true;
}

// For a command that passes the rest on: where that rest begins.
static int find_rest(const struct option_set *set, int argc, char **argv)
{
    int i = 1;
    while (i < argc && argv[i][0] == '-' && argv[i][1] != '\0') {
        const char *a = argv[i];
        if (strcmp(a, "--") == 0)
            return i + 1;
        size_t len = strcspn(a, "=");
        int known = a[1] == '-' ? -1 : find_option(set, (unsigned char)a[1]);
        bool value_inside = a[1] == '-' ? a[len] == '=' : a[2] != '\0';
        for (size_t k = 0; a[1] == '-' && k < set->count; k++)
            if (strlen(set->options[k]->name) == len - 2 &&
                strncmp(set->options[k]->name, a + 2, len - 2) == 0)
                known = (int)k;
        if (known < 0)
            break;
        i += set->options[known]->type != CLI_FLAG && !value_inside ? 2 : 1;
    }
    return i < argc ? i : argc;
}

static bool read_argv(const struct cli_command *cmd, const struct option_set *set,
                      int argc, char **argv, int *first, struct err *e)
{
    int end = cmd->pass_rest ? find_rest(set, argc, argv) : argc;
    optind = 0; // glibc: start afresh
    opterr = 0;
    for (int c; (c = getopt_long(end, argv, set->shorts, set->longs, NULL)) != -1;) {
        if (c == '?' || c == ':')
            return option_mistake(set, c, argv, e);
        if (!set_value(set, find_option(set, c), optarg, e))
            return false;
    }
    *first = optind;
    return true;
}

// ---------------------------------------------------------------- settings

static bool load_settings(const struct common_values *v, struct conf *conf, struct err *e)
{
    const struct {
        const char *setting, *value, *flag;
    } flags[] = {
        {"database.url", v->database, "--database"},
        {"log.level", v->log_level, "--log-level"},
        {"log.format", v->log_format, "--log-format"},
    };
    if (!conf_load_default_file(conf, v->config, e) || !conf_load_env(conf, e))
        return false;
    for (size_t i = 0; i < sizeof flags / sizeof flags[0]; i++)
        if (flags[i].value != NULL &&
            !conf_set_flag(conf, flags[i].setting, flags[i].value, flags[i].flag, e))
            return false;
    return true;
}

static bool fill_common(const struct common_values *v, struct cli_common *common,
                        struct err *e)
{
    *common = (struct cli_common){.conf = xmalloc(sizeof *common->conf)};
    conf_init(common->conf, conf_settings, conf_setting_count);
    if (!load_settings(v, common->conf, e)) {
        cli_common_clear(common);
        return false;
    }
    common->database = conf_get_string(common->conf, "database.url");
    common->data_dir = conf_get_string(common->conf, "data.dir");
    if (!log_level_parse(conf_get_string(common->conf, "log.level"),
                         &common->log.level) ||
        !log_format_parse(conf_get_string(common->conf, "log.format"),
                          &common->log.format))
        BUG("settings and log disagree about levels or formats");
    return true;
}

void cli_common_clear(struct cli_common *common)
{
    if (common->conf != NULL)
        conf_clear(common->conf);
    free(common->conf);
    *common = (struct cli_common){0};
}

bool cli_parse(const struct cli_command *cmd, int argc, char **argv, void *values,
               struct cli_common *common, int *first, struct err *e)
{
    struct common_values v = {0};
    struct option_set set;
    int operand = argc;
    make_set(&set, cmd, values, &v);
    bool ok = read_argv(cmd, &set, argc, argv, &operand, e);
    if (ok && v.help) {
        struct buf help = BUF_INIT;
        cli_help_command(cmd, &help);
        fputs(buf_str(&help), stdout);
        buf_clear(&help);
        return false;
    }
    if (ok && cmd->max_operands >= 0 && !cmd->pass_rest &&
        argc - operand > cmd->max_operands)
        ok =
            err_usage(e, "unexpected argument \"%s\"", argv[operand + cmd->max_operands]);
    if (!ok && e->hint[0] == '\0')
        err_hint(e, "see pgkin %s --help", cmd->name);
    if (first != NULL)
        *first = operand;
    return ok && (common == NULL || fill_common(&v, common, e));
}

// ---------------------------------------------------------------- help

static void add_option_help(const struct cli_option *o, struct buf *out)
{
    size_t start = out->len;
    if (o->letter != 0)
        buf_addf(out, "  -%c, ", o->letter);
    else
        buf_adds(out, "      ");
    buf_addf(out, "--%s%s%s", o->name, o->arg != NULL ? " " : "",
             o->arg != NULL ? o->arg : "");
    do
        buf_addc(out, ' ');
    while (out->len - start < 28);
    buf_addf(out, "%s\n", o->help);
}

void cli_help_command(const struct cli_command *cmd, struct buf *out)
{
    bool args = cmd->args != NULL && cmd->args[0] != '\0';
    buf_addf(out, "usage: pgkin %s%s%s\n\n%s\n", cmd->name, args ? " " : "",
             args ? cmd->args : "", cmd->summary);
    buf_adds(out, "\noptions:\n");
    for (const struct cli_option *o = cmd->options; o != NULL && o->name != NULL; o++)
        add_option_help(o, out);
    for (const struct cli_option *o = common_options; o->name != NULL; o++)
        add_option_help(o, out);
    if (cmd->help != NULL && cmd->help[0] != '\0')
        buf_addf(out, "\n%s%s", cmd->help,
                 cmd->help[strlen(cmd->help) - 1] == '\n' ? "" : "\n");
}
