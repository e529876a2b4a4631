// SPDX-License-Identifier: Apache-2.0
//
// Text from the database on a terminal. Payloads and messages are anybody's:
// what could move the cursor, change colours or turn the reading direction is
// replaced, and what is no UTF-8 too. Widths are in columns, not in bytes.

#ifndef PGKIN_CLI_TEXT_H
#define PGKIN_CLI_TEXT_H

#include <stdbool.h>
#include <stddef.h>

#include "core/buf.h"

// Appends `s` fit to be shown on one line: line breaks and tabs become blanks.
void text_add_clean(struct buf *out, const char *s);

// The same for a text of several lines; each new line begins with `indent`.
void text_add_lines(struct buf *out, const char *s, const char *indent);

// How many columns a clean text takes.
size_t text_width(const char *s);

// Appends as much of a clean text as fits into so many columns; what was cut
// ends with an ellipsis.
void text_add_cut(struct buf *out, const char *s, size_t width);

// The width of the terminal that standard output is; 0 when it is none.
size_t text_terminal_width(void);
size_t text_terminal_height(void);

struct text_column {
    const char *title;
    bool right; // numbers
};

// Cells in columns, as wide as needed.
struct text_table {
    const struct text_column *columns; // borrowed
    size_t column_count;
    char **cells; // clean
    size_t cell_count;
    size_t cell_space;
};

void text_table_init(struct text_table *t, const struct text_column *columns,
                     size_t column_count);
void text_table_clear(struct text_table *t);

// The next cell, row by row. NULL is an empty one.
void text_table_add(struct text_table *t, const char *s);

// Appends a line of titles and a line per row, each begun with `indent`. `width`
// is the terminal's; 0: lines as long as they come.
void text_table_print(const struct text_table *t, const char *indent, size_t width,
                      struct buf *out);

#endif
