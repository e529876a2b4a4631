// SPDX-License-Identifier: Apache-2.0

#include "daemon/registry.h"

#include <jansson.h>
#include <stdlib.h>
#include <string.h>

#include "core/buf.h"

// The columns of sql/queries/work_registry.sql.
enum {
    COL_QUEUE,
    COL_QUEUE_ID,
    COL_DEFAULT_CONCURRENCY,
    COL_TOP_CONCURRENCY,
    COL_COMMAND,
    COL_KIND,
    COL_HANDLER,
    COL_LANE,
    COL_TIMEOUT_MS,
    COL_URL,
    COL_HTTP_HEADERS,
    COL_SIGNING_SECRET,
    COL_ALLOW_PRIVATE,
    COL_MAX_REDIRECTS,
    COL_MAX_RESPONSE_BYTES,
    COL_PROGRAM,
    COL_ARGUMENTS,
    COL_INSTALLATION_ID,
    COL_COUNT,
};

static const char *read_text(struct arena *a, const PGresult *res, int row, int col)
{
    return PQgetisnull(res, row, col) ? NULL : arena_strdup(a, PQgetvalue(res, row, col));
}

// A JSON array of strings. NULL: none.
static const char *const *read_list(struct arena *a, const PGresult *res, int row,
                                    int col)
{
    json_t *array = json_loads(PQgetvalue(res, row, col), 0, NULL);
    if (array == NULL)
        return NULL;
    size_t n = json_array_size(array);
    const char **list = arena_calloc(a, n + 1, sizeof *list);
    for (size_t i = 0; i < n; i++) {
        const char *text = json_string_value(json_array_get(array, i));
        list[i] = arena_strdup(a, text != NULL ? text : "");
    }
    json_decref(array);
    return list;
}

static struct command read_command(struct arena *a, const PGresult *res, int row)
{
    return (struct command){
        .name = read_text(a, res, row, COL_COMMAND),
        .queue = read_text(a, res, row, COL_QUEUE),
        .kind = read_text(a, res, row, COL_KIND),
        .handler = read_text(a, res, row, COL_HANDLER),
        .lane = (int)conn_result_int64(res, row, COL_LANE),
        .timeout_ms = conn_result_int64(res, row, COL_TIMEOUT_MS),
        .url = read_text(a, res, row, COL_URL),
        .http_headers = read_text(a, res, row, COL_HTTP_HEADERS),
        .signing_secret = read_text(a, res, row, COL_SIGNING_SECRET),
        .allow_private = read_list(a, res, row, COL_ALLOW_PRIVATE),
        .max_redirects = (int)conn_result_int64(res, row, COL_MAX_REDIRECTS),
        .max_response_bytes = conn_result_int64(res, row, COL_MAX_RESPONSE_BYTES),
        .program = read_text(a, res, row, COL_PROGRAM),
        .arguments = read_list(a, res, row, COL_ARGUMENTS),
    };
}

static int compare_commands(const void *a, const void *b)
{
    return strcmp(((const struct command *)a)->name, ((const struct command *)b)->name);
}

struct registry *registry_parse(const PGresult *res, struct err *e)
{
    int rows = PQntuples(res);
    if (PQnfields(res) != COL_COUNT) {
        err_set(e, "the registry has %d columns, not %d", PQnfields(res), COL_COUNT);
        return NULL;
    }
    struct registry *r = xcalloc(1, sizeof *r);
    r->refs = 1;
    r->queues = arena_calloc(&r->arena, (size_t)rows + 1, sizeof r->queues[0]);
    r->commands = arena_calloc(&r->arena, (size_t)rows + 1, sizeof r->commands[0]);
    r->installation_id =
        rows > 0 ? read_text(&r->arena, res, 0, COL_INSTALLATION_ID) : "";
    for (int row = 0; row < rows; row++) {
        int id = (int)conn_result_int64(res, row, COL_QUEUE_ID);
        if (r->queue_count == 0 || r->queues[r->queue_count - 1].id != id)
            r->queues[r->queue_count++] = (struct registry_queue){
                .name = read_text(&r->arena, res, row, COL_QUEUE),
                .id = id,
                .default_concurrency =
                    (int)conn_result_int64(res, row, COL_DEFAULT_CONCURRENCY),
                .top_concurrency = (int)conn_result_int64(res, row, COL_TOP_CONCURRENCY),
            };
        if (!PQgetisnull(res, row, COL_COMMAND))
            r->commands[r->command_count++] = read_command(&r->arena, res, row);
    }
    qsort(r->commands, r->command_count, sizeof r->commands[0], compare_commands);
    return r;
}

struct registry *registry_ref(struct registry *r)
{
    r->refs++;
    return r;
}

void registry_unref(struct registry *r)
{
    if (r == NULL || --r->refs > 0)
        return;
    arena_clear(&r->arena);
    free(r);
}

const struct command *registry_find(const struct registry *r, const char *command)
{
    const struct command key = {.name = command};
    return bsearch(&key, r->commands, r->command_count, sizeof key, compare_commands);
}

bool command_is_sql(const struct command *c)
{
    return strcmp(c->kind, "procedure") == 0 || strcmp(c->kind, "db_function") == 0;
}

bool registry_lane_is_sql(const struct registry *r, int lane)
{
    if (lane < 4)
        return lane < 2;
    for (size_t i = 0; i < r->command_count; i++)
        if (r->commands[i].lane == (lane & ~1))
            return command_is_sql(&r->commands[i]);
    return false;
}
