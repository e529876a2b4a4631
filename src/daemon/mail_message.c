// SPDX-License-Identifier: Apache-2.0

#include "daemon/mail_message.h"

#include <ctype.h>
#include <stdio.h>
#include <string.h>

#include "daemon/mail_encode.h"
#include "lib/sha256.h"

#define ADDRESS_MAX    254 // RFC 5321
#define NAME_MAX_BYTES 500
#define SUBJECT_MAX    4000
#define MESSAGE_ID_MAX 200

// "Name <a@example.org>", taken apart.
struct address {
    const char *name; // "": none
    const char *spec; // a@example.org
};

struct addresses {
    struct address *list;
    size_t count;
};

// -------------------------------------------------------------------- fields

// No line can be ended from within a header, nor a text by a NUL.
static bool check_header_text(const char *field, const char *text, size_t len,
                              struct err *e)
{
    for (size_t i = 0; i < len; i++) {
        unsigned char c = (unsigned char)text[i];
        if ((c < 0x20 && c != '\t') || c == 0x7f)
            return err_set(e, "%s has a control character in it", field);
    }
    return true;
}

// NULL without an error: not there. `e` is left alone then.
static bool get_text(const json_t *payload, const char *field, size_t max,
                     const char **out, size_t *len, struct err *e)
{
    const json_t *value = json_object_get(payload, field);
    *out = NULL;
    *len = 0;
    if (value == NULL || json_is_null(value))
        return true;
    if (!json_is_string(value))
        return err_set(e, "%s is not a text", field);
    *out = json_string_value(value);
    *len = json_string_length(value);
    if (max > 0 && *len > max)
        return err_set(e, "%s is longer than %zu bytes", field, max);
    return true;
}

// ----------------------------------------------------------------- addresses

static bool is_atom_char(unsigned char c)
{
    return isalnum(c) || strchr("!#$%&'*+-/=?^_`{|}~", c) != NULL;
}

// Words with dots between them: what mail systems agree on. Quoted local parts
// and address literals are left out on purpose.
static bool is_dotted(const char *s, size_t len)
{
    if (len == 0 || s[0] == '.' || s[len - 1] == '.')
        return false;
    for (size_t i = 0; i < len; i++) {
        if (s[i] == '.' ? s[i - 1] == '.' : !is_atom_char((unsigned char)s[i]))
            return false;
    }
    return true;
}

static bool is_domain(const char *s, size_t len)
{
    for (size_t i = 0; i < len; i++) {
        if (!isalnum((unsigned char)s[i]) && s[i] != '-' && s[i] != '.')
            return false;
    }
    return is_dotted(s, len) && s[0] != '-';
}

static bool check_spec(const char *field, const char *spec, struct err *e)
{
    size_t len = strlen(spec);
    const char *at = strrchr(spec, '@');
    if (at != NULL && len <= ADDRESS_MAX && is_dotted(spec, (size_t)(at - spec)) &&
        is_domain(at + 1, len - (size_t)(at - spec) - 1))
        return true;
    return err_set(e, "%s: \"%.80s\" is not an e-mail address", field, spec);
}

static char *trimmed(struct arena *a, const char *s, size_t len)
{
    while (len > 0 && (*s == ' ' || *s == '\t')) {
        s++;
        len--;
    }
    while (len > 0 && (s[len - 1] == ' ' || s[len - 1] == '\t'))
        len--;
    return arena_strndup(a, s, len);
}

// A quoted name without its quotes.
static char *unquoted(struct arena *a, char *name)
{
    size_t len = strlen(name);
    if (len < 2 || name[0] != '"' || name[len - 1] != '"')
        return name;
    char *out = arena_alloc(a, len);
    size_t n = 0;
    for (size_t i = 1; i < len - 1; i++) {
        if (name[i] == '\\' && i + 1 < len - 1)
            i++;
        out[n++] = name[i];
    }
    out[n] = '\0';
    return out;
}

static bool parse_address(const char *field, const char *text, size_t len,
                          struct address *out, struct arena *a, struct err *e)
{
    char *whole = trimmed(a, text, len);
    char *open = strrchr(whole, '<');
    out->name = "";
    out->spec = whole;
    if (open != NULL) {
        char *close = strchr(open, '>');
        if (close == NULL || close[1] != '\0')
            return err_set(e, "%s: \"%.80s\" is not an e-mail address", field, whole);
        out->name = unquoted(a, trimmed(a, whole, (size_t)(open - whole)));
        out->spec = trimmed(a, open + 1, (size_t)(close - open) - 1);
        if (strlen(out->name) > NAME_MAX_BYTES)
            return err_set(e, "%s: a name is longer than %d bytes", field,
                           NAME_MAX_BYTES);
    }
    return check_spec(field, out->spec, e);
}

// Where this address ends: at a comma that is in no quotes.
static size_t address_length(const char *s, size_t len)
{
    bool quoted = false;
    for (size_t i = 0; i < len; i++) {
        if (quoted && s[i] == '\\')
            i++;
        else if (s[i] == '"')
            quoted = !quoted;
        else if (s[i] == ',' && !quoted)
            return i;
    }
    return len;
}

static bool add_addresses(const char *field, const json_t *value, struct addresses *out,
                          struct arena *a, struct err *e)
{
    const char *s = json_string_value(value);
    size_t len = json_string_length(value);
    if (s == NULL)
        return err_set(e, "%s is neither a text nor an array of texts", field);
    if (!check_header_text(field, s, len, e))
        return false;
    for (;;) {
        size_t n = address_length(s, len);
        if (out->count == MAIL_RECIPIENTS_MAX)
            return err_set(e, "%s has more than %d addresses", field,
                           MAIL_RECIPIENTS_MAX);
        if (!parse_address(field, s, n, &out->list[out->count], a, e))
            return false;
        out->count++;
        if (n == len)
            return true;
        s += n + 1;
        len -= n + 1;
    }
}

static bool get_addresses(const json_t *payload, const char *field, struct addresses *out,
                          struct arena *a, struct err *e)
{
    const json_t *value = json_object_get(payload, field);
    *out = (struct addresses){
        .list = arena_calloc(a, MAIL_RECIPIENTS_MAX, sizeof(struct address))};
    if (value == NULL || json_is_null(value))
        return true;
    if (!json_is_array(value))
        return add_addresses(field, value, out, a, e);
    for (size_t i = 0; i < json_array_size(value); i++) {
        if (!add_addresses(field, json_array_get(value, i), out, a, e))
            return false;
    }
    return true;
}

// ---------------------------------------------------------------- the message

static void add_address_header(struct buf *out, const char *name,
                               const struct addresses *list)
{
    if (list->count == 0)
        return;
    buf_addf(out, "%s: ", name);
    for (size_t i = 0; i < list->count; i++) {
        // A line each: no limit on their number is met.
        if (i > 0)
            buf_adds(out, ",\r\n ");
        if (list->list[i].name[0] != '\0') {
            mail_encode_phrase(out, list->list[i].name);
            buf_addf(out, " <%s>", list->list[i].spec);
        } else {
            buf_adds(out, list->list[i].spec);
        }
    }
    buf_adds(out, "\r\n");
}

// Not strftime: that would speak the language of the locale.
static void add_date(struct buf *out, time_t now)
{
    static const char days[] = "SunMonTueWedThuFriSat";
    static const char months[] = "JanFebMarAprMayJunJulAugSepOctNovDec";
    struct tm t;
    gmtime_r(&now, &t);
    buf_addf(out, "Date: %.3s, %02d %.3s %d %02d:%02d:%02d +0000\r\n",
             days + 3 * (size_t)t.tm_wday, t.tm_mday, months + 3 * (size_t)t.tm_mon,
             t.tm_year + 1900, t.tm_hour, t.tm_min, t.tm_sec);
}

// The id that the payload gives, else the key, completed to what is one.
static bool make_message_id(struct mail_message *m, const json_t *payload,
                            const char *key, const char *from, struct arena *a,
                            struct err *e)
{
    const json_t *value = json_object_get(payload, "message_id");
    const char *id = key;
    if (json_is_integer(value))
        id = arena_printf(a, "%lld", (long long)json_integer_value(value));
    else if (json_is_string(value) && json_string_length(value) > 0)
        id = json_string_value(value);
    else if (value != NULL && !json_is_null(value) && !json_is_string(value))
        return err_set(e, "message_id is not a text");
    size_t len = strlen(id);
    if (len > 2 && id[0] == '<' && id[len - 1] == '>')
        id = arena_strndup(a, id + 1, len - 2);
    if (strchr(id, '@') == NULL)
        id = arena_printf(a, "%s%s", id, strrchr(from, '@'));
    const char *at = strrchr(id, '@');
    len = strlen(id);
    if (len > MESSAGE_ID_MAX || !is_dotted(id, (size_t)(at - id)) ||
        !is_dotted(at + 1, strlen(at + 1)) ||
        (json_is_string(value) &&
         strlen(json_string_value(value)) != json_string_length(value)))
        return err_set(e, "message_id \"%.80s\" cannot be that of a message", id);
    m->message_id = arena_printf(a, "<%s>", id);
    return true;
}

static void add_part(struct buf *out, const char *type, const char *text, size_t len)
{
    buf_addf(out, "Content-Type: %s; charset=utf-8\r\n", type);
    mail_encode_body(out, text, len);
}

// A line that cannot be in the parts: to write it, one would have to know it.
static void add_alternatives(struct buf *out, const char *key, const char *text,
                             size_t text_len, const char *html, size_t html_len)
{
    char boundary[SHA256_HEX_SIZE];
    struct buf all = BUF_INIT;
    buf_adds(&all, key);
    buf_add(&all, text, text_len);
    buf_add(&all, html, html_len);
    sha256_hex(all.data, all.len, boundary);
    buf_clear(&all);
    buf_addf(out, "Content-Type: multipart/alternative; boundary=\"=_%.40s\"\r\n\r\n",
             boundary);
    buf_addf(out, "--=_%.40s\r\n", boundary);
    add_part(out, "text/plain", text, text_len);
    buf_addf(out, "\r\n--=_%.40s\r\n", boundary);
    add_part(out, "text/html", html, html_len);
    buf_addf(out, "\r\n--=_%.40s--\r\n", boundary);
}

static bool add_body(struct buf *out, const json_t *payload, const char *key,
                     struct err *e)
{
    const char *text, *html;
    size_t text_len, html_len;
    if (!get_text(payload, "text", 0, &text, &text_len, e) ||
        !get_text(payload, "html", 0, &html, &html_len, e))
        return false;
    if (text != NULL && html != NULL)
        add_alternatives(out, key, text, text_len, html, html_len);
    else if (html != NULL)
        add_part(out, "text/html", html, html_len);
    else
        add_part(out, "text/plain", text != NULL ? text : "", text_len);
    return true;
}

static void set_envelope(struct mail_message *m, const char *from,
                         const struct addresses *const *lists, size_t count,
                         struct arena *a)
{
    size_t n = 0;
    for (size_t i = 0; i < count; i++)
        n += lists[i]->count;
    const char **recipients = arena_calloc(a, n + 1, sizeof *recipients);
    n = 0;
    for (size_t i = 0; i < count; i++) {
        for (size_t k = 0; k < lists[i]->count; k++)
            recipients[n++] = arena_printf(a, "<%s>", lists[i]->list[k].spec);
    }
    m->sender = arena_printf(a, "<%s>", from);
    m->recipients = recipients;
    m->recipient_count = n;
}

static bool add_subject(struct buf *out, const json_t *payload, struct err *e)
{
    const char *subject;
    size_t len;
    if (!get_text(payload, "subject", SUBJECT_MAX, &subject, &len, e) ||
        (subject != NULL && !check_header_text("subject", subject, len, e)))
        return false;
    buf_adds(out, "Subject: ");
    mail_encode_text(out, subject != NULL ? subject : "", strlen("Subject: "));
    buf_adds(out, "\r\n");
    return true;
}

bool mail_message_build(struct mail_message *m, const json_t *payload, const char *key,
                        time_t now, struct arena *a, struct err *e)
{
    struct addresses from, to, cc, bcc, reply_to;
    *m = (struct mail_message){0};
    if (!get_addresses(payload, "from_address", &from, a, e) ||
        !get_addresses(payload, "to_address", &to, a, e) ||
        !get_addresses(payload, "cc_address", &cc, a, e) ||
        !get_addresses(payload, "bcc_address", &bcc, a, e) ||
        !get_addresses(payload, "reply_to", &reply_to, a, e))
        return false;
    if (from.count != 1)
        return err_set(e, "from_address %s",
                       from.count == 0 ? "is missing" : "has several addresses");
    if (to.count + cc.count + bcc.count == 0)
        return err_set(e, "to_address is missing");
    if (to.count + cc.count + bcc.count > MAIL_RECIPIENTS_MAX)
        return err_set(e, "there are more than %d recipients", MAIL_RECIPIENTS_MAX);
    if (!make_message_id(m, payload, key, from.list[0].spec, a, e))
        return false;
    set_envelope(m, from.list[0].spec, (const struct addresses *[]){&to, &cc, &bcc}, 3,
                 a);
    struct buf *out = &m->data;
    add_date(out, now);
    add_address_header(out, "From", &from);
    add_address_header(out, "To", &to);
    add_address_header(out, "Cc", &cc);
    add_address_header(out, "Reply-To", &reply_to);
    if (to.count + cc.count == 0)
        buf_adds(out, "To: undisclosed-recipients:;\r\n");
    buf_addf(out, "Message-ID: %s\r\n", m->message_id);
    if (!add_subject(out, payload, e))
        return false;
    buf_adds(out, "MIME-Version: 1.0\r\n");
    return add_body(out, payload, key, e);
}

void mail_message_clear(struct mail_message *m)
{
    buf_clear(&m->data);
}
