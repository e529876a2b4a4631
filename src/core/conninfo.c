// SPDX-License-Identifier: Apache-2.0

#include "core/conninfo.h"

#include <ctype.h>
#include <libpq-fe.h>
#include <stdlib.h>
#include <string.h>

static const char hidden[] = "***";

static const struct conninfo_param defaults[] = {
    {.key = "keepalives", .value = "1"},
    {.key = "keepalives_idle", .value = "10"},
    {.key = "keepalives_interval", .value = "3"},
    {.key = "keepalives_count", .value = "3"},
    {.key = "tcp_user_timeout", .value = "3500"},
};

// Where the part after the scheme of a URI begins; NULL when it is not a URI.
static const char *skip_scheme(const char *s)
{
    static const char *const schemes[] = {"postgresql://", "postgres://"};
    for (size_t i = 0; i < sizeof schemes / sizeof schemes[0]; i++) {
        size_t len = strlen(schemes[i]);
        if (strncmp(s, schemes[i], len) == 0)
            return s + len;
    }
    return NULL;
}

// ---------------------------------------------------------------- parsing

// Whether libpq's complaint about a string could quote a piece of a password.
// For a URI it quotes the whole (brackets), what it decodes (percent signs) or
// the host, which is wrong only when a password before it was misread.
static bool may_hold_secret(const char *conninfo)
{
    if (skip_scheme(conninfo) != NULL && strpbrk(conninfo, "@%[") != NULL)
        return true;
    return strstr(conninfo, "password") != NULL;
}

// The caller ends it with PQconninfoFree(). The reason of a failure is libpq's
// only where that cannot quote a password.
static PQconninfoOption *parse(const char *conninfo, struct err *e)
{
    char *reason = NULL;
    PQconninfoOption *options = PQconninfoParse(conninfo, &reason);
    if (options != NULL)
        return options;
    if (reason == NULL || may_hold_secret(conninfo)) {
        err_usage(e, "the connection string cannot be read");
        err_hint(
            e, "quote values that have spaces, and percent-encode special characters in "
               "a URI (@ is %%40, / is %%2F, : is %%3A)");
    } else {
        err_usage(e, "the connection string cannot be read: %s", reason);
    }
    PQfreemem(reason);
    return NULL;
}

static const PQconninfoOption *find_option(const PQconninfoOption *options,
                                           const char *key, size_t len)
{
    for (const PQconninfoOption *o = options; o->keyword != NULL; o++) {
        if (strlen(o->keyword) == len && memcmp(o->keyword, key, len) == 0)
            return o;
    }
    return NULL;
}

static const char *option_value(const PQconninfoOption *options, const char *key)
{
    const PQconninfoOption *o = find_option(options, key, strlen(key));
    if (o == NULL)
        return NULL;
    if (o->val != NULL)
        return o->val;
    const char *env = o->envvar != NULL ? getenv(o->envvar) : NULL;
    return env != NULL && env[0] != '\0' ? env : NULL;
}

static bool is_secret(const PQconninfoOption *options, const char *key, size_t len)
{
    const PQconninfoOption *o = find_option(options, key, len);
    return o != NULL && o->dispchar != NULL && o->dispchar[0] == '*';
}

// An '@' that does not begin a host (an abstract socket does) is the end of a
// password that holds one itself.
static bool host_is_sane(const char *host)
{
    for (const char *p = host; *p != '\0'; p++) {
        if (*p == '@' && p != host && p[-1] != ',')
            return false;
    }
    return true;
}

static bool port_is_sane(const char *port)
{
    return port[strspn(port, "0123456789, ")] == '\0';
}

bool conninfo_check(const char *conninfo, struct err *e)
{
    PQconninfoOption *options = parse(conninfo, e);
    if (options == NULL)
        return false;
    bool ok = true;
    const char *host = option_value(options, "host");
    const char *port = option_value(options, "port");
    if ((host != NULL && !host_is_sane(host)) || (port != NULL && !port_is_sane(port))) {
        err_usage(e, "the host or port in the connection string is not one");
        err_hint(e,
                 "percent-encode special characters in the password of a URI (@ is %%40, "
                 "/ is %%2F, : is %%3A)");
        ok = false;
    }
    PQconninfoFree(options);
    return ok;
}

char *conninfo_get(const char *conninfo, const char *key)
{
    PQconninfoOption *options = parse(conninfo, NULL);
    if (options == NULL)
        return NULL;
    const char *value = option_value(options, key);
    char *copy = value != NULL ? xstrdup(value) : NULL;
    PQconninfoFree(options);
    return copy;
}

// -------------------------------------------------------------- redaction

// "p%61ssword" is a way to write password: libpq decodes keywords too.
static bool uri_key_is_secret(const PQconninfoOption *options, const char *key,
                              size_t len)
{
    char plain[64];
    size_t n = 0;
    for (size_t i = 0; i < len && n < sizeof plain; i++) {
        char c = key[i];
        if (c == '%' && i + 2 < len) {
            const char hex[] = {key[i + 1], key[i + 2], '\0'};
            c = (char)strtol(hex, NULL, 16);
            i += 2;
        }
        plain[n++] = c;
    }
    return is_secret(options, plain, n);
}

static void redact_uri_params(const PQconninfoOption *options, const char *s,
                              struct buf *out)
{
    while (*s != '\0') {
        size_t len = strcspn(s, "&");
        const char *eq = memchr(s, '=', len);
        size_t key_len = eq != NULL ? (size_t)(eq - s) : len;
        if (uri_key_is_secret(options, s, key_len)) {
            buf_add(out, s, key_len);
            buf_addf(out, "=%s", hidden);
        } else {
            buf_add(out, s, len);
        }
        s += len;
        if (*s == '&')
            buf_addc(out, *s++);
    }
}

static const char *last_at(const char *from, const char *end)
{
    for (const char *p = end; p > from; p--) {
        if (p[-1] == '@')
            return p - 1;
    }
    return NULL;
}

// libpq ends the user's part at the first '@' before a '/'. A password that
// should have been escaped may hold either, so everything up to the last '@'
// counts as the user's part here.
static void redact_uri(const PQconninfoOption *options, const char *s, const char *rest,
                       struct buf *out)
{
    buf_add(out, s, (size_t)(rest - s));
    const char *at = rest + strcspn(rest, "@/");
    const char *query = strchr(*at == '@' ? at : rest, '?');
    const char *end = query != NULL ? query : rest + strlen(rest);
    const char *user_end = last_at(rest, end);
    if (user_end != NULL) {
        const char *colon = memchr(rest, ':', (size_t)(user_end - rest));
        buf_add(out, rest, (size_t)((colon != NULL ? colon : user_end) - rest));
        if (colon != NULL)
            buf_addf(out, ":%s", hidden);
        rest = user_end;
    }
    buf_add(out, rest, (size_t)(end - rest));
    if (query != NULL) {
        buf_addc(out, '?');
        redact_uri_params(options, query + 1, out);
    }
}

static const char *skip_space(const char *s)
{
    while (isspace((unsigned char)*s))
        s++;
    return s;
}

// After the value that begins here, which libpq has found well-formed.
static const char *skip_value(const char *s)
{
    bool quoted = *s == '\'';
    if (quoted)
        s++;
    while (*s != '\0' && (quoted ? *s != '\'' : !isspace((unsigned char)*s))) {
        if (*s == '\\' && s[1] != '\0')
            s++;
        s++;
    }
    return quoted && *s == '\'' ? s + 1 : s;
}

static void redact_pairs(const PQconninfoOption *options, const char *s, struct buf *out)
{
    while (*(s = skip_space(s)) != '\0') {
        size_t key_len = strcspn(s, "= \t\n\r\f\v");
        const char *value = skip_space(s + key_len);
        if (*value == '=')
            value = skip_space(value + 1);
        const char *end = skip_value(value);
        if (out->len > 0)
            buf_addc(out, ' ');
        buf_add(out, s, key_len);
        buf_addc(out, '=');
        if (is_secret(options, s, key_len))
            buf_adds(out, hidden);
        else
            buf_add(out, value, (size_t)(end - value));
        s = end;
    }
}

void conninfo_redact(const char *conninfo, struct buf *out)
{
    PQconninfoOption *options = parse(conninfo, NULL);
    const PQconninfoOption *port =
        options != NULL ? find_option(options, "port", 4) : NULL;
    if (port == NULL || (port->val != NULL && !port_is_sane(port->val))) {
        buf_adds(out, "(unreadable connection string)");
        PQconninfoFree(options);
        return;
    }
    const char *rest = skip_scheme(conninfo);
    struct buf shown = BUF_INIT;
    if (rest != NULL)
        redact_uri(options, conninfo, rest, &shown);
    else
        redact_pairs(options, conninfo, &shown);
    buf_add(out, buf_str(&shown), shown.len);
    buf_clear(&shown);
    PQconninfoFree(options);
}

// ---------------------------------------------------------------- writing

static void add_pair(struct buf *out, const char *key, const char *value)
{
    if (out->len > 0)
        buf_addc(out, ' ');
    buf_addf(out, "%s='", key);
    for (const char *p = value; *p != '\0'; p++) {
        if (*p == '\'' || *p == '\\')
            buf_addc(out, '\\');
        buf_addc(out, *p);
    }
    buf_addc(out, '\'');
}

static const struct conninfo_param *find_param(const struct conninfo_param *params,
                                               size_t n, const char *key)
{
    for (size_t i = 0; i < n; i++) {
        if (params[i].value != NULL && strcmp(params[i].key, key) == 0)
            return &params[i];
    }
    return NULL;
}

bool conninfo_with_params(const char *conninfo, const struct conninfo_param *params,
                          size_t n, struct buf *out, struct err *e)
{
    PQconninfoOption *options = parse(conninfo, e);
    if (options == NULL)
        return false;
    for (const PQconninfoOption *o = options; o->keyword != NULL; o++) {
        const struct conninfo_param *p = find_param(params, n, o->keyword);
        bool use_param = p != NULL && (p->force || option_value(options, p->key) == NULL);
        if (use_param)
            add_pair(out, p->key, p->value);
        else if (o->val != NULL)
            add_pair(out, o->keyword, o->val);
    }
    PQconninfoFree(options);
    return true;
}

bool conninfo_with_defaults(const char *conninfo, struct buf *out, struct err *e)
{
    return conninfo_with_params(conninfo, defaults, sizeof defaults / sizeof defaults[0],
                                out, e);
}

// ------------------------------------------------------------ lists of hosts

static size_t count_elements(const char *list)
{
    size_t n = 1;
    for (const char *p = list; *p != '\0'; p++)
        n += *p == ',';
    return n;
}

static size_t count_hosts(const PQconninfoOption *options)
{
    // As libpq does: hostaddr decides when both are there.
    const char *list = option_value(options, "hostaddr");
    if (list == NULL || list[0] == '\0')
        list = option_value(options, "host");
    return list != NULL ? count_elements(list) : 1;
}

size_t conninfo_count_hosts(const char *conninfo)
{
    PQconninfoOption *options = parse(conninfo, NULL);
    if (options == NULL)
        return 1;
    size_t n = count_hosts(options);
    PQconninfoFree(options);
    return n;
}

// "a,b,c" by 1 is "b,c,a". The caller frees it.
static char *rotate_list(const char *list, size_t by)
{
    const char *start = list;
    for (; by > 0; by--)
        start = strchr(start, ',') + 1;
    if (start == list)
        return xstrdup(list);
    return xasprintf("%s,%.*s", start, (int)(start - list - 1), list);
}

bool conninfo_rotate_hosts(const char *conninfo, size_t by, struct buf *out,
                           struct err *e)
{
    PQconninfoOption *options = parse(conninfo, e);
    if (options == NULL)
        return false;
    size_t hosts = count_hosts(options);
    struct conninfo_param params[] = {
        {.key = "host"}, {.key = "hostaddr"}, {.key = "port"}};
    size_t n = sizeof params / sizeof params[0];
    char *rotated[sizeof params / sizeof params[0]] = {0};
    for (size_t i = 0; i < n; i++) {
        const char *list = option_value(options, params[i].key);
        // One port for all hosts stays as it is.
        if (list == NULL || hosts < 2 || count_elements(list) != hosts)
            continue;
        rotated[i] = rotate_list(list, by % hosts);
        params[i].value = rotated[i];
        params[i].force = true;
    }
    PQconninfoFree(options);
    bool ok = conninfo_with_params(conninfo, params, n, out, e);
    for (size_t i = 0; i < n; i++)
        free(rotated[i]);
    return ok;
}
