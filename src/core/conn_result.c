// SPDX-License-Identifier: Apache-2.0
//
// What the server and libpq say, made into errors and log lines.

#include <stdlib.h>
#include <string.h>

#include "core/conn_impl.h"

const char *conn_sqlstate(const PGresult *res)
{
    const char *s = res != NULL ? PQresultErrorField(res, PG_DIAG_SQLSTATE) : NULL;
    return s != NULL ? s : "";
}

bool conn_sqlstate_is(const PGresult *res, const char *sqlstate)
{
    return strcmp(conn_sqlstate(res), sqlstate) == 0;
}

// libpq puts one fact per line and its advice on lines that begin with a tab.
static void add_facts(struct buf *out, const char *text)
{
    while (*text != '\0') {
        size_t len = strcspn(text, "\n");
        if (len > 0 && text[0] != '\t') {
            if (out->len > 0)
                buf_adds(out, "; ");
            buf_add(out, text, len);
        }
        text += len;
        if (*text == '\n')
            text++;
    }
}

void conn_libpq_error(const PGconn *pg, struct err *e)
{
    struct buf text = BUF_INIT;
    add_facts(&text, PQerrorMessage(pg));
    err_set(e, "%s", text.len > 0 ? buf_str(&text) : "the connection failed");
    buf_clear(&text);
}

static void set_from_result(const PGresult *res, struct err *e)
{
    const char *primary = PQresultErrorField(res, PG_DIAG_MESSAGE_PRIMARY);
    const char *hint = PQresultErrorField(res, PG_DIAG_MESSAGE_HINT);
    if (primary != NULL) {
        err_set(e, "%s", primary);
    } else {
        struct buf text = BUF_INIT;
        add_facts(&text, PQresultErrorMessage(res));
        err_set(e, "%s", text.len > 0 ? buf_str(&text) : "the request failed");
        buf_clear(&text);
    }
    if (hint != NULL)
        err_hint(e, "%s", hint);
}

bool conn_result_check(const PGresult *res, struct err *e)
{
    switch (PQresultStatus(res)) {
    case PGRES_EMPTY_QUERY:
    case PGRES_COMMAND_OK:
    case PGRES_TUPLES_OK:
    case PGRES_SINGLE_TUPLE: return true;
    default: set_from_result(res, e); return false;
    }
}

void conn_note_fatal(struct conn *c, const PGresult *res)
{
    const char *severity = PQresultErrorField(res, PG_DIAG_SEVERITY_NONLOCALIZED);
    if (severity == NULL)
        return;
    if (strcmp(severity, "FATAL") == 0 || strcmp(severity, "PANIC") == 0)
        set_from_result(res, &c->fatal);
}

// ------------------------------------------------------------------- notices

void conn_notice_receive(void *arg, const PGresult *res)
{
    struct conn *c = arg;
    const char *severity = PQresultErrorField(res, PG_DIAG_SEVERITY_NONLOCALIZED);
    struct err text = ERR_INIT;
    set_from_result(res, &text);
    conn_note_fatal(c, res);
    struct notice *n = xcalloc(1, sizeof *n);
    n->severity = xstrdup(severity != NULL ? severity : "NOTICE");
    n->text = xstrdup(text.msg);
    STAILQ_INSERT_TAIL(&c->notices, n, link);
}

static void free_notice(struct notice *n)
{
    free(n->severity);
    free(n->text);
    free(n);
}

bool conn_notice_deliver(struct conn *c)
{
    uint64_t epoch = c->epoch;
    struct notice *n;
    while (c->epoch == epoch && (n = STAILQ_FIRST(&c->notices)) != NULL) {
        STAILQ_REMOVE_HEAD(&c->notices, link);
        if (c->opt.on_notice != NULL)
            c->opt.on_notice(c, n->severity, n->text, c->opt.arg);
        else
            log_debug(c->opt.log, "notice", LOG_S("conn", c->opt.name),
                      LOG_S("severity", n->severity), LOG_S("text", n->text));
        free_notice(n);
    }
    return c->epoch == epoch;
}

void conn_notice_clear(struct conn *c)
{
    struct notice *n;
    while ((n = STAILQ_FIRST(&c->notices)) != NULL) {
        STAILQ_REMOVE_HEAD(&c->notices, link);
        free_notice(n);
    }
}

int64_t conn_result_int64(const PGresult *res, int row, int col)
{
    if (row >= PQntuples(res) || PQgetisnull(res, row, col))
        return 0;
    return strtoll(PQgetvalue(res, row, col), NULL, 10);
}
