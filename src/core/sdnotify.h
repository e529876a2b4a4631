// SPDX-License-Identifier: Apache-2.0
//
// Tells systemd how we are (sd_notify(3)), without its library. Does nothing
// when not started by it.

#ifndef PGKIN_CORE_SDNOTIFY_H
#define PGKIN_CORE_SDNOTIFY_H

#include <stdbool.h>

// `state` is "READY=1", "STOPPING=1" and so on; several are separated by line
// breaks. True when it was sent: nobody needs to care.
bool sdnotify_send(const char *state);

#endif
