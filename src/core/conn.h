// SPDX-License-Identifier: Apache-2.0
//
// One PostgreSQL connection on a libevent loop: it connects, sets up its
// session, answers requests, and comes back by itself when it is lost.
//
//      open            accepted           set up            request sent
//   closed --> connecting --> starting --> idle <---------------> busy
//                 ^    |          |          |    all answered      |
//                 |    | refused, | setup    | lost                 | lost, deadline
//                 |    v too late v failed   v                      v
//                 +-- waiting <-------------------------------------+
//            backoff over           (any state --> closing --> closed)
//
// The rules its owner can build on:
//
// - A request that conn_request() accepted is answered exactly once, whatever
//   happens, conn_free() included; and never from within conn_request().
// - A request belongs to one session. When that is lost, those sent and those
//   still queued behind them are answered with the loss; nothing is sent twice.
//   Requests made while there is no session wait for the next one.
// - Requests are pipelined, each in a transaction of its own unless the owner
//   opens one: an error in one does not touch the others. An answer comes only
//   when the server has committed, so success is success.
// - Every callback may make requests, and close or free the connection.
// - No callback comes after conn_free() has returned.
//
// One thread: that of the loop.

#ifndef PGKIN_CORE_CONN_H
#define PGKIN_CORE_CONN_H

#include <event2/event.h>
#include <libpq-fe.h>
#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#include "core/conn_param.h"
#include "core/err.h"
#include "core/log.h"
#include "core/machine.h"

struct conn;

enum conn_state {
    CONN_CLOSED,
    CONN_CONNECTING,
    CONN_STARTING, // session setup
    CONN_IDLE,
    CONN_BUSY,
    CONN_WAITING, // until the next attempt
    CONN_CLOSING,
};

struct conn_options {
    const char *name;     // in log lines: "control"
    const char *conninfo; // "" when libpq's environment says it all
    const char *app_name; // application_name where the user gives none
    // "-c search_path=x": libpq's options; the user's own win. pgbouncer refuses them.
    const char *options;
    // Run in each new session before anything else, one statement each, ended
    // by NULL. The list and its texts outlive the connection.
    const char *const *session_sql;
    bool unprepared; // named statements do not survive pgbouncer's transaction mode

    // 0 stands for the default. The time limit is for one attempt up to the
    // end of session setup; connect_timeout in the connection string wins.
    int connect_timeout_ms; // 10 s
    int backoff_min_ms;     // 100 ms
    int backoff_max_ms;     // 5 s
    int stable_ms;          // 5 s: a session that lasted this long resets the backoff

    const struct log *log; // outlives the connection; NULL: silence

    // All may be NULL. on_down comes once for each loss, and once when the
    // first attempts fail; never for the owner's own conn_close().
    void (*on_up)(struct conn *c, void *arg);
    void (*on_down)(struct conn *c, const struct err *why, void *arg);
    // Without it notices go to the log at debug level.
    void (*on_notice)(struct conn *c, const char *severity, const char *text, void *arg);
    void (*on_notify)(struct conn *c, const char *channel, const char *payload, int pid,
                      void *arg);
    void *arg;
};

// Exactly one of `query` and `sql`.
struct conn_request {
    const char *query; // NAME of sql/queries/NAME.sql; prepared at first use
    const char *sql;   // one statement as text; copied, not prepared
    // Taken: empty when conn_request() returns, also after a refusal.
    struct conn_params *params; // NULL: none
    bool binary;                // results in binary format
    // The statement forgets what the session prepared (discard all, deallocate
    // all), so that later requests prepare anew. It also ends LISTEN and what
    // session_sql set: not for connections that depend on those.
    bool resets_session;
    // From now. When it passes, the answer is not known: the connection is
    // dropped, and made anew. While there is no session only this request
    // ends. 0: no limit.
    int deadline_ms;
    // `res` and `e` are borrowed. Success: e is NULL. Error from the server:
    // both are there. No answer: res is NULL. A NULL callback: errors go to
    // the log.
    void (*done)(struct conn *c, PGresult *res, const struct err *e, void *arg);
    void *arg;
};

// Copies the strings of `o`. NULL with `e` filled when the connection string
// is bad. Not connected yet.
struct conn *conn_new(struct event_base *base, const struct conn_options *o,
                      struct err *e);

// Closes first. NULL is allowed.
void conn_free(struct conn *c);

// Starts connecting; no callback comes before the loop runs. Only when closed.
bool conn_open(struct conn *c, struct err *e);

// Ends the session, if any, and all requests, and stays away until
// conn_open(). Safe in every state.
void conn_close(struct conn *c);

// Gives up this session as if it had been lost, and connects again: for an
// owner that learned that this is the wrong server. Nothing to do when there
// is no session.
void conn_drop(struct conn *c, const char *why);

// False, without a callback, when the connection is closed or closing, the
// query does not exist, or there are too many parameters.
bool conn_request(struct conn *c, const struct conn_request *r, struct err *e);

// Listens on the channel in this session and all later ones. Session state:
// not through pgbouncer in transaction mode.
void conn_listen(struct conn *c, const char *channel);

enum conn_state conn_get_state(const struct conn *c);
bool conn_is_up(const struct conn *c);         // idle or busy
size_t conn_pending(const struct conn *c);     // requests not answered yet
unsigned conn_tries(const struct conn *c);     // failed attempts since the last session
int conn_backend_pid(const struct conn *c);    // 0 when not up
int conn_server_version(const struct conn *c); // 150004; 0 when not up
const char *conn_name(const struct conn *c);

// In a request's callback with res NULL: true when the server may have
// executed it, false when it was certainly not sent.
bool conn_outcome_unknown(const struct conn *c);

const struct machine *conn_machine(void);

// ---------------------------------------------------------------- results

// Five characters; "" when there is none.
const char *conn_sqlstate(const PGresult *res);
bool conn_sqlstate_is(const PGresult *res, const char *sqlstate);

// The value as a whole number; 0 when it is null, or there is no such row.
int64_t conn_result_int64(const PGresult *res, int row, int col);

// Fills `e` from an error result: the server's primary message and its hint.
// The detail stays out: it quotes data. Returns false; true when `res` is not
// an error.
bool conn_result_check(const PGresult *res, struct err *e);

#endif
