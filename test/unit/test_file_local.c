// SPDX-License-Identifier: Apache-2.0

#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>

#include <cmocka.h>

#include <fcntl.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

#include "core/buf.h"
#include "daemon/file_local.h"

#define ARRAY_SIZE(a) (sizeof(a) / sizeof(a)[0])

// root/store is the directory; root/outside is what must not be touched.
struct fixture {
    char root[64];
    char *store;
    int cwd;
};

static void make_file(const char *path)
{
    FILE *file = fopen(path, "w");
    assert_non_null(file);
    fclose(file);
}

static int set_up(void **state)
{
    struct fixture *f = xcalloc(1, sizeof *f);
    *state = f;
    snprintf(f->root, sizeof f->root, "/tmp/pgkin-files-XXXXXX");
    assert_non_null(mkdtemp(f->root));
    f->store = xasprintf("%s/store", f->root);
    f->cwd = open(".", O_DIRECTORY | O_CLOEXEC);
    assert_int_equal(chdir(f->root), 0);
    assert_int_equal(mkdir("store", 0700), 0);
    assert_int_equal(mkdir("store/a", 0700), 0);
    assert_int_equal(mkdir("store/a/b", 0700), 0);
    assert_int_equal(mkdir("outside", 0700), 0);
    make_file("outside/canary");
    make_file("store/a/b/file");
    make_file("store/top");
    assert_int_equal(symlink("../outside", "store/link"), 0);
    assert_int_equal(symlink("../outside/canary", "store/filelink"), 0);
    assert_int_equal(symlink("a", "store/inner"), 0);
    assert_int_equal(mkfifo("store/fifo", 0600), 0);
    return 0;
}

static int tear_down(void **state)
{
    struct fixture *f = *state;
    static const char *const names[] = {
        "store/fifo",     "store/inner", "store/filelink", "store/link", "store/a/b/file",
        "store/top",      "store/a/b",   "store/a",        "store/...",  "store/a\\b",
        "outside/canary", "outside",     "store"};
    for (size_t i = 0; i < ARRAY_SIZE(names); i++)
        remove(names[i]);
    assert_int_equal(fchdir(f->cwd), 0);
    close(f->cwd);
    int left = rmdir(f->root);
    free(f->store);
    free(f);
    return left;
}

static void expect(struct fixture *f, const char *path, enum file_end expected)
{
    struct err e = ERR_INIT;
    enum file_end end = file_local_delete(f->store, path, &e);
    if (end != expected)
        fail_msg("%s: %d instead of %d: %s", path, (int)end, (int)expected, e.msg);
    assert_int_equal(e.code != ERR_NONE, end == FILE_REFUSED || end == FILE_FAILED);
    assert_int_equal(access("outside/canary", F_OK), 0);
}

static void test_delete(void **state)
{
    struct fixture *f = *state;
    expect(f, "a/b/file", FILE_DELETED);
    assert_int_equal(access("store/a/b/file", F_OK), -1);
    expect(f, "a/b/file", FILE_MISSING);
    expect(f, "a/nowhere/file", FILE_MISSING);
    expect(f, "top", FILE_DELETED);
    // Names that only look bad.
    make_file("store/...");
    make_file("store/a\\b");
    expect(f, "...", FILE_DELETED);
    expect(f, "a\\b", FILE_DELETED);
    expect(f, "%2e%2e", FILE_MISSING);
}

static void test_escape(void **state)
{
    struct fixture *f = *state;
    char *absolute = xasprintf("%s/outside/canary", f->root);
    char *up = xasprintf("a/../../outside/canary");
    const char *const paths[] = {
        "",
        "/",
        absolute,
        absolute + 1,
        up,
        "..",
        ".",
        "./top",
        "../outside/canary",
        "a/../top",
        "a/b/../../../outside/canary",
        "nowhere/../../outside/canary",
        "nowhere/../top",
        "a//b/file",
        "a/b/",
        "/top",
        "link/canary",
        "inner/b/file",
        "filelink",
        "link",
        "a",
        "fifo",
        "top/file",
    };
    for (size_t i = 0; i < ARRAY_SIZE(paths); i++) {
        if (i != 3) // without its slash it is a path beneath, to nothing
            expect(f, paths[i], FILE_REFUSED);
    }
    expect(f, paths[3], FILE_MISSING);
    char *longest = xmalloc(6000);
    memset(longest, 'x', 5999);
    longest[5999] = '\0';
    expect(f, longest, FILE_REFUSED);
    longest[300] = '\0';
    expect(f, longest, FILE_REFUSED);
    assert_int_equal(access("store/a/b/file", F_OK), 0);
    assert_int_equal(access("store/top", F_OK), 0);
    free(longest);
    free(absolute);
    free(up);
}

// That the store is not there does not mean that all files are deleted.
static void test_no_store(void **state)
{
    struct fixture *f = *state;
    struct err e = ERR_INIT;
    char *missing = xasprintf("%s/nothing", f->root);
    assert_int_equal(file_local_delete(missing, "top", &e), FILE_FAILED);
    char *file = xasprintf("%s/top", f->store);
    assert_int_equal(file_local_delete(file, "top", &e), FILE_FAILED);
    free(missing);
    free(file);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test_setup_teardown(test_delete, set_up, tear_down),
        cmocka_unit_test_setup_teardown(test_escape, set_up, tear_down),
        cmocka_unit_test_setup_teardown(test_no_store, set_up, tear_down),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
