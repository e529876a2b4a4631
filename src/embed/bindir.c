// SPDX-License-Identifier: Apache-2.0

#include "embed/bindir.h"

#include <dirent.h>
#include <errno.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "core/proc.h"
#include "embed/place.h"

#define DEFAULT_ROOT   "/usr/lib/postgresql"
#define RUN_TIMEOUT_MS 10000
#define MAX_VERSIONS   32

const char *bindir_setting(void)
{
    const char *set = getenv("PGKIN_BINDIR");
    return set != NULL && set[0] != '\0' ? set : NULL;
}

static bool has_program(const char *dir, const char *name)
{
    char *path = place_path(dir, name);
    bool ok = access(path, X_OK) == 0;
    free(path);
    return ok;
}

static bool has_server(const char *dir)
{
    return has_program(dir, "postgres") && has_program(dir, "initdb");
}

static int compare_descending(const void *a, const void *b)
{
    int x = *(const int *)a;
    int y = *(const int *)b;
    return (x < y) - (x > y);
}

// The major versions below the root, newest first: as numbers, since 9 comes
// before 14.
static size_t list_versions(const char *root, int versions[MAX_VERSIONS])
{
    size_t n = 0;
    DIR *list = opendir(root);
    if (list == NULL)
        return 0;
    for (struct dirent *ent; n < MAX_VERSIONS && (ent = readdir(list)) != NULL;) {
        char *end;
        long v = strtol(ent->d_name, &end, 10);
        if (v > 0 && v < 1000 && *end == '\0')
            versions[n++] = (int)v;
    }
    closedir(list);
    qsort(versions, n, sizeof(versions[0]), compare_descending);
    return n;
}

// The first line that a program prints. False when it cannot be run.
static bool first_line(const char *program, const char *arg, struct buf *out)
{
    const char *const argv[] = {program, arg, NULL};
    struct proc_spec spec = {.argv = argv, .err = {.mode = PROC_DISCARD}, .cwd = "/"};
    struct proc_result r = {0};
    bool ok = proc_run(&spec, RUN_TIMEOUT_MS, &r, NULL) && r.status.kind == PROC_EXITED &&
              r.status.value == 0 && r.out.len > 0;
    if (ok)
        buf_add(out, r.out.data, strcspn(r.out.data, "\n"));
    proc_result_clear(&r);
    return ok;
}

// 15 for "postgres (PostgreSQL) 15.8 (Debian …)", also for "16beta1"; 0 when
// the program does not say.
static int ask_version(const char *dir)
{
    struct buf line = BUF_INIT;
    int major = 0;
    char *program = place_path(dir, "postgres");
    if (first_line(program, "--version", &line)) {
        const char *at = strstr(line.data, "(PostgreSQL) ");
        if (at != NULL)
            major = (int)strtol(at + strlen("(PostgreSQL) "), NULL, 10);
    }
    free(program);
    buf_clear(&line);
    return major;
}

// What a search has come across, for its error message.
struct findings {
    struct buf versions; // "15, 14"
};

static void note_version(struct findings *f, int major)
{
    char text[16];
    snprintf(text, sizeof(text), "%d", major);
    if (f->versions.len > 0 && strstr(f->versions.data, text) != NULL)
        return;
    buf_addf(&f->versions, "%s%s", f->versions.len > 0 ? ", " : "", text);
}

static bool suits(const struct bindir_search *s, const char *dir, int major,
                  struct findings *f)
{
    if (!has_server(dir))
        return false;
    if (s->major == 0)
        return true;
    if (major == 0)
        major = ask_version(dir);
    if (major == s->major)
        return true;
    if (major != 0)
        note_version(f, major);
    return false;
}

static bool search_root(const struct bindir_search *s, struct findings *f,
                        struct buf *out)
{
    int versions[MAX_VERSIONS];
    const char *root = s->root != NULL ? s->root : DEFAULT_ROOT;
    size_t n = list_versions(root, versions);
    bool found = false;
    for (size_t i = 0; !found && i < n; i++) {
        char *dir = xasprintf("%s/%d/bin", root, versions[i]);
        found = suits(s, dir, versions[i], f);
        if (found)
            buf_adds(out, dir);
        free(dir);
    }
    return found;
}

static bool search_pg_config(const struct bindir_search *s, struct findings *f,
                             struct buf *out)
{
    struct buf dir = BUF_INIT;
    const char *program = s->pg_config != NULL ? s->pg_config : "pg_config";
    bool found = first_line(program, "--bindir", &dir) && suits(s, dir.data, 0, f);
    if (found)
        buf_add(out, dir.data, dir.len);
    buf_clear(&dir);
    return found;
}

static bool report_missing(const struct bindir_search *s, struct findings *f,
                           struct err *e)
{
    if (f->versions.len > 0) {
        err_set(e, "the data was made by PostgreSQL %d, but the server found is %s",
                s->major, f->versions.data);
        return err_hint(e,
                        "install the package postgresql-%d, or start with an empty "
                        "directory: --data DIR",
                        s->major);
    }
    if (s->given != NULL) {
        err_set(e, "no PostgreSQL server (postgres and initdb) in %s", s->given);
        return err_hint(e, "check PGKIN_BINDIR");
    }
    if (s->major != 0) {
        err_set(e,
                "the data was made by PostgreSQL %d, and no PostgreSQL server was found",
                s->major);
        return err_hint(e, "install the package postgresql-%d", s->major);
    }
    err_set(e, "no PostgreSQL server was found on this machine");
    return err_hint(e, "install the package postgresql, or say with PGKIN_BINDIR where "
                       "postgres and initdb are");
}

bool bindir_find_server(const struct bindir_search *s, struct buf *out, struct err *e)
{
    struct findings f = {BUF_INIT};
    bool found;
    if (s->given != NULL) {
        found = suits(s, s->given, 0, &f);
        if (found)
            buf_adds(out, s->given);
    } else {
        found = search_root(s, &f, out) || search_pg_config(s, &f, out);
    }
    if (!found)
        report_missing(s, &f, e);
    buf_clear(&f.versions);
    return found;
}

void bindir_find_client(const char *name, struct buf *out)
{
    int versions[MAX_VERSIONS];
    const char *set = bindir_setting();
    if (set != NULL && has_program(set, name)) {
        buf_addf(out, "%s/%s", set, name);
        return;
    }
    size_t n = list_versions(DEFAULT_ROOT, versions);
    for (size_t i = 0; i < n; i++) {
        char *dir = xasprintf("%s/%d/bin", DEFAULT_ROOT, versions[i]);
        bool found = has_program(dir, name);
        if (found)
            buf_addf(out, "%s/%s", dir, name);
        free(dir);
        if (found)
            return;
    }
    buf_adds(out, name);
}

bool bindir_data_major(const char *data, int *major, struct err *e)
{
    char text[16] = "";
    char *path = place_path(data, "PG_VERSION");
    FILE *f = fopen(path, "re");
    bool ok = false;
    if (f == NULL) {
        if (errno != ENOENT)
            err_errno(e, errno, "cannot read %s", path);
    } else {
        *major = fgets(text, sizeof(text), f) != NULL ? (int)strtol(text, NULL, 10) : 0;
        ok = *major > 0 || err_set(e, "%s does not hold a version", path);
        fclose(f);
    }
    free(path);
    return ok;
}
