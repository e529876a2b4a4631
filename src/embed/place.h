// SPDX-License-Identifier: Apache-2.0
//
// Where things of a private cluster are: its directory, its socket, and how to
// name them to libpq, to the server and to a reader. Nothing here needs the
// cluster to run; cluster_default_dir(), cluster_conninfo() and cluster_url()
// of cluster.h are here too.

#ifndef PGKIN_EMBED_PLACE_H
#define PGKIN_EMBED_PLACE_H

#include <stdbool.h>
#include <sys/types.h>

#include "core/buf.h"
#include "core/err.h"

// A path in the directory. Caller frees.
char *place_path(const char *dir, const char *name);

// Whether the socket can be in `dir` itself: short enough for the kernel, and
// without a comma, which libpq takes for the end of a host name.
bool place_socket_fits(const char *dir);

// The directory with the socket, as clients see it. Appends to `out`.
bool place_find_socket_dir(const char *dir, struct buf *out, struct err *e);

// The same for the server: makes the short directory when it is needed and
// was not made before, and writes its name down in `dir`. To be called with
// the rights of the user that runs the server.
bool place_make_socket_dir(const char *dir, struct buf *out, struct err *e);

// Appends key='value' (and a space before it, unless `out` is empty), quoted
// as libpq wants it.
void place_add_conninfo(struct buf *out, const char *key, const char *value);

// As cluster_conninfo(), to another database of the cluster, and without
// looking whether there is one.
bool place_conninfo(const char *dir, const char *dbname, struct buf *out, struct err *e);

#endif
