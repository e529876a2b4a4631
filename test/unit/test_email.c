// SPDX-License-Identifier: Apache-2.0
//
// E-mail against a real SMTP server, test/lib/smtp_sink.py.

#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>

#include <cmocka.h>

#include <fcntl.h>
#include <jansson.h>
#include <sys/wait.h>

#include "test_channel_common.h"

#define ARRAY_SIZE(a) (sizeof(a) / sizeof(a)[0])
#define MAIL(to)                                                                         \
    "{\"from_address\": \"shop@example.org\", \"to_address\": " to                       \
    ", \"subject\": \"Hello\", \"text\": \".\\n..\\nlast\\n.\\n\"}"

struct sink {
    pid_t pid;
    FILE *out;
    int hold; // its standard input
    int port;
};

static struct sink sink;

static void sink_start(const char *const *options)
{
    const char *argv[8] = {"/usr/bin/python3", "test/lib/smtp_sink.py"};
    for (size_t i = 0; options[i] != NULL; i++)
        argv[i + 2] = options[i];
    int in[2], out[2];
    assert_int_equal(pipe2(in, O_CLOEXEC), 0);
    assert_int_equal(pipe2(out, O_CLOEXEC), 0);
    sink.pid = fork();
    if (sink.pid == 0) {
        dup2(in[0], 0);
        dup2(out[1], 1);
        dup2(open("/dev/null", O_WRONLY | O_CLOEXEC), 2);
        execv(argv[0], (char *const *)argv);
        _exit(127);
    }
    close(in[0]);
    close(out[1]);
    sink.hold = in[1];
    sink.out = fdopen(out[0], "r");
    char line[16];
    assert_non_null(fgets(line, sizeof line, sink.out));
    sink.port = atoi(line);
}

static void sink_stop(void)
{
    close(sink.hold);
    kill(sink.pid, SIGKILL);
    waitpid(sink.pid, NULL, 0);
    fclose(sink.out);
    sink = (struct sink){0};
}

// The next message that it got; the caller's.
static json_t *sink_next(void)
{
    static char line[1 << 20];
    assert_non_null(fgets(line, sizeof line, sink.out));
    json_t *message = json_loads(line, 0, NULL);
    assert_non_null(message);
    return message;
}

static const char *text_of(const json_t *message, const char *field)
{
    return json_string_value(json_object_get(message, field));
}

static int start_with(void **state, const char *const *options)
{
    if (bench_set_up(state, &kind_email) != 0)
        return -1;
    sink_start(options);
    char url[64];
    snprintf(url, sizeof url, "smtp://127.0.0.1:%d", sink.port);
    bench_set(*state, "smtp.url", url);
    return 0;
}

static int set_up(void **state)
{
    return start_with(state, (const char *[]){NULL});
}

static int tear_down(void **state)
{
    if (sink.pid != 0)
        sink_stop();
    return bench_tear_down(state);
}

static void test_send(void **state)
{
    struct bench *b = *state;
    bench_send(b, MAIL("[\"a@example.org\", \"B <b@example.org>\"]"));
    assert_sql(b, STATE, "completed");
    assert_sql(
        b,
        "select what || (detail ->> 'recipients') || (detail ->> 'reply') from app.fact",
        "sent2250 2.0.0 ok: queued as 4711");
    json_t *m = sink_next();
    assert_string_equal(text_of(m, "from"), "shop@example.org");
    assert_int_equal(json_array_size(json_object_get(m, "to")), 2);
    const char *data = text_of(m, "data");
    assert_contains(data, "Subject: Hello\r\n");
    char id[128];
    snprintf(id, sizeof id, "Message-ID: <%s@example.org>\r\n", b->key);
    assert_contains(data, id);
    // Dots at the beginning of lines arrive as they were.
    assert_contains(data, "\r\n\r\n.\r\n..\r\nlast\r\n.\r\n");
    json_decref(m);

    // The connection is used again.
    bench_send(b, MAIL("\"c@example.org\""));
    m = sink_next();
    assert_int_equal(json_integer_value(json_object_get(m, "connection")), 1);
    json_decref(m);
}

static void test_refusals(void **state)
{
    struct bench *b = *state;
    run_sql(
        b, "update worker.command_registry set max_attempts = 2 where command = 'email'");
    static const struct {
        const char *payload;
        const char *state;
        const char *error;
    } cases[] = {
        {MAIL("\"reject@example.org\""), "failed",
         "the mail server said: 550 5.1.1 no such user"},
        {MAIL("[\"a@b.c\", \"reject@example.org\"]"), "failed",
         "the mail server said: 550 5.1.1 no such user"},
        {MAIL("\"late@example.org\""), "pending",
         "the mail server said: 451 4.7.1 greylisted"},
        {MAIL("\"refuse@example.org\""), "failed",
         "the mail server said: 554 5.7.1 spam"},
        {MAIL("\"no address\""), "failed",
         "to_address: \"no address\" is not an e-mail address"},
        {MAIL("\"a@b.c>\\r\\nRCPT TO:<evil@b.c\""), "failed",
         "to_address has a control character in it"},
        {"{}", "failed", "from_address is missing"},
    };
    for (size_t i = 0; i < ARRAY_SIZE(cases); i++) {
        bench_send(b, cases[i].payload);
        assert_sql(b, STATE, cases[i].state);
        assert_sql(b, ERROR, cases[i].error);
    }
    // After all that the server still takes what it should, and has got nothing else.
    bench_send(b, MAIL("\"good@example.org\""));
    json_t *m = sink_next();
    assert_string_equal(json_string_value(json_array_get(json_object_get(m, "to"), 0)),
                        "good@example.org");
    json_decref(m);
}

// Taken, but never said so: tried again with the same Message-ID.
static void test_dropped(void **state)
{
    struct bench *b = *state;
    run_sql(
        b, "update worker.command_registry set max_attempts = 2 where command = 'email'");
    bench_send(b, MAIL("\"drop@example.org\""));
    assert_sql(b, STATE, "pending");
    json_t *first = sink_next();
    run_sql(b, "set worker.fake_now = '2090-01-01'");
    bench_lease(b);
    bench_run(b);
    json_t *second = sink_next();
    const char *id = strstr(text_of(first, "data"), "Message-ID:");
    size_t len = strcspn(id, "\r");
    assert_memory_equal(strstr(text_of(second, "data"), "Message-ID:"), id, len);
    assert_sql(b, "select what from app.fact", "failed");
    json_decref(first);
    json_decref(second);
}

static void test_silence(void **state)
{
    struct bench *b = *state;
    bench_set(b, "smtp.timeout", "300ms");
    bench_send(b, MAIL("\"hang@example.org\""));
    assert_sql(b, STATE, "failed");
    json_decref(sink_next());
    sink_stop();
    bench_send(b, MAIL("\"a@example.org\""));
    assert_sql(b, STATE, "failed");
    assert_sql(b, "select what from app.fact", "failed");
}

static void test_stop(void **state)
{
    struct bench *b = *state;
    bench_task(b, MAIL("\"hang@example.org\""));
    b->kind->start(b->self, &b->t.attempt);
    run_until(b->base, strstr(buf_str(&b->lines), "to=calling") != NULL);
    b->kind->stop(b->self, &b->t.attempt);
    assert_int_equal(b->t.ends, 1);
    assert_int_equal(b->t.outcome, ATTEMPT_FAILED);
}

// --------------------------------------------------------------- bad servers

// Sends the same text over and over again, at once or a byte now and then.
struct talker {
    struct event_base *base;
    struct evconnlistener *listener;
    int port;
    const char *text;
    bool slow;
    struct bufferevent *bev;
    struct event *timer;
    size_t sent;
};

static void talk(struct talker *t)
{
    if (t->bev == NULL)
        return;
    if (t->slow) {
        bufferevent_write(t->bev, t->text + t->sent++ % strlen(t->text), 1);
        loop_timer_start(t->timer, 20);
        return;
    }
    for (int i = 0; i < 1000; i++)
        bufferevent_write(t->bev, t->text, strlen(t->text));
}

static void on_talk_timer(evutil_socket_t fd, short what, void *arg)
{
    (void)fd;
    (void)what;
    talk(arg);
}

static void on_talk_written(struct bufferevent *bev, void *arg)
{
    struct talker *t = arg;
    (void)bev;
    if (!t->slow)
        talk(t);
}

static void on_talk_event(struct bufferevent *bev, short what, void *arg)
{
    struct talker *t = arg;
    (void)what;
    bufferevent_free(bev);
    t->bev = NULL;
}

static void on_talk_accept(struct evconnlistener *l, evutil_socket_t fd,
                           struct sockaddr *sa, int len, void *arg)
{
    (void)l;
    (void)sa;
    (void)len;
    struct talker *t = arg;
    t->bev = bufferevent_socket_new(t->base, fd, BEV_OPT_CLOSE_ON_FREE);
    bufferevent_setcb(t->bev, NULL, on_talk_written, on_talk_event, t);
    bufferevent_enable(t->bev, EV_READ | EV_WRITE);
    if (t->text[0] != '\0')
        talk(t);
}

static void test_bad_servers(void **state)
{
    struct bench *b = *state;
    static const struct {
        const char *text;
        bool slow;
    } cases[] = {
        {"220-welcome, and welcome again\r\n", false}, // a reply without an end
        {"220 hello\r\n250 yes\r\n", true},
        {"x", false}, // a line without an end
        {"", false},
    };
    for (size_t i = 0; i < ARRAY_SIZE(cases); i++) {
        struct talker t = {.base = b->base, .text = cases[i].text, .slow = cases[i].slow};
        char url[64];
        t.timer = loop_event_new(b->base, -1, 0, on_talk_timer, &t);
        t.listener = server_listen(b->base, on_talk_accept, &t, &t.port);
        snprintf(url, sizeof url, "smtp://127.0.0.1:%d", t.port);
        bench_set(b, "smtp.url", url);
        bench_set(b, "smtp.timeout", "500ms");
        // The provider is opened anew, with the new address.
        struct err e = ERR_INIT;
        b->kind->close(b->self);
        b->self = b->kind->open(&b->rt, &e);
        bench_send(b, MAIL("\"a@example.org\""));
        assert_sql(b, STATE, "failed");
        assert_sql(b, "select what from app.fact", "failed");
        run_until(b->base, t.bev == NULL);
        loop_event_clear(&t.timer);
        evconnlistener_free(t.listener);
    }
}

// -------------------------------------------------------- settings, login, TLS

static void test_not_set_up(void **state)
{
    struct bench *b = *state;
    bench_set(b, "smtp.url", "http://127.0.0.1");
    bench_send(b, MAIL("\"a@example.org\""));
    assert_sql(b, ERROR, "smtp.url does not begin with smtp:// or smtps://");
}

static int set_up_auth(void **state)
{
    return start_with(state, (const char *[]){"--auth", "pgkin", "geheim", NULL});
}

static void test_auth(void **state)
{
    struct bench *b = *state;
    bench_set(b, "smtp.user", "pgkin");
    bench_set(b, "smtp.password", "secret:password");
    bench_send(b, MAIL("\"a@example.org\""));
    assert_sql(b, STATE, "failed"); // no such secret
    bench_secret(b, "password", "falsch");
    bench_send(b, MAIL("\"a@example.org\""));
    assert_sql(b, STATE, "failed");
    bench_secret(b, "password", "geheim\n");
    bench_send(b, MAIL("\"a@example.org\""));
    assert_sql(b, STATE, "completed");
    json_t *m = sink_next();
    assert_true(json_is_true(json_object_get(m, "login")));
    json_decref(m);
    assert_null(strstr(buf_str(&b->lines), "geheim"));
    assert_sql(b,
               "select count(*) from queues.error where error_message ~ 'geheim|falsch'",
               "0");
}

static char cert[128], key[128];

static int set_up_tls(void **state)
{
    char command[512];
    snprintf(cert, sizeof cert, "/tmp/pgkin-smtp-%d.crt", (int)getpid());
    snprintf(key, sizeof key, "/tmp/pgkin-smtp-%d.key", (int)getpid());
    snprintf(command, sizeof command,
             "openssl req -x509 -newkey rsa:2048 -nodes -subj /CN=localhost -addext "
             "subjectAltName=IP:127.0.0.1 -days 2 -out %s -keyout %s 2>/dev/null",
             cert, key);
    if (system(command) != 0) // NOLINT(cert-env33-c)
        return -1;
    return start_with(state, (const char *[]){"--tls", cert, key, NULL});
}

static int tear_down_tls(void **state)
{
    remove(cert);
    remove(key);
    return tear_down(state);
}

static void test_tls(void **state)
{
    struct bench *b = *state;
    // A certificate that nobody vouches for is not trusted, also when TLS is a
    // mere offer.
    bench_send(b, MAIL("\"a@example.org\""));
    assert_sql(b, STATE, "failed");
    bench_set(b, "smtp.ca_file", cert);
    bench_send(b, MAIL("\"a@example.org\""));
    assert_sql(b, STATE, "completed");
    json_t *m = sink_next();
    assert_true(json_is_true(json_object_get(m, "tls")));
    json_decref(m);
}

static void test_tls_required(void **state)
{
    struct bench *b = *state; // of a server without it
    bench_set(b, "smtp.tls", "required");
    bench_send(b, MAIL("\"a@example.org\""));
    assert_sql(b, STATE, "failed");
    bench_set(b, "smtp.tls", "never");
    bench_send(b, MAIL("\"a@example.org\""));
    assert_sql(b, STATE, "completed");
    json_decref(sink_next());
}

#define WITH_SINK(test) cmocka_unit_test_setup_teardown(test, set_up, tear_down)

int main(void)
{
    const struct CMUnitTest tests[] = {
        WITH_SINK(test_send),
        WITH_SINK(test_refusals),
        WITH_SINK(test_dropped),
        WITH_SINK(test_silence),
        WITH_SINK(test_stop),
        WITH_SINK(test_bad_servers),
        WITH_SINK(test_not_set_up),
        WITH_SINK(test_tls_required),
        cmocka_unit_test_setup_teardown(test_auth, set_up_auth, tear_down),
        cmocka_unit_test_setup_teardown(test_tls, set_up_tls, tear_down_tls),
    };
    return cmocka_run_group_tests(tests, bench_make_template, bench_drop_template);
}
