// SPDX-License-Identifier: Apache-2.0
//
// Settings. Each is one row of a table: a new row is a new setting, readable
// from the file, the environment and the command line, checked, and shown by
// conf_describe(). A value comes, in rising precedence, from its default, the
// configuration file, the environment, a flag; the order of the calls that
// read them does not matter.
//
//     [log]
//     level = debug        ; the setting log.level

#ifndef PGKIN_CORE_CONF_H
#define PGKIN_CORE_CONF_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#include "core/buf.h"
#include "core/err.h"

enum conf_type {
    CONF_STRING,
    CONF_INT,
    CONF_BOOL,     // true false, yes no, on off, 1 0
    CONF_DURATION, // in milliseconds; written 250ms, 30s, 5m, 2h or 0
    CONF_BYTES,    // written 512, 64kB, 16MB, 1GB (powers of 1024)
    CONF_ENUM,
};

struct conf_setting {
    const char *name; // "section.key"
    enum conf_type type;
    const char *env;            // the environment variable; may be NULL
    const char *fallback;       // the default, as it would be written; NULL: not set
    const char *help;           // one line
    bool secret;                // the value is never shown, not even in errors
    int64_t min, max;           // for numbers, in ms or bytes; both 0: not negative
    const char *const *choices; // for CONF_ENUM, ends with NULL
};

// The settings of pgkin.
extern const struct conf_setting conf_settings[];
extern const size_t conf_setting_count;

enum conf_source {
    CONF_FROM_DEFAULT,
    CONF_FROM_FILE,
    CONF_FROM_ENV,
    CONF_FROM_FLAG,
};

struct conf_value {
    char *text;     // as it was written; NULL: not set
    int64_t number; // of numbers; of bools 0 or 1; of enums the index of the choice
    enum conf_source source;
    char *where; // "FILE:LINE", the variable, the flag; NULL for a default
};

struct conf {
    const struct conf_setting *settings; // borrowed
    size_t count;
    struct conf_value *values;
};

// All settings at their defaults. conf_clear() frees.
void conf_init(struct conf *c, const struct conf_setting *settings, size_t count);
void conf_clear(struct conf *c);

// Reads one file, which must exist.
bool conf_load_file(struct conf *c, const char *path, struct err *e);

// Reads the file named by `path` (from a flag), else by PGKIN_CONFIG; these must
// exist. Else the first that exists of pgkin/pgkin.conf in XDG_CONFIG_HOME or
// ~/.config, and /etc/pgkin/pgkin.conf; having neither is fine.
bool conf_load_default_file(struct conf *c, const char *path, struct err *e);

// Reads the variables of the table. An empty one counts as not set.
bool conf_load_env(struct conf *c, struct err *e);

// A value from the command line; `flag` is what the user knows it by, such as
// "--log-level". A bad value is wrong usage; an unknown name is a bug.
bool conf_set_flag(struct conf *c, const char *name, const char *value, const char *flag,
                   struct err *e);

// The effective value. The name must be in the table and of that type.
// Strings are borrowed from `c`, and NULL when not set; conf_get_int() serves
// ints, durations (ms) and bytes; an enum is the index into its choices. Reading
// a number that is not set is a bug: such a row has a default, or is asked
// about with conf_is_set() first.
const char *conf_get_string(const struct conf *c, const char *name); // also for enums
int64_t conf_get_int(const struct conf *c, const char *name);
bool conf_get_bool(const struct conf *c, const char *name);
size_t conf_get_enum(const struct conf *c, const char *name);
bool conf_is_set(const struct conf *c, const char *name);
enum conf_source conf_get_source(const struct conf *c, const char *name);

// Appends all settings: help, effective value and where it comes from, in the
// syntax of the file. Secrets are masked.
void conf_describe(const struct conf *c, struct buf *out);

#endif
