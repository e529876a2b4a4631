// SPDX-License-Identifier: Apache-2.0

#include "embed/child.h"

#include <ctype.h>
#include <fcntl.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#define TAIL_BYTES   8192
#define REASON_LINES 3

bool child_interrupted(const struct child_context *x)
{
    return x->interrupted != NULL && x->interrupted(x->interrupted_arg);
}

static bool starts_with(const char *s, const char *prefix)
{
    return strncmp(s, prefix, strlen(prefix)) == 0;
}

static bool is_unwanted(const char *var, bool other_user)
{
    static const char *const always[] = {
        "PG",      "LC_",     "LANG=",         "LANGUAGE=",
        "NOTIFY_", "LISTEN_", "DATABASE_URL=", "WATCHDOG_"};
    static const char *const personal[] = {
        "HOME=", "USER=", "LOGNAME=", "SHELL=", "MAIL=", "XDG_", "SUDO_", "PWD="};
    for (size_t i = 0; i < sizeof(always) / sizeof(always[0]); i++)
        if (starts_with(var, always[i]))
            return true;
    for (size_t i = 0; other_user && i < sizeof(personal) / sizeof(personal[0]); i++)
        if (starts_with(var, personal[i]))
            return true;
    return false;
}

char **child_environment(const struct owner *o)
{
    size_t n = 0;
    while (environ[n] != NULL)
        n++;
    char **env = xcalloc(n + 4, sizeof(*env));
    size_t out = 0;
    for (size_t i = 0; i < n; i++)
        if (!is_unwanted(environ[i], o->other))
            env[out++] = xstrdup(environ[i]);
    if (o->other) {
        env[out++] = xasprintf("HOME=%s", o->home);
        env[out++] = xasprintf("USER=%s", o->name);
        env[out++] = xasprintf("LOGNAME=%s", o->name);
    }
    return env;
}

void child_environment_free(char **env)
{
    for (char **p = env; p != NULL && *p != NULL; p++)
        free(*p);
    free(env);
}

void child_clean_own_environment(void)
{
    size_t i = 0;
    while (environ[i] != NULL) {
        if (!starts_with(environ[i], "PG") || starts_with(environ[i], "PGKIN")) {
            i++;
            continue;
        }
        char *name = xstrdup(environ[i]);
        name[strcspn(name, "=")] = '\0';
        // The next variable moves into this place.
        if (unsetenv(name) != 0)
            i++;
        free(name);
    }
}

// Skips what log_line_prefix writes ("2026-01-02 03:04:05.678 UTC [123] ").
static const char *skip_prefix(const char *line)
{
    if (!isdigit((unsigned char)line[0]))
        return line;
    const char *end = strstr(line, "] ");
    return end != NULL && end - line < 60 ? end + 2 : line;
}

static bool is_complaint(const char *line)
{
    static const char *const words[] = {"FATAL:",       "PANIC:", "ERROR:",
                                        "error:",       "HINT:",  "could not",
                                        "unrecognized", "annot ", "invalid"};
    // What every client is told that comes too early.
    if (strstr(line, "the database system is") != NULL)
        return false;
    for (size_t i = 0; i < sizeof(words) / sizeof(words[0]); i++)
        if (strstr(line, words[i]) != NULL)
            return true;
    return false;
}

static void add_line(struct buf *out, const char *line)
{
    const char *text = skip_prefix(line);
    for (const char *p = text; *p != '\0'; p++)
        if (!isspace((unsigned char)*p))
            buf_addc(out, *p);
        else if (p[1] != '\0' && !isspace((unsigned char)p[1]))
            buf_addc(out, ' ');
}

void child_add_reason(const char *text, bool or_last, struct buf *out)
{
    char *copy = xstrdup(text);
    const char *kept[REASON_LINES] = {NULL};
    const char *last = NULL;
    size_t n = 0;
    for (char *line = copy, *next; line != NULL; line = next) {
        next = strchr(line, '\n');
        if (next != NULL)
            *next++ = '\0';
        if (line[0] != '\0')
            last = line;
        if (is_complaint(line))
            kept[n++ % REASON_LINES] = line;
    }
    if (n == 0 && or_last && last != NULL)
        kept[n++] = last;
    for (size_t i = n > REASON_LINES ? n - REASON_LINES : 0, k = 0; i < n; i++, k++) {
        if (k > 0)
            buf_adds(out, "; ");
        add_line(out, kept[i % REASON_LINES]);
    }
    free(copy);
}

bool child_add_log_reason(const char *path, off_t from, struct buf *out)
{
    char text[TAIL_BYTES + 1];
    int fd = open(path, O_RDONLY | O_CLOEXEC | O_NOFOLLOW);
    if (fd < 0)
        return false;
    off_t size = lseek(fd, 0, SEEK_END);
    if (size - from > TAIL_BYTES)
        from = size - TAIL_BYTES;
    ssize_t n = pread(fd, text, TAIL_BYTES, from);
    close(fd);
    if (n <= 0)
        return false;
    text[n] = '\0';
    child_add_reason(text, false, out);
    return out->len > 0;
}

void child_hint_for(const char *reason, const char *dir, struct err *e)
{
    if (strstr(reason, "No space left") != NULL || strstr(reason, "Disk quota") != NULL ||
        strstr(reason, "free disk space") != NULL)
        err_hint(e, "make room on the file system of %s", dir);
    else if (strstr(reason, "Permission denied") != NULL)
        err_hint(e, "check who owns %s, or choose another directory with --data DIR",
                 dir);
}
