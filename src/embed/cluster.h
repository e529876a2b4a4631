// SPDX-License-Identifier: Apache-2.0
//
// The private cluster: a PostgreSQL server of our own, for a first run on a
// machine that has PostgreSQL's server binaries and nothing else. It listens
// on a unix socket only, belongs to one operating system user, and lives and
// dies with the process that started it.
//
//     DIR/            0700, owned by the user that runs the server
//       pgkin.pid     locked (flock) by the `pgkin start` that uses DIR; its pid
//       data/         the data directory of PostgreSQL
//       data.new/     the same while initdb works on it; a leftover is removed
//       server.log    what the server has to say
//       socket        only when DIR is too long for a unix socket: the name of
//                     the short directory that has the socket instead
//
// Started as root, the server runs as another user (PGKIN_SERVER_USER, the
// owner of an existing DIR, `postgres`), and every file below DIR is touched
// with that user's rights, so that whoever owns DIR cannot make root follow a
// link out of it.

#ifndef PGKIN_EMBED_CLUSTER_H
#define PGKIN_EMBED_CLUSTER_H

#include <stdbool.h>
#include <sys/types.h>

#include "core/buf.h"
#include "core/err.h"
#include "core/log.h"

#define CLUSTER_ROLE     "pgkin" // the superuser, and
#define CLUSTER_DATABASE "pgkin" // the database of every private cluster
#define CLUSTER_PORT     "5432"  // only a part of the socket's name

struct cluster;

// Strings are borrowed until cluster_open() returns, `log` for as long as the
// cluster is there. Zero and NULL mean the default.
struct cluster_options {
    const char *dir;    // default: cluster_default_dir()
    const char *bindir; // default: PGKIN_BINDIR, else searched
    const char *user;   // as root, who runs the server; default: PGKIN_SERVER_USER, …
    struct log *log;
    int start_timeout_ms; // no sign of life from the server; default 60 s
    int stop_timeout_ms;  // until a fast shutdown becomes an immediate one; default 60 s
    // Asked every few milliseconds while cluster_open() and cluster_start()
    // wait; true makes them give up and clean up after themselves.
    bool (*interrupted)(void *arg);
    void *interrupted_arg;
};

// PGKIN_DATA; else as root /var/lib/pgkin; else $XDG_DATA_HOME/pgkin; else
// ~/.local/share/pgkin. Appends to `out`. The directory need not exist.
bool cluster_default_dir(struct buf *out, struct err *e);

// Appends the conninfo (host, port, user, dbname; quoted) of the cluster in
// `dir`, whether it runs or not. Fails, with a hint, when there is none.
bool cluster_conninfo(const char *dir, struct buf *out, struct err *e);

// The same as a URL, for DATABASE_URL.
bool cluster_url(const char *dir, struct buf *out, struct err *e);

// Makes the directory where necessary, locks it and finds the binaries. Sets
// the umask to 077 and takes PG* (not PGKIN_*) out of the environment, where
// they would send the connections of this process elsewhere.
// NULL with `e` filled on failure; then nothing is left that was not there
// before. Caller frees with cluster_free().
struct cluster *cluster_open(const struct cluster_options *opt, struct err *e);

// Deals with what an earlier run left behind, runs initdb when there is no
// data yet, starts the server as a child of this process and waits until it
// answers and has its database. On failure the server is stopped again.
bool cluster_start(struct cluster *c, struct err *e);

// The directory as an absolute path, the server's log file, and the postmaster
// (0 when there is none). Borrowed from the cluster.
const char *cluster_dir(const struct cluster *c);
const char *cluster_log_file(const struct cluster *c);
pid_t cluster_pid(const struct cluster *c);

// Whether the postmaster still runs; call it when SIGCHLD arrives, or now and
// then. False, with what is known about its end in `e`, when it has died by
// itself: the cluster is then stopped and may be started again.
bool cluster_check(struct cluster *c, struct err *e);

// Ends the server: fast shutdown, after stop_timeout_ms an immediate one.
// `hurry` (may be NULL) is asked while waiting; true makes it immediate at
// once. A cluster that does not run is fine. False when the server had to be
// ended the hard way (it will recover at its next start) or cannot be ended.
bool cluster_stop(struct cluster *c, bool (*hurry)(void *arg), void *arg, struct err *e);

// Stops the server if it still runs, gives the lock back and frees. NULL is
// fine. A directory that this cluster made and never filled is removed again.
void cluster_free(struct cluster *c);

#endif
