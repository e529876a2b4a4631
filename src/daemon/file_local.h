// SPDX-License-Identifier: Apache-2.0
//
// Deletes files beneath one directory, and nothing else: no "..", no absolute
// path, no link leads out of it, because the path is walked one name at a time
// and links are never followed.

#ifndef PGKIN_DAEMON_FILE_LOCAL_H
#define PGKIN_DAEMON_FILE_LOCAL_H

#include <stdbool.h>

#include "core/err.h"

enum file_end {
    FILE_DELETED,
    FILE_MISSING, // was not there: as good
    FILE_REFUSED, // no path to a file beneath the directory, `e` says why
    FILE_FAILED,  // may work later, `e` says why
};

// `path` is relative to the directory, names with slashes between them.
enum file_end file_local_delete(const char *directory, const char *path, struct err *e);

#endif
