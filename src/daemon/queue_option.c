// SPDX-License-Identifier: Apache-2.0

#include "daemon/queue_option.h"

#include <stdlib.h>
#include <string.h>

#include "core/buf.h"

#define SIZE_MOST 10000

bool queue_options_add(struct queue_options *o, const char *text, struct err *e)
{
    const char *colon = strrchr(text, ':');
    size_t len = colon != NULL ? (size_t)(colon - text) : strlen(text);
    long size = 0;
    if (colon != NULL) {
        char *end;
        size = strtol(colon + 1, &end, 10);
        if (colon[1] < '0' || colon[1] > '9' || *end != '\0' || size < 1 ||
            size > SIZE_MOST)
            return err_usage(
                e, "a queue is given as NAME or NAME:N with N from 1 to %d, not \"%s\"",
                SIZE_MOST, text);
    }
    if (len == 0)
        return err_usage(e, "a queue needs a name: \"%s\"", text);
    char *name = xstrdup(text);
    name[len] = '\0';
    for (size_t i = 0; i < o->count; i++)
        if (strcmp(o->list[i].name, name) == 0) {
            free(name);
            return err_usage(e, "queue \"%s\" is given twice", o->list[i].name);
        }
    o->list = xrealloc(o->list, (o->count + 1) * sizeof o->list[0]);
    o->list[o->count++] = (struct daemon_queue_option){.name = name, .size = (int)size};
    return true;
}

void queue_options_clear(struct queue_options *o)
{
    for (size_t i = 0; i < o->count; i++)
        free((char *)o->list[i].name);
    free(o->list);
    *o = (struct queue_options){0};
}
