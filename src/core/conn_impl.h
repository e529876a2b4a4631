// SPDX-License-Identifier: Apache-2.0
//
// What the files of the connection share: conn.c (life, state, loss),
// conn_connect.c (attempts and session setup), conn_query.c (requests),
// conn_request.c (one request), conn_result.c (texts from the server).

#ifndef PGKIN_CORE_CONN_IMPL_H
#define PGKIN_CORE_CONN_IMPL_H

#include <stdint.h>
#include <sys/queue.h>

#include "core/asset.h"
#include "core/conn.h"
#include "core/loop.h"

struct request {
    TAILQ_ENTRY(request) link;
    struct conn *conn;
    const struct asset *asset; // NULL: `sql` is the statement
    char *sql;
    struct conn_params params; // empty once sent
    bool binary;
    bool resets_session;
    bool internal; // session setup; not the owner's
    bool sent;
    bool expired;
    enum {
        REQUEST_PLAIN,
        REQUEST_PREPARES, // a Parse went out first; its answer comes first
        REQUEST_PREPARED, // uses a statement of this session
    } prepare;
    unsigned serial;        // of the statement it prepares or uses
    struct event *deadline; // NULL: none
    int deadline_ms;
    PGresult *res; // kept until the sync arrives: before it nothing is committed
    void (*done)(struct conn *c, PGresult *res, const struct err *e, void *arg);
    void *arg;
};

TAILQ_HEAD(request_list, request);

// Per asset, for the current session.
struct prepared {
    enum {
        PREPARED_NO,
        PREPARED_ASKED, // sent, not answered: others go unprepared meanwhile
        PREPARED_YES,
    } state;
    // Part of the statement's name, new for each Parse, so that an answer that
    // comes after the statement was forgotten is told apart. 0: none.
    unsigned serial;
};

struct notice {
    STAILQ_ENTRY(notice) link;
    char *severity;
    char *text;
};

STAILQ_HEAD(notice_list, notice);

struct channel {
    STAILQ_ENTRY(channel) link;
    char *name;
};

STAILQ_HEAD(channel_list, channel);

struct conn {
    struct event_base *base;
    struct conn_options opt; // strings owned, but for session_sql
    char *conninfo;          // complete; holds the password
    char *shown;             // for people
    size_t hosts;

    enum conn_state state;
    PGconn *pg;
    // Changes whenever `pg` goes, so that a loop that ran a callback notices.
    uint64_t epoch;
    int depth; // of callbacks and of what calls them; memory goes at 0
    bool freed;

    int fd; // the socket, duplicated; -1: none
    struct event *ev_read;
    struct event *ev_write;
    struct event *ev_timer; // time limit of an attempt, or the backoff
    struct event *ev_kick;  // something to do, on the loop's next round
    bool want_write;        // libpq has unsent output, the socket takes no more

    struct backoff backoff;
    int64_t outage_since_ms; // open, or loss of the last session
    int64_t up_since_ms;
    unsigned tries;
    bool outage_reported;
    bool was_up;       // since conn_open()
    size_t first_host; // of the list, for the next attempt

    struct request_list setup; // sent while starting
    struct request_list queue; // sent when up
    struct request_list sent;
    struct request_list dead; // taken out of the others, to be answered
    size_t pending;
    struct request *answering;
    size_t setup_left; // requests before the session is up
    struct channel_list channels;

    struct prepared *prepared; // indexed like pgkin_assets
    unsigned lost_statements;  // prepared ones that the server did not know
    unsigned next_serial;

    struct notice_list notices;
    struct err fatal; // the server's last word in this session, or code 0
};

// ------------------------------------------------------------------ conn.c

// The one place where `state` changes.
void conn_set_state(struct conn *c, enum conn_state to);

// Around everything that may call back. conn_leave() may free `c`.
void conn_enter(struct conn *c);
void conn_leave(struct conn *c);

// Something is to be done on the loop's next round.
void conn_kick(struct conn *c);

// The session or the attempt is over: answers its requests, reports, waits.
void conn_fail(struct conn *c, const struct err *why);

// --------------------------------------------------------- conn_connect.c

bool conn_connect_prepare(struct conn *c, struct err *e); // the connection string
void conn_connect_start(struct conn *c);
void conn_connect_timer(struct conn *c); // in connecting, starting and waiting

// ----------------------------------------------------------- conn_query.c

// Sends what may be sent and takes what has arrived. Not `alive`: nothing more
// will arrive, and the session fails after the last complete answer.
void conn_pump(struct conn *c, bool alive);
bool conn_watch(struct conn *c, struct err *e); // makes the events of a new session
void conn_unsettle(struct conn *c);             // forgets what belonged to a session

// --------------------------------------------------------- conn_request.c

struct request *request_new(struct conn *c, const struct conn_request *r);
bool request_send(struct conn *c, struct request *r, struct err *e);
// Takes `res`: one of the results that make up the answer to `r`.
void request_take_result(struct conn *c, struct request *r, PGresult *res);
// Answers and frees `r`, which is in no list. `e` is NULL for success.
void request_finish(struct conn *c, struct request *r, const struct err *e);
void request_answer_lost(struct conn *c, const char *why); // all of c->dead
void request_forget_prepared(struct conn *c);

// ---------------------------------------------------------- conn_result.c

// libpq's message without its advice, on one line; never empty.
void conn_libpq_error(const PGconn *pg, struct err *e);

// For libpq, which is not to be called from there: notices are kept for later.
void conn_notice_receive(void *arg, const PGresult *res);
// False when a callback ended the session.
bool conn_notice_deliver(struct conn *c);
void conn_notice_clear(struct conn *c);
void conn_note_fatal(struct conn *c, const PGresult *res);

#endif
