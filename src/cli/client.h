// SPDX-License-Identifier: Apache-2.0
//
// What the commands that operate on a database share: a connection to one that
// has the schema of this binary, statements out of sql/queries, and errors that
// say what to do.

#ifndef PGKIN_CLI_CLIENT_H
#define PGKIN_CLI_CLIENT_H

#include <libpq-fe.h>
#include <stdbool.h>

#include "cli/options.h"
#include "core/buf.h"
#include "core/err.h"

// Connects, and checks that the schema is there and of this binary's version.
// NULL with `e` filled on failure; else the caller ends it with PQfinish().
PGconn *client_open(const struct cli_common *common, struct err *e);

// The check alone. `version` may be NULL; else it gets the database's.
bool client_check(PGconn *conn, int *version, struct err *e);

// Begins a transaction that only looks: all statements see the same moment, and
// are planned to find a few rows among many. It ends with the connection, or
// with client_end_look().
bool client_begin_look(PGconn *conn, struct err *e);
void client_end_look(PGconn *conn);

// Executes sql/queries/NAME.sql with parameters as text. NULL with `e` filled on
// failure (NULL when the reason is of no interest); else the caller clears the
// result.
PGresult *client_query(PGconn *conn, const char *name, int n, const char *const *params,
                       struct err *e);

// A value, or NULL for SQL's null. Borrowed from the result.
const char *client_value(const PGresult *res, int row, int column);
bool client_true(const PGresult *res, int row, int column);

// Reads the one operand that is the id of a task. `first` is from cli_parse().
bool client_id_operand(int argc, char **argv, int first, const char **id, struct err *e);

// Fills `e` for a task that is not there. Returns false.
bool client_no_task(const char *id, struct err *e);

// Appends a JSON array of what stands in one column of every row, which is JSON.
void client_add_array(const PGresult *res, int column, struct buf *out);

#endif
