// SPDX-License-Identifier: Apache-2.0
//
// The checks of `pgkin doctor`. Most are a statement of sql/queries that gives a
// level, a text and what to do about it; a new one is a file and a row in the
// table of doctor.c.

#ifndef PGKIN_CLI_DOCTOR_H
#define PGKIN_CLI_DOCTOR_H

#include <libpq-fe.h>
#include <stddef.h>

enum doctor_level {
    DOCTOR_OK,
    DOCTOR_WARN, // should be looked at
    DOCTOR_FAIL, // is broken
};

struct doctor_finding {
    const char *check; // its name
    enum doctor_level level;
    char *text;
    char *hint; // NULL when all is well
};

struct doctor_report {
    struct doctor_finding *findings;
    size_t count;
    enum doctor_level worst;
};

// "ok", "warn" or "fail".
const char *doctor_level_name(enum doctor_level level);

// Runs every check that can be run; what cannot is a finding, too. The caller
// clears the report.
void doctor_examine(PGconn *conn, struct doctor_report *rep);
void doctor_report_clear(struct doctor_report *rep);

#endif
