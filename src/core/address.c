// SPDX-License-Identifier: Apache-2.0

#include "core/address.h"

#include <arpa/inet.h>
#include <netinet/in.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#define ARRAY_SIZE(a) (sizeof(a) / sizeof(a)[0])
#define NO_EMBEDDING  16

// The special-purpose registries of IANA, and one address of the public space
// that a cloud uses for its metadata.
struct special {
    unsigned char bytes[16];
    unsigned prefix;
    const char *what; // NULL: only look at the IPv4 address in it
    size_t embedded;  // where that begins; NO_EMBEDDING: there is none
};

#define NET4(a, b, c, d, len, text)                                                      \
    {                                                                                    \
        .bytes = {a, b, c, d}, .prefix = (len), .what = (text), .embedded = NO_EMBEDDING \
    }

static const struct special specials4[] = {
    NET4(0, 0, 0, 0, 8, "an unspecified address"),
    NET4(10, 0, 0, 0, 8, "a private address"),
    NET4(100, 64, 0, 0, 10, "an address shared by a provider's customers"),
    NET4(127, 0, 0, 0, 8, "a loopback address"),
    NET4(168, 63, 129, 16, 32, "a cloud's metadata address"),
    NET4(169, 254, 0, 0, 16, "a link-local address"),
    NET4(172, 16, 0, 0, 12, "a private address"),
    NET4(192, 0, 0, 0, 24, "a special-purpose address"),
    NET4(192, 0, 2, 0, 24, "a documentation address"),
    NET4(192, 88, 99, 0, 24, "a special-purpose address"),
    NET4(192, 168, 0, 0, 16, "a private address"),
    NET4(198, 18, 0, 0, 15, "a benchmarking address"),
    NET4(198, 51, 100, 0, 24, "a documentation address"),
    NET4(203, 0, 113, 0, 24, "a documentation address"),
    NET4(224, 0, 0, 0, 4, "a multicast address"),
    NET4(240, 0, 0, 0, 4, "a reserved address"),
};

#define NET6(len, text, at, ...)                                                         \
    {                                                                                    \
        .bytes = {__VA_ARGS__}, .prefix = (len), .what = (text), .embedded = (at)        \
    }

// The first that fits decides.
static const struct special specials6[] = {
    NET6(128, "an unspecified address", NO_EMBEDDING, 0),
    NET6(128, "a loopback address", NO_EMBEDDING, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0,
         0, 0, 1),
    NET6(96, NULL, 12, 0),                                        // IPv4-compatible
    NET6(96, NULL, 12, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0xff, 0xff), // IPv4-mapped
    NET6(96, NULL, 12, 0, 0, 0, 0, 0, 0, 0, 0, 0xff, 0xff),       // IPv4-translated
    NET6(96, NULL, 12, 0, 0x64, 0xff, 0x9b),                      // NAT64
    NET6(48, "a local NAT64 address", NO_EMBEDDING, 0, 0x64, 0xff, 0x9b, 0, 1),
    NET6(8, "a reserved address", NO_EMBEDDING, 0),
    NET6(64, "a discard-only address", NO_EMBEDDING, 1),
    NET6(32, "a Teredo address", NO_EMBEDDING, 0x20, 0x01),
    NET6(23, "a special-purpose address", NO_EMBEDDING, 0x20, 0x01),
    NET6(32, "a documentation address", NO_EMBEDDING, 0x20, 0x01, 0x0d, 0xb8),
    NET6(16, NULL, 2, 0x20, 0x02), // 6to4
    NET6(20, "a documentation address", NO_EMBEDDING, 0x3f, 0xff),
    NET6(16, "a special-purpose address", NO_EMBEDDING, 0x5f),
    NET6(7, "a private address", NO_EMBEDDING, 0xfc),
    NET6(10, "a link-local address", NO_EMBEDDING, 0xfe, 0x80),
    NET6(10, "a private address", NO_EMBEDDING, 0xfe, 0xc0),
    NET6(8, "a multicast address", NO_EMBEDDING, 0xff),
};

static bool in_net(const unsigned char *address, const unsigned char *net,
                   unsigned prefix)
{
    if (memcmp(address, net, prefix / 8) != 0)
        return false;
    unsigned rest = prefix % 8;
    return rest == 0 || (address[prefix / 8] ^ net[prefix / 8]) >> (8 - rest) == 0;
}

static const struct special *find_special(int family, const unsigned char *address)
{
    const struct special *list = family == AF_INET ? specials4 : specials6;
    size_t n = family == AF_INET ? ARRAY_SIZE(specials4) : ARRAY_SIZE(specials6);
    for (size_t i = 0; i < n; i++) {
        if (in_net(address, list[i].bytes, list[i].prefix))
            return &list[i];
    }
    return NULL;
}

static bool is_allowed(int family, const unsigned char *address,
                       const struct address_net *allow, size_t n)
{
    for (size_t i = 0; i < n; i++) {
        if (allow[i].family == family && in_net(address, allow[i].bytes, allow[i].prefix))
            return true;
    }
    return false;
}

// The bytes of an IP address; NULL for another family.
static const unsigned char *address_bytes(const struct sockaddr *sa)
{
    if (sa->sa_family == AF_INET)
        return (const void *)&((const struct sockaddr_in *)(const void *)sa)->sin_addr;
    if (sa->sa_family == AF_INET6)
        return (const void *)&((const struct sockaddr_in6 *)(const void *)sa)->sin6_addr;
    return NULL;
}

const char *address_refusal(const struct sockaddr *sa, const struct address_net *allow,
                            size_t n)
{
    int family = sa->sa_family;
    const unsigned char *bytes = address_bytes(sa);
    if (bytes == NULL)
        return "not an internet address";
    if (is_allowed(family, bytes, allow, n))
        return NULL;
    const struct special *s = find_special(family, bytes);
    if (s != NULL && s->embedded != NO_EMBEDDING) {
        bytes += s->embedded;
        if (is_allowed(AF_INET, bytes, allow, n))
            return NULL;
        s = find_special(AF_INET, bytes);
    }
    return s != NULL ? s->what : NULL;
}

bool address_parse(const char *text, struct sockaddr_storage *out)
{
    *out = (struct sockaddr_storage){0};
    struct sockaddr_in *v4 = (void *)out;
    struct sockaddr_in6 *v6 = (void *)out;
    if (inet_pton(AF_INET, text, &v4->sin_addr) == 1)
        out->ss_family = AF_INET;
    else if (inet_pton(AF_INET6, text, &v6->sin6_addr) == 1)
        out->ss_family = AF_INET6;
    else
        return false;
    return true;
}

const char *address_text(const struct sockaddr *sa, char out[ADDRESS_TEXT_MAX])
{
    const unsigned char *bytes = address_bytes(sa);
    if (bytes == NULL || inet_ntop(sa->sa_family, bytes, out, ADDRESS_TEXT_MAX) == NULL)
        snprintf(out, ADDRESS_TEXT_MAX, "?");
    return out;
}

static bool parse_prefix(const char *text, unsigned max, unsigned *out)
{
    size_t len = strlen(text);
    if (len < 1 || len > 3 || strspn(text, "0123456789") != len)
        return false;
    *out = (unsigned)strtoul(text, NULL, 10);
    return *out <= max;
}

bool address_parse_net(const char *text, struct address_net *out, struct err *e)
{
    char address[ADDRESS_TEXT_MAX];
    size_t len = strcspn(text, "/");
    struct sockaddr_storage sa;
    if (len >= sizeof address)
        return err_set(e, "\"%.100s\" is not a network", text);
    memcpy(address, text, len);
    address[len] = '\0';
    if (!address_parse(address, &sa))
        return err_set(e, "\"%.100s\" is not a network", text);

    *out = (struct address_net){.family = sa.ss_family};
    size_t size = out->family == AF_INET ? 4 : 16;
    memcpy(out->bytes, address_bytes((const struct sockaddr *)&sa), size);
    out->prefix = (unsigned)size * 8;
    if (text[len] == '/' && !parse_prefix(text + len + 1, out->prefix, &out->prefix))
        return err_set(e, "\"%.100s\" has no valid prefix length", text);
    for (size_t bit = out->prefix; bit < size * 8; bit++) {
        if ((out->bytes[bit / 8] >> (7 - bit % 8) & 1) != 0)
            return err_set(e, "\"%.100s\" has bits set behind its prefix", text);
    }
    return true;
}
