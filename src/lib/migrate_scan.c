// SPDX-License-Identifier: Apache-2.0

#include "lib/migrate_scan.h"

#include <ctype.h>
#include <string.h>
#include <strings.h>

static bool is_word_start(unsigned char c)
{
    return isalpha(c) || c == '_' || c >= 0x80;
}

static bool is_word(unsigned char c)
{
    return is_word_start(c) || isdigit(c) || c == '$';
}

static bool looking_at(const struct sql_scan *s, const char *what)
{
    size_t len = strlen(what);
    return s->size - s->pos >= len && memcmp(s->text + s->pos, what, len) == 0;
}

static void skip_line(struct sql_scan *s)
{
    while (s->pos < s->size && s->text[s->pos] != '\n')
        s->pos++;
}

static void skip_block_comment(struct sql_scan *s)
{
    int depth = 0;
    while (s->pos < s->size) {
        if (looking_at(s, "/*")) {
            depth++;
            s->pos += 2;
        } else if (looking_at(s, "*/")) {
            s->pos += 2;
            if (--depth == 0)
                return;
        } else {
            s->pos++;
        }
    }
}

static void skip_quoted(struct sql_scan *s, char quote, bool backslashes)
{
    s->pos++;
    while (s->pos < s->size) {
        char c = s->text[s->pos++];
        bool doubled = c == quote && s->pos < s->size && s->text[s->pos] == quote;
        if (c == quote && !doubled)
            return;
        if (doubled || (c == '\\' && backslashes && s->pos < s->size))
            s->pos++;
    }
}

// At a `$`. A parameter such as $1 opens nothing.
static void skip_dollar_quoted(struct sql_scan *s)
{
    size_t end = s->pos + 1;
    if (end < s->size && is_word_start((unsigned char)s->text[end]))
        while (end < s->size && s->text[end] != '$' &&
               is_word((unsigned char)s->text[end]))
            end++;
    if (end >= s->size || s->text[end] != '$') {
        s->pos++;
        return;
    }
    const char *tag = s->text + s->pos;
    size_t tag_len = end + 1 - s->pos;
    const char *body = tag + tag_len;
    const char *close = memmem(body, s->size - (end + 1), tag, tag_len);
    s->pos = close != NULL ? (size_t)(close - s->text) + tag_len : s->size;
}

// What of a statement decides whether a semicolon ends it: parentheses (of a
// rule's actions) and the body of a function between BEGIN ATOMIC and END. As
// in psql, BEGIN counts only in CREATE [OR REPLACE] FUNCTION or PROCEDURE.
struct nesting {
    int parens;
    int blocks;
    int words;
    char initials[4];
};

static bool creates_routine(const struct nesting *n)
{
    const char *i = n->initials;
    return i[0] == 'c' && (i[1] == 'f' || i[1] == 'p' ||
                           (i[1] == 'o' && i[2] == 'r' && (i[3] == 'f' || i[3] == 'p')));
}

static void take_word(struct nesting *n, const char *word, size_t len)
{
    if (n->words < (int)sizeof n->initials)
        n->initials[n->words] = (char)tolower((unsigned char)word[0]);
    n->words++;
    if (n->parens != 0 || !creates_routine(n))
        return;
    bool begins = len == 5 && strncasecmp(word, "begin", len) == 0;
    bool cases = len == 4 && strncasecmp(word, "case", len) == 0; // it has an END too
    bool ends = len == 3 && strncasecmp(word, "end", len) == 0;
    if (begins || (cases && n->blocks > 0))
        n->blocks++;
    else if (ends && n->blocks > 0)
        n->blocks--;
}

static void skip_word(struct sql_scan *s, struct nesting *n)
{
    const char *word = s->text + s->pos;
    size_t len = 0;
    while (s->pos < s->size && is_word((unsigned char)s->text[s->pos])) {
        s->pos++;
        len++;
    }
    // E'…' is the one kind of string in which a backslash escapes.
    if (len == 1 && (word[0] == 'e' || word[0] == 'E') && s->pos < s->size &&
        s->text[s->pos] == '\'')
        skip_quoted(s, '\'', true);
    else
        take_word(n, word, len);
}

// Space and comments; false when there were none.
static bool skip_blank(struct sql_scan *s)
{
    if (isspace((unsigned char)s->text[s->pos]))
        s->pos++;
    else if (looking_at(s, "--"))
        skip_line(s);
    else if (looking_at(s, "/*"))
        skip_block_comment(s);
    else
        return false;
    return true;
}

static void skip_token(struct sql_scan *s, struct nesting *n)
{
    unsigned char c = (unsigned char)s->text[s->pos];
    if (c == '\'' || c == '"')
        skip_quoted(s, (char)c, false);
    else if (c == '$')
        skip_dollar_quoted(s);
    else if (is_word_start(c))
        skip_word(s, n);
    else {
        n->parens += c == '(' ? 1 : c == ')' && n->parens > 0 ? -1 : 0;
        s->pos++;
    }
}

bool sql_scan_next(struct sql_scan *s, struct sql_statement *out)
{
    struct nesting n = {0};
    bool found = false;
    while (s->pos < s->size) {
        if (skip_blank(s))
            continue;
        if (s->text[s->pos] == ';' && n.parens == 0 && n.blocks == 0) {
            s->pos++;
            if (found)
                return true;
            continue;
        }
        if (!found)
            out->start = s->pos;
        found = true;
        skip_token(s, &n);
        out->end = s->pos;
    }
    return found;
}

int sql_line_at(const char *text, size_t size, size_t offset)
{
    int line = 1;
    for (size_t i = 0; i < offset && i < size; i++)
        if (text[i] == '\n')
            line++;
    return line;
}

size_t sql_offset_of_position(const char *text, size_t size, int position)
{
    size_t offset = 0;
    for (int i = 1; i < position && offset < size; i++) {
        offset++;
        while (offset < size && ((unsigned char)text[offset] & 0xc0) == 0x80)
            offset++;
    }
    return offset;
}
