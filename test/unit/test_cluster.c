// SPDX-License-Identifier: Apache-2.0
//
// The parts of the private cluster that can be looked at without a server:
// names and strings, the search for binaries, the directory and its lock,
// leftover processes. The whole is tested in test/system/cluster.bats.

#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include <cmocka.h>
#include <errno.h>
#include <fcntl.h>
#include <libpq-fe.h>
#include <signal.h>
#include <sys/socket.h>
#include <sys/stat.h>
#include <sys/un.h>
#include <sys/wait.h>
#include <unistd.h>

#include "core/sdnotify.h"
#include "embed/bindir.h"
#include "embed/child.h"
#include "embed/cluster.h"
#include "embed/dir.h"
#include "embed/leftover.h"
#include "embed/owner.h"
#include "embed/place.h"

// A directory for each test, in *state.
static int setup(void **state)
{
    char *dir = xstrdup("/tmp/pgkin-unit-XXXXXX");
    *state = mkdtemp(dir);
    return *state != NULL && chmod(dir, 0755) == 0 ? 0 : -1;
}

static int teardown(void **state)
{
    bool ok = dir_remove_tree(*state, NULL);
    free(*state);
    return ok ? 0 : -1;
}

static char *make_file(const char *dir, const char *name, const char *text, mode_t mode)
{
    char *path = place_path(dir, name);
    for (char *p = path + strlen(dir) + 1; *p != '\0'; p++) {
        if (*p != '/')
            continue;
        *p = '\0';
        assert_true(mkdir(path, 0755) == 0 || errno == EEXIST);
        *p = '/';
    }
    FILE *f = fopen(path, "w");
    assert_non_null(f);
    fputs(text, f);
    assert_int_equal(fclose(f), 0);
    assert_int_equal(chmod(path, mode), 0);
    return path;
}

static void put_file(const char *dir, const char *name, const char *text, mode_t mode)
{
    free(make_file(dir, name, text, mode));
}

static bool exists(const char *dir, const char *name)
{
    struct stat st;
    char *path = place_path(dir, name);
    bool yes = lstat(path, &st) == 0;
    free(path);
    return yes;
}

// ------------------------------------------------------------------- place

static void assert_default_dir(const char *expected)
{
    struct buf b = BUF_INIT;
    assert_true(cluster_default_dir(&b, NULL));
    assert_string_equal(buf_str(&b), expected);
    buf_clear(&b);
}

static void test_default_dir(void **state)
{
    (void)state;
    setenv("HOME", "/home/x", 1);
    setenv("XDG_DATA_HOME", "/xdg", 1);
    setenv("PGKIN_DATA", "/somewhere", 1);
    assert_default_dir("/somewhere");
    setenv("PGKIN_DATA", "", 1);
    if (geteuid() == 0) {
        assert_default_dir("/var/lib/pgkin");
        assert_int_equal(seteuid(65534), 0);
    }
    assert_default_dir("/xdg/pgkin");
    setenv("XDG_DATA_HOME", "relative", 1);
    assert_default_dir("/home/x/.local/share/pgkin");
    if (getuid() == 0)
        assert_int_equal(seteuid(0), 0);
}

static void test_no_cluster(void **state)
{
    struct err e = ERR_INIT;
    struct buf b = BUF_INIT;
    assert_false(cluster_conninfo(*state, &b, &e));
    assert_non_null(strstr(e.msg, "there is no private cluster in"));
    assert_string_equal(e.hint, "start it with: pgkin start");
    assert_int_equal(b.len, 0);
}

static const char *option(PQconninfoOption *opts, const char *key)
{
    for (; opts->keyword != NULL; opts++)
        if (strcmp(opts->keyword, key) == 0)
            return opts->val;
    return NULL;
}

// Both ways to say it mean the same to libpq, whatever is in the name.
static void test_conninfo_and_url_are_quoted(void **state)
{
    char *dir = xasprintf("%s/a b'c\\d%%e?f&g=\"h", (char *)*state);
    struct buf info = BUF_INIT;
    struct buf url = BUF_INIT;
    assert_int_equal(mkdir(dir, 0700), 0);
    put_file(dir, "data/PG_VERSION", "15\n", 0600);

    assert_true(cluster_conninfo(dir, &info, NULL));
    assert_true(cluster_url(dir, &url, NULL));
    const char *both[] = {info.data, url.data};
    for (size_t i = 0; i < 2; i++) {
        PQconninfoOption *opts = PQconninfoParse(both[i], NULL);
        assert_non_null(opts);
        assert_string_equal(option(opts, "host"), dir);
        assert_string_equal(option(opts, "user"), "pgkin");
        assert_string_equal(option(opts, "dbname"), "pgkin");
        PQconninfoFree(opts);
    }
    buf_clear(&info);
    buf_clear(&url);
    free(dir);
}

static void test_socket_fits(void **state)
{
    (void)state;
    // 107 bytes of path: 93, a slash, .s.PGSQL.5432
    char dir[128];
    memset(dir, 'x', sizeof(dir));
    dir[0] = '/';
    dir[93] = '\0';
    assert_true(place_socket_fits(dir));
    dir[93] = 'x';
    dir[94] = '\0';
    assert_false(place_socket_fits(dir));
    assert_false(place_socket_fits("/a,b"));
}

static void test_short_socket_dir(void **state)
{
    char *dir = xasprintf("%s/a,b", (char *)*state);
    struct buf made = BUF_INIT;
    struct buf again = BUF_INIT;
    struct buf found = BUF_INIT;
    struct stat st;
    struct err e = ERR_INIT;

    assert_int_equal(mkdir(dir, 0700), 0);
    assert_false(place_find_socket_dir(dir, &found, &e));
    assert_string_equal(e.hint, "start it with: pgkin start");
    assert_true(place_make_socket_dir(dir, &made, NULL));
    assert_int_equal(lstat(made.data, &st), 0);
    assert_int_equal(st.st_mode & 07777, 0700);
    assert_true(place_make_socket_dir(dir, &again, NULL));
    assert_string_equal(again.data, made.data);
    assert_true(place_find_socket_dir(dir, &found, NULL));
    assert_string_equal(found.data, made.data);

    // Not ours alone any more: refused by clients, replaced by the server.
    assert_int_equal(chmod(made.data, 0770), 0);
    assert_false(place_find_socket_dir(dir, &found, &e));
    buf_reset(&again);
    assert_true(place_make_socket_dir(dir, &again, NULL));
    assert_string_not_equal(again.data, made.data);
    assert_int_equal(rmdir(made.data), 0);

    // A link to a private directory is still a link.
    assert_int_equal(rmdir(again.data), 0);
    assert_int_equal(symlink(dir, again.data), 0);
    assert_false(place_find_socket_dir(dir, &found, &e));
    assert_int_equal(unlink(again.data), 0);
    buf_clear(&made);
    buf_clear(&again);
    buf_clear(&found);
    free(dir);
}

// ------------------------------------------------------------------ bindir

static void put_version(const char *root, const char *major, bool server)
{
    char *postgres = xasprintf("%s/bin/postgres", major);
    char *initdb = xasprintf("%s/bin/initdb", major);
    char *script = xasprintf("#!/bin/sh\necho 'postgres (PostgreSQL) %s.3 (x)'\n", major);
    put_file(root, postgres, script, 0755);
    if (server)
        put_file(root, initdb, script, 0755);
    free(postgres);
    free(initdb);
    free(script);
}

static void assert_found(const struct bindir_search *s, const char *root,
                         const char *expected)
{
    struct buf b = BUF_INIT;
    char *path = place_path(root, expected);
    assert_true(bindir_find_server(s, &b, NULL));
    assert_string_equal(b.data, path);
    free(path);
    buf_clear(&b);
}

static void test_bindir_prefers_numerically_newest(void **state)
{
    struct bindir_search s = {.root = *state, .pg_config = "/nonexistent"};
    put_version(*state, "9", true);
    put_version(*state, "14", true);
    put_version(*state, "16", false); // only the client is installed
    put_file(*state, "README/bin/postgres", "", 0755);
    assert_found(&s, *state, "14/bin");
    s.major = 9;
    assert_found(&s, *state, "9/bin");
}

static void test_bindir_of_pg_config(void **state)
{
    char *script = xasprintf("#!/bin/sh\necho '%s/15/bin'\n", (char *)*state);
    char *pg_config = make_file(*state, "pg_config", script, 0755);
    struct bindir_search s = {.root = "/nonexistent", .pg_config = pg_config};
    put_version(*state, "15", true);
    assert_found(&s, *state, "15/bin");
    s.major = 15;
    assert_found(&s, *state, "15/bin");
    free(script);
    free(pg_config);
}

static void assert_not_found(const struct bindir_search *s, const char *msg,
                             const char *hint)
{
    struct buf b = BUF_INIT;
    struct err e = ERR_INIT;
    assert_false(bindir_find_server(s, &b, &e));
    assert_int_equal(b.len, 0);
    assert_non_null(strstr(e.msg, msg));
    assert_non_null(strstr(e.hint, hint));
}

static void test_bindir_missing(void **state)
{
    struct bindir_search s = {.root = *state, .pg_config = "/nonexistent"};
    assert_not_found(&s, "no PostgreSQL server was found",
                     "install the package postgresql");
    put_version(*state, "14", true);
    put_version(*state, "15", true);
    s.major = 13;
    assert_not_found(&s, "made by PostgreSQL 13, but the server found is 15, 14",
                     "postgresql-13");
    char *given = place_path(*state, "15/bin");
    s.given = given;
    assert_not_found(&s, "made by PostgreSQL 13, but the server found is 15",
                     "postgresql-13");
    s.given = "/nonexistent";
    assert_not_found(&s, "in /nonexistent", "PGKIN_BINDIR");
    free(given);
}

static void test_data_major(void **state)
{
    int major = -1;
    struct err e = ERR_INIT;
    assert_false(bindir_data_major(*state, &major, &e));
    assert_int_equal(e.code, ERR_NONE);
    put_file(*state, "PG_VERSION", "15\n", 0600);
    assert_true(bindir_data_major(*state, &major, &e));
    assert_int_equal(major, 15);
    put_file(*state, "PG_VERSION", "rubbish", 0600);
    assert_false(bindir_data_major(*state, &major, &e));
    assert_int_equal(e.code, ERR_FAILED);
}

// --------------------------------------------------------------------- dir

static void resolve_owner(struct owner *o, const char *dir)
{
    unsetenv("PGKIN_SERVER_USER");
    if (!owner_resolve(o, NULL, dir, NULL))
        skip(); // root, and no user to run a server as
}

static void test_dir_is_made_and_unmade(void **state)
{
    struct owner o;
    struct dir d;
    struct stat st;
    char *path = xasprintf("%s/a/b/c", (char *)*state);
    resolve_owner(&o, path);

    assert_true(dir_take(&d, path, &o, NULL));
    assert_string_equal(d.path, path);
    assert_int_equal(stat(path, &st), 0);
    assert_int_equal(st.st_mode & 07777, 0700);
    assert_int_equal(st.st_uid, o.uid);
    assert_true(exists(path, "pgkin.pid"));
    dir_release(&d, false);
    assert_false(exists(*state, "a"));

    assert_true(dir_take(&d, path, &o, NULL));
    dir_release(&d, true);
    assert_true(exists(*state, "a/b/c/pgkin.pid"));
    owner_clear(&o);
    free(path);
}

static void test_dir_is_locked(void **state)
{
    struct owner o;
    struct dir a;
    struct dir b;
    struct err e = ERR_INIT;
    char *path = place_path(*state, "c");
    char *pid = xasprintf("(pid %ld)", (long)getpid());
    resolve_owner(&o, path);

    assert_true(dir_take(&a, path, &o, NULL));
    assert_false(dir_take(&b, path, &o, &e));
    assert_non_null(strstr(e.msg, "another pgkin start is using"));
    assert_non_null(strstr(e.msg, pid));
    dir_release(&a, true);
    assert_true(dir_take(&b, path, &o, NULL));
    dir_release(&b, false);
    owner_clear(&o);
    free(pid);
    free(path);
}

static void test_dir_of_somebody_else_stays(void **state)
{
    struct owner o;
    struct dir d;
    struct err e = ERR_INIT;
    char *path = place_path(*state, "c");
    assert_int_equal(mkdir(path, 0755), 0);
    put_file(path, "thesis", "text", 0600);
    put_file(path, "pgkin.pid", "", 0600);
    resolve_owner(&o, path);
    assert_false(dir_take(&d, path, &o, &e));
    assert_non_null(strstr(e.msg, "neither empty nor a private cluster"));
    assert_true(exists(path, "thesis"));
    assert_true(exists(path, "pgkin.pid"));
    owner_clear(&o);
    free(path);
}

// The owner of the directory must not make us write through a link.
static void test_dir_lock_follows_no_link(void **state)
{
    struct owner o;
    struct dir d;
    char *path = place_path(*state, "c");
    char *victim = make_file(*state, "victim", "precious", 0666);
    char *link = place_path(path, "pgkin.pid");
    resolve_owner(&o, path);
    assert_int_equal(mkdir(path, 0700), 0);
    assert_int_equal(symlink(victim, link), 0);
    assert_int_equal(lchown(path, o.uid, o.gid), 0);
    assert_false(dir_take(&d, path, &o, NULL));
    struct stat st;
    assert_int_equal(stat(victim, &st), 0);
    assert_int_equal(st.st_size, strlen("precious"));
    owner_clear(&o);
    free(link);
    free(victim);
    free(path);
}

static void test_owner_switches_and_returns(void **state)
{
    struct owner o;
    resolve_owner(&o, *state);
    assert_true(owner_enter(&o, NULL));
    assert_int_equal(geteuid(), o.uid);
    assert_int_equal(getegid(), o.other ? o.gid : getgid());
    owner_leave(&o);
    assert_int_equal(geteuid(), getuid());
    assert_int_equal(getegid(), getgid());
    owner_clear(&o);
    if (geteuid() == 0) {
        struct err e = ERR_INIT;
        assert_false(owner_resolve(&o, "root", *state, &e));
        assert_false(owner_resolve(&o, "no-such-user", *state, &e));
        assert_non_null(strstr(e.hint, "PGKIN_SERVER_USER"));
    }
}

// ---------------------------------------------------------------- leftover

// A process whose program is called `name`, in the directory `cwd`; with
// `ignore`, deaf to SIGQUIT and SIGINT.
static pid_t spawn_named(const char *bin, const char *name, const char *cwd, bool ignore)
{
    char *cmd = xasprintf("[ -e '%1$s/%2$s' ] || cp /bin/sleep '%1$s/%2$s'", bin, name);
    char *path = place_path(bin, name);
    assert_int_equal(system(cmd), 0);
    int sync[2];
    assert_int_equal(pipe2(sync, O_CLOEXEC), 0);
    pid_t pid = fork();
    assert_true(pid >= 0);
    if (pid == 0) {
        if (ignore) {
            signal(SIGQUIT, SIG_IGN);
            signal(SIGINT, SIG_IGN);
        }
        if (chdir(cwd) == 0)
            execl(path, path, "1000", (char *)NULL);
        _exit(127);
    }
    // The write end closes with the exec.
    char c;
    close(sync[1]);
    assert_int_equal(read(sync[0], &c, 1), 0);
    close(sync[0]);
    free(path);
    free(cmd);
    return pid;
}

static bool is_running(pid_t pid)
{
    return waitpid(pid, NULL, WNOHANG) == 0;
}

// A process that is over with can be waited for only a moment later.
static void assert_ends(pid_t pid)
{
    for (int i = 0; is_running(pid); i++) {
        assert_true(i < 5000);
        usleep(1000);
    }
}

static void test_leftover_processes(void **state)
{
    char *data = place_path(*state, "data");
    assert_int_equal(mkdir(data, 0700), 0);
    pid_t orphan = spawn_named(*state, "postgres", data, false);
    pid_t deaf = spawn_named(*state, "postgres", data, true);
    pid_t shell = spawn_named(*state, "bash", data, false);
    pid_t elsewhere = spawn_named(*state, "postgres", "/", false);
    pid_t found[8];
    const struct leftover_wait wait = {.fast_ms = 50, .quit_ms = 50, .kill_ms = 10000};

    assert_int_equal(leftover_find(data, found, 8), 2);
    char *text = xasprintf("%ld\n", (long)elsewhere);
    put_file(data, "postmaster.pid", text, 0600);
    free(text);
    assert_int_equal(leftover_postmaster(data), 0);
    text = xasprintf("%ld\n", (long)deaf);
    put_file(data, "postmaster.pid", text, 0600);
    free(text);
    assert_int_equal(leftover_postmaster(data), deaf);

    assert_true(leftover_end(data, &wait, NULL, NULL));
    assert_ends(orphan);
    assert_ends(deaf);
    assert_true(is_running(shell));
    assert_true(is_running(elsewhere));
    assert_int_equal(leftover_find(data, found, 8), 0);

    assert_true(leftover_remove_files(data, *state, NULL, NULL));
    assert_false(exists(data, "postmaster.pid"));
    kill(shell, SIGKILL);
    kill(elsewhere, SIGKILL);
    waitpid(shell, NULL, 0);
    waitpid(elsewhere, NULL, 0);
    free(data);
}

// ------------------------------------------------------------------- child

static void assert_reason(const char *text, bool or_last, const char *expected)
{
    struct buf b = BUF_INIT;
    child_add_reason(text, or_last, &b);
    assert_string_equal(buf_str(&b), expected);
    buf_clear(&b);
}

static void test_reason(void **state)
{
    (void)state;
    assert_reason("", true, "");
    assert_reason("one\ntwo\n\n", true, "two");
    assert_reason("one\ntwo\n", false, "");
    assert_reason("ok\n2026-01-02 03:04:05.678 UTC [12] FATAL:  no\tmemory \nbye\n", true,
                  "FATAL: no memory");
    assert_reason("error: 1\nerror: 2\nx\nerror: 3\nerror: 4", true,
                  "error: 2; error: 3; error: 4");
    assert_reason("FATAL:  the database system is starting up\n", false, "");
}

static bool has_variable(char **env, const char *name)
{
    size_t len = strlen(name);
    for (; *env != NULL; env++)
        if (strncmp(*env, name, len) == 0 && (*env)[len] == '=')
            return true;
    return false;
}

static void test_environment(void **state)
{
    (void)state;
    static const char *const gone[] = {"PGDATA", "PGKIN_SMTP_URL", "LC_ALL",
                                       "LANG",   "NOTIFY_SOCKET",  "DATABASE_URL"};
    const struct owner self = {0};
    for (size_t i = 0; i < sizeof(gone) / sizeof(gone[0]); i++)
        setenv(gone[i], "x", 1);
    setenv("KEPT", "x", 1);
    char **env = child_environment(&self);
    for (size_t i = 0; i < sizeof(gone) / sizeof(gone[0]); i++)
        assert_false(has_variable(env, gone[i]));
    assert_true(has_variable(env, "KEPT"));
    assert_true(has_variable(env, "PATH"));
    child_environment_free(env);

    setenv("PGHOST", "x", 1);
    child_clean_own_environment();
    assert_null(getenv("PGDATA"));
    assert_null(getenv("PGHOST"));
    assert_non_null(getenv("PGKIN_SMTP_URL"));
    for (size_t i = 0; i < sizeof(gone) / sizeof(gone[0]); i++)
        unsetenv(gone[i]);
}

static void test_sdnotify(void **state)
{
    char text[64];
    struct sockaddr_un addr = {.sun_family = AF_UNIX};
    unsetenv("NOTIFY_SOCKET");
    assert_false(sdnotify_send("READY=1"));
    snprintf(addr.sun_path, sizeof(addr.sun_path), "%s/notify", (char *)*state);
    int fd = socket(AF_UNIX, SOCK_DGRAM | SOCK_CLOEXEC, 0);
    assert_int_equal(bind(fd, (struct sockaddr *)&addr, sizeof(addr)), 0);
    setenv("NOTIFY_SOCKET", addr.sun_path, 1);
    assert_true(sdnotify_send("READY=1"));
    assert_int_equal(recv(fd, text, sizeof(text), MSG_DONTWAIT), 7);
    assert_memory_equal(text, "READY=1", 7);
    unsetenv("NOTIFY_SOCKET");
    close(fd);
}

#define TEST(fn) cmocka_unit_test_setup_teardown(fn, setup, teardown)

int main(void)
{
    const struct CMUnitTest tests[] = {
        TEST(test_default_dir),
        TEST(test_no_cluster),
        TEST(test_conninfo_and_url_are_quoted),
        TEST(test_socket_fits),
        TEST(test_short_socket_dir),
        TEST(test_bindir_prefers_numerically_newest),
        TEST(test_bindir_of_pg_config),
        TEST(test_bindir_missing),
        TEST(test_data_major),
        TEST(test_dir_is_made_and_unmade),
        TEST(test_dir_is_locked),
        TEST(test_dir_of_somebody_else_stays),
        TEST(test_dir_lock_follows_no_link),
        TEST(test_owner_switches_and_returns),
        TEST(test_leftover_processes),
        TEST(test_reason),
        TEST(test_environment),
        TEST(test_sdnotify),
    };
    umask(022);
    return cmocka_run_group_tests(tests, NULL, NULL);
}
