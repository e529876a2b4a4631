// SPDX-License-Identifier: Apache-2.0

#include "daemon/traceparent.h"

#include <jansson.h>
#include <stdio.h>
#include <string.h>

// 00-0af7651916cd43dd8448eb211c80319c-b7ad6b7169203331-01
static bool is_valid(const char *s)
{
    static const char shape[] = "hh-hhhhhhhhhhhhhhhhhhhhhhhhhhhhhhhh-hhhhhhhhhhhhhhhh-hh";
    if (strlen(s) != strlen(shape))
        return false;
    for (size_t i = 0; shape[i] != '\0'; i++) {
        if (shape[i] == 'h' ? strchr("0123456789abcdef", s[i]) == NULL : s[i] != '-')
            return false;
    }
    // A version that must not be, and ids that say that there is none.
    return strncmp(s, "ff", 2) != 0 && strspn(s + 3, "0") < 32 &&
           strspn(s + 36, "0") < 16;
}

bool traceparent_find(const char *headers, char out[TRACEPARENT_SIZE])
{
    json_t *object = headers != NULL ? json_loads(headers, 0, NULL) : NULL;
    const char *value = json_string_value(json_object_get(object, "traceparent"));
    bool found = value != NULL && is_valid(value);
    if (found)
        snprintf(out, TRACEPARENT_SIZE, "%s", value);
    json_decref(object);
    return found;
}
