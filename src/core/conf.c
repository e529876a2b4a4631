// SPDX-License-Identifier: Apache-2.0

#include "core/conf.h"

#include <errno.h>
#include <ini.h>
#include <limits.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <strings.h>
#include <sys/stat.h>

#include "core/suggest.h"

#define ARRAY_SIZE(a) (sizeof(a) / sizeof(a)[0])

struct unit {
    const char *suffix;
    int64_t factor;
};

static const struct unit duration_units[] = {
    {"ms", 1},
    {"s", 1000},
    {"m", 60 * 1000},
    {"h", 60 * 60 * 1000},
};

static const struct unit byte_units[] = {
    {"", 1}, {"B", 1}, {"kB", 1 << 10}, {"MB", 1 << 20}, {"GB", 1 << 30},
};

// A whole number; *rest is what follows it.
static bool parse_number(const char *s, int64_t *out, const char **rest)
{
    // strtoll would take leading blanks and a plus sign.
    if ((*s < '0' || *s > '9') && (*s != '-' || s[1] < '0' || s[1] > '9'))
        return false;
    char *end;
    errno = 0;
    long long n = strtoll(s, &end, 10);
    *out = n;
    *rest = end;
    return errno == 0;
}

static bool parse_int(const struct conf_setting *s, const char *text, int64_t *out)
{
    (void)s;
    const char *rest;
    return parse_number(text, out, &rest) && *rest == '\0';
}

static bool parse_units(const struct unit *units, size_t n, const char *text,
                        int64_t *out)
{
    int64_t number;
    const char *rest;
    if (!parse_number(text, &number, &rest))
        return false;
    while (*rest == ' ')
        rest++;
    for (size_t i = 0; i < n; i++) {
        if (strcasecmp(rest, units[i].suffix) == 0)
            return !__builtin_mul_overflow(number, units[i].factor, out);
    }
    return false;
}

static bool parse_duration(const struct conf_setting *s, const char *text, int64_t *out)
{
    (void)s;
    *out = 0;
    return strcmp(text, "0") == 0 ||
           parse_units(duration_units, ARRAY_SIZE(duration_units), text, out);
}

static bool parse_bytes(const struct conf_setting *s, const char *text, int64_t *out)
{
    (void)s;
    return parse_units(byte_units, ARRAY_SIZE(byte_units), text, out);
}

static bool parse_bool(const struct conf_setting *s, const char *text, int64_t *out)
{
    (void)s;
    static const char *const names[] = {"false", "true", "no", "yes",
                                        "off",   "on",   "0",  "1"};
    for (size_t i = 0; i < ARRAY_SIZE(names); i++) {
        if (strcasecmp(text, names[i]) == 0) {
            *out = i % 2 != 0;
            return true;
        }
    }
    return false;
}

static bool parse_enum(const struct conf_setting *s, const char *text, int64_t *out)
{
    for (size_t i = 0; s->choices[i] != NULL; i++) {
        if (strcmp(text, s->choices[i]) == 0) {
            *out = (int64_t)i;
            return true;
        }
    }
    return false;
}

static bool parse_string(const struct conf_setting *s, const char *text, int64_t *out)
{
    (void)s;
    *out = 0;
    return text[0] != '\0';
}

static const struct {
    bool (*parse)(const struct conf_setting *s, const char *text, int64_t *out);
    const char *expected;
    bool ranged;
} types[] = {
    [CONF_STRING] = {parse_string, "some text", false},
    [CONF_INT] = {parse_int, "a whole number", true},
    [CONF_BOOL] = {parse_bool, "true or false", false},
    [CONF_DURATION] = {parse_duration, "a duration such as 250ms, 30s, 5m or 2h", true},
    [CONF_BYTES] = {parse_bytes, "a size such as 512, 64kB, 16MB or 1GB", true},
    [CONF_ENUM] = {parse_enum, "one of", false},
};

static int64_t setting_max(const struct conf_setting *s)
{
    return s->min == 0 && s->max == 0 ? INT64_MAX : s->max;
}

static void add_choices(struct buf *out, const struct conf_setting *s)
{
    for (size_t i = 0; s->choices[i] != NULL; i++)
        buf_addf(out, "%s%s", i > 0 ? ", " : " ", s->choices[i]);
}

// A limit in the unit in which people write it.
static void add_number(struct buf *out, const struct conf_setting *s, int64_t n)
{
    const struct unit *units = NULL;
    size_t i = 0;
    if (s->type == CONF_DURATION) {
        units = duration_units;
        i = ARRAY_SIZE(duration_units);
    } else if (s->type == CONF_BYTES) {
        units = byte_units;
        i = ARRAY_SIZE(byte_units);
    }
    while (i > 0 && (n == 0 || n % units[i - 1].factor != 0))
        i--;
    if (i > 0)
        buf_addf(out, "%lld%s", (long long)(n / units[i - 1].factor),
                 units[i - 1].suffix);
    else
        buf_addf(out, "%lld", (long long)n);
}

static void add_origin(struct buf *out, enum conf_source source, const char *where)
{
    switch (source) {
    case CONF_FROM_DEFAULT: buf_adds(out, "default"); break;
    case CONF_FROM_ENV: buf_addf(out, "environment variable %s", where); break;
    case CONF_FROM_FILE:
    case CONF_FROM_FLAG: buf_adds(out, where); break;
    }
}

// "FILE:LINE: bad value "x" for log.level: expected …". The value of a secret
// is left out. Returns false.
static bool bad_value(const struct conf_setting *s, const char *text, bool out_of_range,
                      enum conf_source source, const char *where, struct err *e)
{
    struct buf b = BUF_INIT;
    add_origin(&b, source, where);
    buf_adds(&b, ": bad value ");
    if (!s->secret)
        buf_addf(&b, "\"%.80s\" ", text);
    buf_addf(&b, "for %s: expected ", s->name);
    if (out_of_range && setting_max(s) == INT64_MAX) {
        buf_adds(&b, "at least ");
        add_number(&b, s, s->min);
    } else if (out_of_range) {
        buf_adds(&b, "from ");
        add_number(&b, s, s->min);
        buf_adds(&b, " to ");
        add_number(&b, s, setting_max(s));
    } else {
        buf_adds(&b, types[s->type].expected);
    }
    if (s->type == CONF_ENUM)
        add_choices(&b, s);
    if (source == CONF_FROM_FLAG)
        err_usage(e, "%s", buf_str(&b));
    else
        err_set(e, "%s", buf_str(&b));
    buf_clear(&b);
    if (s->type != CONF_ENUM || s->secret)
        return false;
    size_t n = 0;
    while (s->choices[n] != NULL)
        n++;
    const char *near = suggest_nearest(text, s->choices, n);
    return near != NULL ? err_hint(e, "did you mean \"%s\"?", near) : false;
}

// Checks a value and takes it, unless one of higher precedence is there. It is
// checked also then: a mistake in the file is not hidden by the environment.
static bool set_value(struct conf *c, size_t i, const char *text, enum conf_source source,
                      const char *where, struct err *e)
{
    const struct conf_setting *s = &c->settings[i];
    struct conf_value *v = &c->values[i];
    int64_t number;
    if (!types[s->type].parse(s, text, &number))
        return bad_value(s, text, false, source, where, e);
    if (types[s->type].ranged && (number < s->min || number > setting_max(s)))
        return bad_value(s, text, true, source, where, e);
    if (source < v->source)
        return true;
    free(v->text);
    free(v->where);
    *v = (struct conf_value){
        .text = xstrdup(text),
        .number = number,
        .source = source,
        .where = where != NULL ? xstrdup(where) : NULL,
    };
    return true;
}

// SIZE_MAX when there is no such setting.
static size_t find_setting(const struct conf *c, const char *name)
{
    for (size_t i = 0; i < c->count; i++) {
        if (strcmp(c->settings[i].name, name) == 0)
            return i;
    }
    return SIZE_MAX;
}

void conf_init(struct conf *c, const struct conf_setting *settings, size_t count)
{
    *c = (struct conf){
        .settings = settings,
        .count = count,
        .values = xcalloc(count, sizeof *c->values),
    };
    for (size_t i = 0; i < count; i++) {
        struct err e = ERR_INIT;
        const char *text = settings[i].fallback;
        if (text != NULL && !set_value(c, i, text, CONF_FROM_DEFAULT, NULL, &e))
            BUG("%s", e.msg);
    }
}

void conf_clear(struct conf *c)
{
    for (size_t i = 0; i < c->count; i++) {
        free(c->values[i].text);
        free(c->values[i].where);
    }
    free(c->values);
    *c = (struct conf){0};
}

// What is known while a file is read: inih's handler is told neither the line
// number nor, when a line is longer than its small fixed buffer, the value.
struct file_reader {
    struct conf *conf;
    FILE *file;
    const char *path;
    int line;
    char *text; // the line as it is in the file
    size_t text_size;
    const char *long_value; // in `text`: what did not fit; else NULL
    unsigned *set_at;       // by setting: the line that has set it
    int error_line;         // 0: none
    int read_errno;
    struct err *e;
};

static char *skip_blanks(char *s)
{
    return s + strspn(s, " \t");
}

// Ends a value as inih does: before a comment, without blanks around it.
static char *trim_value(char *s)
{
    for (char *p = s; *p != '\0'; p++) {
        if (*p == ';' && p > s && (p[-1] == ' ' || p[-1] == '\t')) {
            *p = '\0';
            break;
        }
    }
    s = skip_blanks(s);
    size_t len = strlen(s);
    while (len > 0 && strchr(" \t\r\n", s[len - 1]) != NULL)
        len--;
    s[len] = '\0';
    return s;
}

// fgets() for inih. Blanks before a line go: inih would read an indented line
// as the continuation of the one above it.
static char *read_line(char *out, int size, void *arg)
{
    struct file_reader *r = arg;
    r->long_value = NULL;
    if (r->error_line != 0)
        return NULL;
    ssize_t len = getline(&r->text, &r->text_size, r->file);
    if (len < 0) {
        r->read_errno = ferror(r->file) ? errno : 0;
        return NULL;
    }
    r->line++;
    if (strlen(r->text) != (size_t)len) {
        err_set(r->e, "%s:%d: the line has a zero byte", r->path, r->line);
        r->error_line = r->line;
        return NULL;
    }
    char *text = skip_blanks(r->text);
    size_t take = strlen(text);
    size_t name_len = strcspn(text, "=:");
    if (take >= (size_t)size) {
        take = (size_t)size - 1;
        if (strchr("#;[", text[0]) == NULL && name_len < take && text[name_len] != '\0') {
            r->long_value = trim_value(text + name_len + 1);
            take = name_len + 1;
        }
    }
    memcpy(out, text, take);
    out[take] = '\0';
    return out;
}

static bool unknown_setting(const struct file_reader *r, const char *name)
{
    err_set(r->e, "%s:%d: unknown setting %s", r->path, r->line, name);
    const char **names = xcalloc(r->conf->count, sizeof *names);
    for (size_t i = 0; i < r->conf->count; i++)
        names[i] = r->conf->settings[i].name;
    const char *near = suggest_nearest(name, names, r->conf->count);
    free(names);
    return near != NULL ? err_hint(r->e, "did you mean %s?", near) : false;
}

static bool take_setting(struct file_reader *r, const char *name, const char *value)
{
    size_t i = find_setting(r->conf, name);
    if (i == SIZE_MAX)
        return unknown_setting(r, name);
    if (r->set_at[i] != 0)
        return err_set(r->e, "%s:%d: %s is set already in line %u", r->path, r->line,
                       name, r->set_at[i]);
    r->set_at[i] = (unsigned)r->line;
    char *where = xasprintf("%s:%d", r->path, r->line);
    bool ok = set_value(r->conf, i, value, CONF_FROM_FILE, where, r->e);
    free(where);
    return ok;
}

static int handle_line(void *arg, const char *section, const char *key, const char *value)
{
    struct file_reader *r = arg;
    if (r->error_line != 0)
        return 0;
    char *name = xasprintf("%s%s%s", section, section[0] != '\0' ? "." : "", key);
    bool ok = take_setting(r, name, r->long_value != NULL ? r->long_value : value);
    free(name);
    if (!ok)
        r->error_line = r->line;
    return ok;
}

static bool read_settings(struct file_reader *r)
{
    int bad_line = ini_parse_stream(read_line, r, handle_line, r);
    if (r->read_errno != 0)
        return err_errno(r->e, r->read_errno, "cannot read %s", r->path);
    if (bad_line < 0)
        return err_set(r->e, "%s: cannot be parsed", r->path);
    // inih goes on after a line it does not understand; the first mistake in
    // the file is the one to report.
    if (bad_line > 0 && (r->error_line == 0 || bad_line < r->error_line))
        return err_set(r->e, "%s:%d: expected key = value or [section]", r->path,
                       bad_line);
    return r->error_line == 0;
}

bool conf_load_file(struct conf *c, const char *path, struct err *e)
{
    FILE *file = fopen(path, "re");
    if (file == NULL)
        return err_errno(e, errno, "cannot read %s", path);
    struct file_reader r = {.conf = c, .file = file, .path = path, .e = e};
    r.set_at = xcalloc(c->count, sizeof *r.set_at);
    bool ok = read_settings(&r);
    free(r.set_at);
    free(r.text);
    fclose(file);
    return ok;
}

// A file that cannot even be looked at (somebody else's home directory) is not
// there; one that is there and cannot be read is an error.
static bool load_if_present(struct conf *c, const char *path, bool *present,
                            struct err *e)
{
    struct stat st;
    *present = stat(path, &st) == 0;
    return *present ? conf_load_file(c, path, e) : true;
}

bool conf_load_default_file(struct conf *c, const char *path, struct err *e)
{
    const char *from_env = getenv("PGKIN_CONFIG");
    if (path == NULL && from_env != NULL && from_env[0] != '\0')
        path = from_env;
    if (path != NULL)
        return conf_load_file(c, path, e);

    const char *xdg = getenv("XDG_CONFIG_HOME");
    const char *home = getenv("HOME");
    char *own = NULL;
    if (xdg != NULL && xdg[0] == '/')
        own = xasprintf("%s/pgkin/pgkin.conf", xdg);
    else if (home != NULL && home[0] == '/')
        own = xasprintf("%s/.config/pgkin/pgkin.conf", home);
    bool present = false;
    bool ok = own == NULL || load_if_present(c, own, &present, e);
    if (ok && !present)
        ok = load_if_present(c, "/etc/pgkin/pgkin.conf", &present, e);
    free(own);
    return ok;
}

bool conf_load_env(struct conf *c, struct err *e)
{
    for (size_t i = 0; i < c->count; i++) {
        const char *name = c->settings[i].env;
        const char *value = name != NULL ? getenv(name) : NULL;
        if (value == NULL || value[0] == '\0')
            continue;
        if (!set_value(c, i, value, CONF_FROM_ENV, name, e))
            return false;
    }
    return true;
}

bool conf_set_flag(struct conf *c, const char *name, const char *value, const char *flag,
                   struct err *e)
{
    size_t i = find_setting(c, name);
    if (i == SIZE_MAX)
        BUG("no setting %s", name);
    return set_value(c, i, value, CONF_FROM_FLAG, flag, e);
}

static const struct conf_value *get(const struct conf *c, const char *name,
                                    unsigned type_mask)
{
    size_t i = find_setting(c, name);
    if (i == SIZE_MAX)
        BUG("no setting %s", name);
    if ((type_mask >> c->settings[i].type & 1) == 0)
        BUG("setting %s is not of that type", name);
    return &c->values[i];
}

static int64_t get_number(const struct conf *c, const char *name, unsigned type_mask)
{
    const struct conf_value *v = get(c, name, type_mask);
    if (v->text == NULL)
        BUG("setting %s is not set", name);
    return v->number;
}

const char *conf_get_string(const struct conf *c, const char *name)
{
    return get(c, name, 1u << CONF_STRING | 1u << CONF_ENUM)->text;
}

int64_t conf_get_int(const struct conf *c, const char *name)
{
    return get_number(c, name, 1u << CONF_INT | 1u << CONF_DURATION | 1u << CONF_BYTES);
}

bool conf_get_bool(const struct conf *c, const char *name)
{
    return get_number(c, name, 1u << CONF_BOOL) != 0;
}

size_t conf_get_enum(const struct conf *c, const char *name)
{
    return (size_t)get_number(c, name, 1u << CONF_ENUM);
}

bool conf_is_set(const struct conf *c, const char *name)
{
    return get(c, name, ~0u)->text != NULL;
}

enum conf_source conf_get_source(const struct conf *c, const char *name)
{
    return get(c, name, ~0u)->source;
}

// The environment may hold anything; a value is shown as one line.
static void add_printable(struct buf *out, const char *s)
{
    for (; *s != '\0'; s++)
        buf_addc(out, (unsigned char)*s < ' ' || *s == 0x7f ? '?' : *s);
}

void conf_describe(const struct conf *c, struct buf *out)
{
    size_t section_len = 0;
    const char *section = "";
    for (size_t i = 0; i < c->count; i++) {
        const struct conf_setting *s = &c->settings[i];
        const struct conf_value *v = &c->values[i];
        size_t len = strcspn(s->name, ".");
        if (len != section_len || memcmp(s->name, section, len) != 0) {
            buf_addf(out, "%s[%.*s]\n", i > 0 ? "\n" : "", (int)len, s->name);
            section = s->name;
            section_len = len;
        }
        buf_addf(out, "# %s\n", s->help);
        const char *key = s->name + len + (s->name[len] == '.');
        if (v->text == NULL) {
            buf_addf(out, "# %s is not set\n", key);
            continue;
        }
        buf_addf(out, "%s = ", key);
        if (s->secret)
            buf_adds(out, "********");
        else
            add_printable(out, v->text);
        buf_adds(out, "  ; ");
        add_origin(out, v->source, v->where);
        buf_addc(out, '\n');
    }
}
