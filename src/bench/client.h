// SPDX-License-Identifier: Apache-2.0
//
// A session that is measured: a connection of the worker's kind, of which the
// benchmark knows the server's process and counts the transactions. Anything
// that goes wrong on one ends the run.

#ifndef PGKIN_BENCH_CLIENT_H
#define PGKIN_BENCH_CLIENT_H

#include <stddef.h>
#include <stdint.h>

#include "bench/context.h"
#include "core/conn.h"

struct client {
    struct bench *b;
    struct conn *conn;
    int pid;         // of the server's process
    int64_t commits; // transactions that succeeded
    bool ready;      // the session is set up
    bool closing;
    void (*on_notify)(struct client *c, const char *payload, void *arg); // may be NULL
    void *arg;
};

struct clients {
    struct client *list;
    size_t count;
};

// Opens `n` sessions and waits until all are ready. `sync` is their
// synchronous_commit. clients_close() in any case.
bool clients_open(struct clients *set, struct bench *b, const char *name, int n,
                  enum bench_sync sync, struct err *e);
void clients_close(struct clients *set);

// Waits until no client has a request under way.
bool clients_settle(struct clients *set, int64_t limit_ms, struct err *e);

// Sends a query; takes `params` (NULL: none). `done` (NULL: nobody cares) comes
// after success only.
void client_request(struct client *c, const char *query, struct conn_params *params,
                    void (*done)(struct client *c, PGresult *res, void *arg), void *arg);

// For those who send on c->conn themselves, in their callback: counts the
// transaction, or ends the run. False in that case.
bool client_answered(struct client *c, const struct err *e);

#endif
