// SPDX-License-Identifier: Apache-2.0
//
// Connection strings, as libpq understands them: URIs and key=value pairs.
//
// They carry passwords, and libpq quotes parts of a malformed one in its
// message. So no other file shows a connection string, or reports that one is
// bad: this one does, and when it cannot tell where the password ends it shows
// nothing of it.

#ifndef PGKIN_CORE_CONNINFO_H
#define PGKIN_CORE_CONNINFO_H

#include <stdbool.h>
#include <stddef.h>

#include "core/buf.h"
#include "core/err.h"

struct conninfo_param {
    const char *key; // a libpq keyword
    const char *value;
    bool force; // replaces what the user gave; else only fills a gap
};

// That libpq can read it, and that the host and port it reads are not pieces
// of a password with an unescaped '@' or '/'. The message is safe to print.
bool conninfo_check(const char *conninfo, struct err *e);

// Appends the string with *** for every password in it, in the form in which
// it was given; "(unreadable connection string)" when libpq cannot read it.
void conninfo_redact(const char *conninfo, struct buf *out);

// Appends the string in key=value form with `params` added. A parameter that
// the string or libpq's environment variable for it gives is left alone,
// unless forced. Not seen: parameters in a service file. The outcome holds
// the password: not for printing.
bool conninfo_with_params(const char *conninfo, const struct conninfo_param *params,
                          size_t n, struct buf *out, struct err *e);

// The same with what every connection of this program should have: a client
// that notices within seconds that the other host is gone, instead of after
// the kernel's minutes or hours.
bool conninfo_with_defaults(const char *conninfo, struct buf *out, struct err *e);

// What the string, else the environment, says about a keyword. The caller
// frees it; NULL when neither does or the string is unreadable.
char *conninfo_get(const char *conninfo, const char *key);

// How many hosts it names; at least 1.
size_t conninfo_count_hosts(const char *conninfo);

// Appends the string in key=value form with its list of hosts (and their
// addresses and ports) begun at the `by`-th one: libpq starts every attempt at
// the first, and never gets beyond a host that accepts and then says nothing.
bool conninfo_rotate_hosts(const char *conninfo, size_t by, struct buf *out,
                           struct err *e);

#endif
