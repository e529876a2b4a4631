// SPDX-License-Identifier: Apache-2.0
//
// Finds the statements in a text of SQL, by the rules of PostgreSQL's lexer
// as far as they decide where a statement ends. The server gets files whole
// and needs none of this; it is here to say on which line something failed
// when the server does not, and to refuse what must not be in a schema file.

#ifndef PGKIN_LIB_MIGRATE_SCAN_H
#define PGKIN_LIB_MIGRATE_SCAN_H

#include <stdbool.h>
#include <stddef.h>

struct sql_scan {
    const char *text; // borrowed
    size_t size;
    size_t pos;
};

struct sql_statement {
    size_t start; // its first byte that is not space or comment
    size_t end;   // after its last one, without the semicolon
};

// Starts as {text, size, 0}. False when there is no further statement. Empty
// statements are passed over.
bool sql_scan_next(struct sql_scan *s, struct sql_statement *out);

// The line, from 1, of a byte offset.
int sql_line_at(const char *text, size_t size, size_t offset);

// The byte offset of the server's position: characters of UTF-8, from 1.
size_t sql_offset_of_position(const char *text, size_t size, int position);

#endif
