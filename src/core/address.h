// SPDX-License-Identifier: Apache-2.0
//
// Which network addresses a request may go to that somebody else has chosen:
// none that means this machine or its own network. What is judged is the very
// address a socket is about to connect to, so neither names nor odd spellings of
// numbers matter, and there is nothing to resolve twice.
//
// An IPv6 address that stands for an IPv4 address (mapped, 6to4, NAT64, ...) is
// judged as that one.

#ifndef PGKIN_CORE_ADDRESS_H
#define PGKIN_CORE_ADDRESS_H

#include <stdbool.h>
#include <stddef.h>
#include <sys/socket.h>

#include "core/err.h"

// A network, such as 10.0.0.0/8 or fd00::/8.
struct address_net {
    int family; // AF_INET or AF_INET6
    unsigned char bytes[16];
    unsigned prefix;
};

// Reads a network; an address alone is a network of one. Bits behind the prefix
// must be zero.
bool address_parse_net(const char *text, struct address_net *out, struct err *e);

// Reads an address in its usual spelling, with port 0. False when it is not one.
bool address_parse(const char *text, struct sockaddr_storage *out);

// Why a request may not go there, as in "a loopback address"; NULL when it may:
// the address is public, or in one of the `n` networks of `allow`.
const char *address_refusal(const struct sockaddr *sa, const struct address_net *allow,
                            size_t n);

// The address without its port; "?" for another family. Returns `out`.
#define ADDRESS_TEXT_MAX 64
const char *address_text(const struct sockaddr *sa, char out[ADDRESS_TEXT_MAX]);

#endif
