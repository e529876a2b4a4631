// SPDX-License-Identifier: Apache-2.0
//
// Errors as values. A function that can fail returns bool and takes a
// `struct err *` that it fills exactly when it returns false. Callers add
// context with err_wrap() on the way up; only the top of a unit of work logs
// or prints, once. The text is one line, lower case, without a final stop.
//
//     if (!cluster_start(c, e))
//         return err_wrap(e, "cannot start the private cluster");

#ifndef PGKIN_CORE_ERR_H
#define PGKIN_CORE_ERR_H

#include <stdbool.h>
#include <stddef.h>

enum err_code {
    ERR_NONE = 0,
    ERR_FAILED = 1, // the thing failed; exit status 1
    ERR_USAGE = 2,  // the caller asked wrongly; exit status 2
};

struct err {
    enum err_code code;
    char msg[1024];
    char hint[512]; // empty, or what the reader could do about it
};

#define ERR_INIT ((struct err){.code = ERR_NONE})

// Both set the message and return false, so that `return err_set(e, …)` works.
// A null `e` is allowed: the caller is not interested. Line breaks in the
// formatted text become spaces; text that does not fit is cut.
bool err_set(struct err *e, const char *fmt, ...) __attribute__((format(printf, 2, 3)));
bool err_usage(struct err *e, const char *fmt, ...) __attribute__((format(printf, 2, 3)));

// As err_set, with ": " and strerror(errnum) at the end.
bool err_errno(struct err *e, int errnum, const char *fmt, ...)
    __attribute__((format(printf, 3, 4)));

// Puts "context: " before the message. Returns false. Keeps code and hint.
bool err_wrap(struct err *e, const char *fmt, ...) __attribute__((format(printf, 2, 3)));

// Sets the hint. Returns false, so that it can end a chain.
bool err_hint(struct err *e, const char *fmt, ...) __attribute__((format(printf, 2, 3)));

void err_clear(struct err *e);

// What cannot happen. Prints file, line and text to stderr and aborts.
#define BUG(...) bug_abort(__FILE__, __LINE__, __VA_ARGS__)
_Noreturn void bug_abort(const char *file, int line, const char *fmt, ...)
    __attribute__((format(printf, 3, 4)));

#endif
