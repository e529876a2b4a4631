// SPDX-License-Identifier: Apache-2.0
//
// What may stand in a request. libcurl sends what it is given; a line break in a
// header would be another header, or another request.

#include <curl/curl.h>
#include <string.h>
#include <strings.h>

#include "core/http.h"

#define ARRAY_SIZE(a) (sizeof(a) / sizeof(a)[0])

// How the message is framed, where it goes and what the connection does is
// libcurl's business.
static const char *const reserved[] = {
    "connection", "content-length",    "expect", "host", "keep-alive", "te", "trailer",
    "upgrade",    "transfer-encoding",
};

static bool is_token(const char *s)
{
    static const char allowed[] = "!#$%&'*+-.^_`|~0123456789"
                                  "ABCDEFGHIJKLMNOPQRSTUVWXYZ"
                                  "abcdefghijklmnopqrstuvwxyz";
    return s[0] != '\0' && s[strspn(s, allowed)] == '\0';
}

bool http_check_header(const char *name, const char *value, struct err *e)
{
    if (!is_token(name))
        return err_set(e, "\"%.60s\" is not a name for a header", name);
    bool proxy = strncasecmp(name, "proxy-", strlen("proxy-")) == 0;
    for (size_t i = 0; i < ARRAY_SIZE(reserved); i++) {
        if (proxy || strcasecmp(name, reserved[i]) == 0)
            return err_set(e, "the header %s cannot be set", name);
    }
    // The value is not shown: it may be a secret.
    for (const char *p = value; *p != '\0'; p++) {
        if (((unsigned char)*p < ' ' && *p != '\t') || *p == 0x7f)
            return err_set(e, "the value of header %s has a control character", name);
    }
    return true;
}

static bool is_web_scheme(CURLU *u)
{
    char *scheme = NULL;
    bool ok = curl_url_get(u, CURLUPART_SCHEME, &scheme, 0) == CURLUE_OK &&
              (strcmp(scheme, "http") == 0 || strcmp(scheme, "https") == 0);
    curl_free(scheme);
    return ok;
}

bool http_check_url(const char *url, struct err *e)
{
    for (const char *p = url; *p != '\0'; p++) {
        if ((unsigned char)*p <= ' ' || (unsigned char)*p >= 0x7f || *p == '\\')
            return err_set(e, "the url has a character that must be percent-encoded");
    }
    // libcurl would guess a scheme, and take one slash for two.
    if (strncasecmp(url, "http://", 7) != 0 && strncasecmp(url, "https://", 8) != 0)
        return err_set(e, "the url must begin with http:// or https://");
    if (strchr("/?#:", strchr(url, '/')[2]) != NULL)
        return err_set(e, "the url has no host");
    CURLU *u = curl_url();
    CURLUcode code = curl_url_set(u, CURLUPART_URL, url, CURLU_DISALLOW_USER);
    bool ok = true;
    if (code == CURLUE_USER_NOT_ALLOWED)
        ok = err_set(e, "the url must not have a user or password in it");
    else if (code != CURLUE_OK || !is_web_scheme(u))
        ok = err_set(e, "the url is not valid");
    curl_url_cleanup(u);
    return ok;
}
