// SPDX-License-Identifier: Apache-2.0

#include "cli/text.h"

#include <locale.h>
#include <stdint.h>
#include <stdlib.h>
#include <string.h>
#include <sys/ioctl.h>
#include <unistd.h>
#include <wchar.h>

#include "core/err.h"

#define REPLACEMENT 0xfffd
#define ELLIPSIS    "…"

// The next character of `s`, which is not empty; 0xfffd for what is no UTF-8.
// Returns how many bytes it has.
static size_t decode(const char *s, uint32_t *out)
{
    static const uint32_t smallest[] = {0, 0, 0x80, 0x800, 0x10000};
    const unsigned char *u = (const unsigned char *)s;
    size_t len = u[0] < 0x80           ? 1
                 : (u[0] >> 5) == 0x06 ? 2
                 : (u[0] >> 4) == 0x0e ? 3
                 : (u[0] >> 3) == 0x1e ? 4
                                       : 0;
    uint32_t c = len == 1 ? u[0] : len == 0 ? 0 : u[0] & (0x7fu >> len);
    for (size_t i = 1; i < len; i++) {
        if ((u[i] & 0xc0) != 0x80) {
            len = 0;
            break;
        }
        c = c << 6 | (u[i] & 0x3f);
    }
    if (len == 0 || c < smallest[len] || c > 0x10ffff || (c >= 0xd800 && c <= 0xdfff)) {
        *out = REPLACEMENT;
        return 1;
    }
    *out = c;
    return len;
}

// Control characters, and those that turn the reading direction.
static bool is_harmful(uint32_t c)
{
    return c < 0x20 || (c >= 0x7f && c <= 0x9f) || c == 0x200e || c == 0x200f ||
           (c >= 0x2028 && c <= 0x202e) || (c >= 0x2066 && c <= 0x2069) || c == 0xfeff;
}

static void add_char(struct buf *out, const char *s, size_t len, uint32_t c)
{
    if (c == '\n' || c == '\t' || c == '\r')
        buf_addc(out, ' ');
    else if (is_harmful(c) || c == REPLACEMENT)
        buf_adds(out, "\xef\xbf\xbd");
    else
        buf_add(out, s, len);
}

void text_add_clean(struct buf *out, const char *s)
{
    for (size_t len; *s != '\0'; s += len) {
        uint32_t c;
        len = decode(s, &c);
        add_char(out, s, len, c);
    }
}

void text_add_lines(struct buf *out, const char *s, const char *indent)
{
    size_t left = strlen(s);
    while (left > 0 && s[left - 1] == '\n')
        left--;
    for (size_t len; left > 0; s += len, left -= len) {
        uint32_t c;
        len = decode(s, &c);
        if (c == '\n')
            buf_addf(out, "\n%s", indent);
        else
            add_char(out, s, len, c);
    }
}

// The C library knows widths, but only under a locale that has these characters.
// Zero when it has none: then every character counts as one column.
static locale_t begin_widths(locale_t *before)
{
    locale_t utf8 = newlocale(LC_CTYPE_MASK, "C.UTF-8", (locale_t)0);
    if (utf8 != (locale_t)0)
        *before = uselocale(utf8);
    return utf8;
}

static void end_widths(locale_t utf8, locale_t before)
{
    if (utf8 == (locale_t)0)
        return;
    uselocale(before);
    freelocale(utf8);
}

static size_t char_width(locale_t utf8, uint32_t c)
{
    int width = utf8 == (locale_t)0 ? 1 : wcwidth((wchar_t)c);
    return width < 0 ? 1 : (size_t)width;
}

// How many bytes of `s` fit into `most` columns; *width gets what these take.
static size_t measure(const char *s, size_t most, size_t *width)
{
    locale_t before = (locale_t)0;
    locale_t utf8 = begin_widths(&before);
    size_t bytes = 0;
    *width = 0;
    while (s[bytes] != '\0') {
        uint32_t c;
        size_t len = decode(s + bytes, &c);
        size_t columns = char_width(utf8, c);
        if (columns > most - *width)
            break;
        *width += columns;
        bytes += len;
    }
    end_widths(utf8, before);
    return bytes;
}

size_t text_width(const char *s)
{
    size_t width;
    measure(s, SIZE_MAX, &width);
    return width;
}

void text_add_cut(struct buf *out, const char *s, size_t width)
{
    size_t taken;
    size_t bytes = measure(s, width, &taken);
    if (s[bytes] == '\0') {
        buf_adds(out, s);
    } else if (width > 0) {
        bytes = measure(s, width - 1, &taken);
        buf_add(out, s, bytes);
        buf_adds(out, ELLIPSIS);
    }
}

static struct winsize terminal_size(void)
{
    struct winsize size = {0};
    if (!isatty(STDOUT_FILENO) || ioctl(STDOUT_FILENO, TIOCGWINSZ, &size) != 0)
        return (struct winsize){0};
    return size;
}

size_t text_terminal_width(void)
{
    return terminal_size().ws_col;
}

size_t text_terminal_height(void)
{
    return terminal_size().ws_row;
}

// ---------------------------------------------------------------- tables

void text_table_init(struct text_table *t, const struct text_column *columns,
                     size_t column_count)
{
    *t = (struct text_table){.columns = columns, .column_count = column_count};
}

void text_table_clear(struct text_table *t)
{
    for (size_t i = 0; i < t->cell_count; i++)
        free(t->cells[i]);
    free(t->cells);
    *t = (struct text_table){0};
}

void text_table_add(struct text_table *t, const char *s)
{
    struct buf clean = BUF_INIT;
    text_add_clean(&clean, s != NULL ? s : "");
    if (t->cell_count == t->cell_space) {
        t->cell_space = t->cell_space == 0 ? 64 : 2 * t->cell_space;
        t->cells = xrealloc(t->cells, t->cell_space * sizeof *t->cells);
    }
    t->cells[t->cell_count++] = clean.data != NULL ? buf_detach(&clean) : xstrdup("");
}

static void add_padding(struct buf *out, size_t n)
{
    while (n-- > 0)
        buf_addc(out, ' ');
}

// `cells` of one row; NULL for the titles. Nothing is padded at the end of a
// line.
static void print_row(const struct text_table *t, char *const *cells,
                      const size_t *widths, const char *indent, size_t width,
                      struct buf *out)
{
    struct buf line = BUF_INIT;
    size_t owed = 0;
    buf_adds(&line, indent);
    for (size_t i = 0; i < t->column_count; i++) {
        const char *cell = cells != NULL ? cells[i] : t->columns[i].title;
        size_t rest = widths[i] - text_width(cell);
        size_t before = t->columns[i].right ? rest : 0;
        if (cell[0] == '\0') {
            owed += rest + 2;
            continue;
        }
        add_padding(&line, owed + before);
        buf_adds(&line, cell);
        owed = rest - before + 2;
    }
    if (width > 0)
        text_add_cut(out, buf_str(&line), width);
    else
        buf_adds(out, buf_str(&line));
    buf_addc(out, '\n');
    buf_clear(&line);
}

void text_table_print(const struct text_table *t, const char *indent, size_t width,
                      struct buf *out)
{
    size_t *widths = xcalloc(t->column_count, sizeof *widths);
    if (t->cell_count % t->column_count != 0)
        BUG("a row of a table is not complete");
    for (size_t i = 0; i < t->column_count; i++)
        widths[i] = text_width(t->columns[i].title);
    for (size_t i = 0; i < t->cell_count; i++) {
        size_t w = text_width(t->cells[i]);
        if (w > widths[i % t->column_count])
            widths[i % t->column_count] = w;
    }
    print_row(t, NULL, widths, indent, width, out);
    for (size_t i = 0; i < t->cell_count; i += t->column_count)
        print_row(t, t->cells + i, widths, indent, width, out);
    free(widths);
}
