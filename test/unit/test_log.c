// SPDX-License-Identifier: Apache-2.0

#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>

#include <cmocka.h>

#include <errno.h>
#include <fcntl.h>
#include <jansson.h>
#include <math.h>
#include <poll.h>
#include <pthread.h>
#include <regex.h>
#include <signal.h>
#include <stdlib.h>
#include <string.h>
#include <sys/socket.h>
#include <sys/time.h>
#include <time.h>
#include <unistd.h>

#include "core/buf.h"
#include "core/log.h"

static void collect(void *arg, enum log_level level, const char *line, size_t len)
{
    (void)level;
    struct buf *b = arg;
    assert_int_equal(strlen(line), len); // terminated, no zero byte inside
    buf_reset(b);
    buf_add(b, line, len);
}

static struct log logger(enum log_format format, struct buf *b)
{
    return (struct log){
        .level = LOG_DEBUG, .format = format, .sink = collect, .sink_arg = b};
}

// The line without its first field, the time.
static const char *after_time(const struct buf *b)
{
    const char *space = strchr(buf_str(b), ' ');
    assert_non_null(space);
    return space + 1;
}

static json_t *parse(const struct buf *b)
{
    json_error_t why;
    json_t *j = json_loadb(b->data, b->len, JSON_REJECT_DUPLICATES, &why);
    if (j == NULL)
        fail_msg("%s: %s", why.text, b->data);
    return j;
}

static const char *text_of(json_t *j, const char *key)
{
    return json_string_value(json_object_get(j, key));
}

static void test_logfmt(void **state)
{
    (void)state;
    struct buf b = BUF_INIT;
    struct log log = logger(LOG_LOGFMT, &b);
    log_info(&log, "reconnected", LOG_S("conn", "control"), LOG_I("after_ms", 1200));
    assert_string_equal(after_time(&b),
                        "level=info msg=reconnected conn=control after_ms=1200");
    log_warn(&log, "no fields");
    assert_string_equal(after_time(&b), "level=warn msg=\"no fields\"");
    log_error(&log, "x", LOG_B("t", true), LOG_B("f", false), LOG_D("d", 0.25),
              LOG_I("min", INT64_MIN), LOG_D("nan", NAN), LOG_S("left_out", NULL));
    assert_string_equal(
        after_time(&b),
        "level=error msg=x t=true f=false d=0.25 min=-9223372036854775808 nan=null");
    buf_clear(&b);
}

static void expect_shown(const char *value, const char *shown)
{
    struct buf b = BUF_INIT;
    struct log log = logger(LOG_LOGFMT, &b);
    log_debug(&log, "m", LOG_S("v", value));
    const char *got = strstr(buf_str(&b), " v=");
    assert_non_null(got);
    assert_string_equal(got + 3, shown);
    buf_clear(&b);
}

static void test_logfmt_quotes_what_needs_it(void **state)
{
    (void)state;
    expect_shown("plain-1.2:3/x", "plain-1.2:3/x");
    expect_shown("\xc3\xa9t\xc3\xa9", "\xc3\xa9t\xc3\xa9");
    expect_shown("", "\"\"");
    expect_shown("two words", "\"two words\"");
    expect_shown("a=b", "\"a=b\"");
    expect_shown("say \"hi\"", "\"say \\\"hi\\\"\"");
    expect_shown("back\\slash", "\"back\\\\slash\"");
    expect_shown("line\nlevel=error", "\"line\\nlevel=error\"");
    expect_shown("\x1b[31m", "\"\\u001b[31m\"");
    expect_shown("bad\xff", "\"bad\xef\xbf\xbd\"");
}

static void test_json(void **state)
{
    (void)state;
    struct buf b = BUF_INIT;
    struct log log = logger(LOG_JSON, &b);
    log_warn(&log, "two \"words\"\n", LOG_S("s", "a\x01\xff\xe2\x82"),
             LOG_I("i", INT64_MAX), LOG_D("d", 1.5), LOG_D("inf", INFINITY),
             LOG_B("b", true), LOG_S("gone", NULL), LOG_S("empty", ""));
    json_t *j = parse(&b);
    assert_string_equal(text_of(j, "level"), "warn");
    assert_string_equal(text_of(j, "msg"), "two \"words\"\n");
    assert_string_equal(text_of(j, "s"), "a\x01\xef\xbf\xbd\xef\xbf\xbd");
    assert_true(json_integer_value(json_object_get(j, "i")) == INT64_MAX);
    assert_true(json_real_value(json_object_get(j, "d")) == 1.5);
    assert_true(json_is_null(json_object_get(j, "inf")));
    assert_true(json_is_true(json_object_get(j, "b")));
    assert_null(json_object_get(j, "gone"));
    assert_string_equal(text_of(j, "empty"), "");
    json_decref(j);
    buf_clear(&b);
}

static void test_time_is_utc_with_milliseconds(void **state)
{
    (void)state;
    setenv("TZ", "Asia/Kathmandu", 1);
    tzset();
    struct buf b = BUF_INIT;
    struct log log = logger(LOG_LOGFMT, &b);
    time_t before = time(NULL);
    log_info(&log, "m");
    time_t after = time(NULL);
    unsetenv("TZ");
    tzset();

    regex_t re;
    regcomp(&re, "^ts=[0-9]{4}-[0-9]{2}-[0-9]{2}T[0-9]{2}:[0-9]{2}:[0-9]{2}\\.[0-9]{3}Z ",
            REG_EXTENDED);
    assert_int_equal(regexec(&re, buf_str(&b), 0, NULL, 0), 0);
    regfree(&re);
    struct tm tm = {0};
    assert_non_null(strptime(buf_str(&b), "ts=%Y-%m-%dT%H:%M:%S", &tm));
    assert_in_range(timegm(&tm), before, after);
    buf_clear(&b);
}

static void test_level_filter(void **state)
{
    (void)state;
    struct buf b = BUF_INIT;
    struct log log = logger(LOG_LOGFMT, &b);
    log.level = LOG_WARN;
    // What is filtered is not looked at either.
    const struct log_field broken[] = {{0}, {.key = "x", .type = 99}};
    log_write(&log, LOG_DEBUG, NULL, broken, 2);
    log_info(&log, "no");
    assert_int_equal(b.len, 0);
    log_warn(&log, "yes");
    assert_non_null(strstr(buf_str(&b), "msg=yes"));
    log_error(&log, "also");
    assert_non_null(strstr(buf_str(&b), "msg=also"));
    log_error(NULL, "silence");
    log_err(NULL, LOG_ERROR, "silence", &ERR_INIT);
    buf_clear(&b);
}

static void test_err(void **state)
{
    (void)state;
    struct buf b = BUF_INIT;
    struct log log = logger(LOG_LOGFMT, &b);
    struct err e = ERR_INIT;
    err_set(&e, "disk full");
    log_err(&log, LOG_ERROR, "stopped", &e);
    assert_string_equal(after_time(&b), "level=error msg=stopped error=\"disk full\"");
    err_hint(&e, "free some");
    log_err(&log, LOG_WARN, "stopped", &e);
    assert_string_equal(after_time(&b),
                        "level=warn msg=stopped error=\"disk full\" hint=\"free some\"");
    buf_clear(&b);
}

// A line has an end, and it is well-formed also when something is missing.
static void test_huge_values_are_cut(void **state)
{
    (void)state;
    size_t size = (size_t)1 << 20;
    char *huge = malloc(size + 1);
    // Control characters grow sixfold; the é begins at an odd place.
    memset(huge, 1, size);
    huge[size] = '\0';
    char *accents = malloc(size + 1);
    for (size_t i = 0; i < size; i += 2)
        memcpy(accents + i, "\xc3\xa9", 2);
    accents[size] = '\0';
    struct buf b = BUF_INIT;
    struct log log = logger(LOG_JSON, &b);
    log_info(&log, huge, LOG_S("a", huge), LOG_S("b", accents), LOG_S("c", huge),
             LOG_S("d", huge), LOG_S("e", huge), LOG_S("f", huge), LOG_I("n", 1));
    assert_true(b.len > 16384 && b.len < 65536);
    json_t *j = parse(&b);
    assert_true(json_is_true(json_object_get(j, "truncated")));
    const char *accented = text_of(j, "b");
    assert_memory_equal(accented, "\xc3\xa9", 2);
    assert_memory_equal(accented + strlen(accented) - 3, "\xe2\x80\xa6", 3);
    json_decref(j);

    log.format = LOG_LOGFMT;
    log_info(&log, "m", LOG_S("a", accents), LOG_I("n", 1));
    const char *end = "\" n=1 truncated=true";
    assert_string_equal(buf_str(&b) + b.len - strlen(end), end);

    char fits[5001];
    memset(fits, 'x', 5000);
    fits[5000] = '\0';
    log_info(&log, "m", LOG_S("a", fits));
    assert_null(strstr(buf_str(&b), "truncated"));
    assert_non_null(strstr(buf_str(&b), fits));
    free(huge);
    free(accents);
    buf_clear(&b);
}

// Standard error replaced by something that can be looked at.
static int saved_stderr;

static void redirect_stderr(int fd)
{
    fflush(stderr);
    saved_stderr = dup(STDERR_FILENO);
    dup2(fd, STDERR_FILENO);
    close(fd);
}

static void restore_stderr(void)
{
    dup2(saved_stderr, STDERR_FILENO);
    close(saved_stderr);
}

// A socket that keeps the borders of writes shows that a line is one write.
static void test_stderr_gets_one_write_per_line(void **state)
{
    (void)state;
    int fds[2];
    assert_int_equal(socketpair(AF_UNIX, SOCK_SEQPACKET, 0, fds), 0);
    struct log log = {.level = LOG_INFO};
    redirect_stderr(fds[1]);
    errno = EDOM;
    log_info(&log, "first", LOG_I("n", 1));
    int errno_after = errno;
    log_debug(&log, "dropped");
    log_info(&log, "second");
    restore_stderr();
    assert_int_equal(errno_after, EDOM);
    char got[512];
    ssize_t n = recv(fds[0], got, sizeof got - 1, 0);
    assert_true(n > 0);
    got[n] = '\0';
    assert_string_equal(strchr(got, ' '), " level=info msg=first n=1\n");
    n = recv(fds[0], got, sizeof got - 1, 0);
    assert_true(n > 0);
    got[n] = '\0';
    assert_string_equal(strchr(got, ' '), " level=info msg=second\n");
    close(fds[0]);
}

static volatile sig_atomic_t alarms;

static void on_alarm(int signo)
{
    (void)signo;
    alarms++;
}

struct slow_reader {
    int fd;
    bool wait_for_alarms;
    struct buf got;
};

// Lets the writer run into a full pipe, and into signals, before it reads.
static void *read_slowly(void *arg)
{
    struct slow_reader *r = arg;
    sigset_t set;
    sigemptyset(&set);
    sigaddset(&set, SIGALRM);
    pthread_sigmask(SIG_BLOCK, &set, NULL);
    for (int i = 0; r->wait_for_alarms && alarms < 5 && i < 10000; i++)
        usleep(1000);
    char chunk[1000];
    ssize_t n;
    while ((n = read(r->fd, chunk, sizeof chunk)) > 0)
        buf_add(&r->got, chunk, (size_t)n);
    return NULL;
}

static void expect_whole_line(bool nonblocking, bool alarm)
{
    int fds[2];
    assert_int_equal(pipe(fds), 0);
    fcntl(fds[1], F_SETPIPE_SZ, 4096);
    if (nonblocking)
        fcntl(fds[1], F_SETFL, O_NONBLOCK);
    char value[8001];
    memset(value, 'x', 8000);
    value[8000] = '\0';

    struct slow_reader r = {.fd = fds[0], .wait_for_alarms = alarm};
    pthread_t reader;
    alarms = 0;
    pthread_create(&reader, NULL, read_slowly, &r);
    struct sigaction sa = {.sa_handler = on_alarm}; // without SA_RESTART
    struct itimerval often = {{0, 1000}, {0, 1000}}, never = {0};
    sigaction(SIGALRM, &sa, NULL); // stays: one may still be on its way
    if (alarm)
        setitimer(ITIMER_REAL, &often, NULL);
    struct log log = {.level = LOG_INFO};
    redirect_stderr(fds[1]);
    log_info(&log, "long", LOG_S("a", value), LOG_S("b", value), LOG_S("c", value));
    setitimer(ITIMER_REAL, &never, NULL);
    restore_stderr();
    pthread_join(reader, NULL);
    close(fds[0]);

    struct buf want = BUF_INIT;
    buf_addf(&want, " level=info msg=long a=%s b=%s c=%s\n", value, value, value);
    assert_string_equal(strchr(buf_str(&r.got), ' '), buf_str(&want));
    if (alarm)
        assert_true(alarms >= 5);
    buf_clear(&want);
    buf_clear(&r.got);
}

static void test_stderr_short_writes_and_signals(void **state)
{
    (void)state;
    expect_whole_line(false, true);
    expect_whole_line(true, true);
    expect_whole_line(true, false);
}

static void test_closed_stderr_is_no_problem(void **state)
{
    (void)state;
    int saved = dup(STDERR_FILENO);
    close(STDERR_FILENO);
    struct log log = {.level = LOG_INFO};
    errno = EDOM;
    log_info(&log, "nobody reads this");
    int errno_after = errno;
    dup2(saved, STDERR_FILENO);
    close(saved);
    assert_int_equal(errno_after, EDOM);
}

static void test_parse_names(void **state)
{
    (void)state;
    enum log_level level = LOG_ERROR;
    assert_true(log_level_parse("debug", &level));
    assert_int_equal(level, LOG_DEBUG);
    assert_true(log_level_parse("info", &level));
    assert_int_equal(level, LOG_INFO);
    assert_true(log_level_parse("warn", &level));
    assert_int_equal(level, LOG_WARN);
    assert_true(log_level_parse("error", &level));
    assert_int_equal(level, LOG_ERROR);
    assert_false(log_level_parse("loud", &level));
    assert_false(log_level_parse("", &level));
    assert_int_equal(level, LOG_ERROR);
    enum log_format format = LOG_LOGFMT;
    assert_true(log_format_parse("json", &format));
    assert_int_equal(format, LOG_JSON);
    assert_true(log_format_parse("logfmt", &format));
    assert_int_equal(format, LOG_LOGFMT);
    assert_false(log_format_parse("xml", &format));
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_logfmt),
        cmocka_unit_test(test_logfmt_quotes_what_needs_it),
        cmocka_unit_test(test_json),
        cmocka_unit_test(test_time_is_utc_with_milliseconds),
        cmocka_unit_test(test_level_filter),
        cmocka_unit_test(test_err),
        cmocka_unit_test(test_huge_values_are_cut),
        cmocka_unit_test(test_stderr_gets_one_write_per_line),
        cmocka_unit_test(test_stderr_short_writes_and_signals),
        cmocka_unit_test(test_closed_stderr_is_no_problem),
        cmocka_unit_test(test_parse_names),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
