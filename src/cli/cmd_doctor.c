// SPDX-License-Identifier: Apache-2.0

#include <stdio.h>

#include "cli/cli.h"
#include "cli/db.h"
#include "cli/doctor.h"
#include "cli/options.h"
#include "cli/text.h"
#include "core/conn.h"
#include "core/json.h"
#include "core/machine.h"
#include "daemon/daemon.h"

struct values {
    bool json;
    bool machines;
};

static const struct cli_option options[] = {
    {"json", 0, CLI_FLAG, offsetof(struct values, json), NULL, "print one JSON object"},
    {"machines", 0, CLI_FLAG, offsetof(struct values, machines), NULL,
     "print the state machines of pgkin as mermaid diagrams"},
    {0},
};

// Every state machine of the program.
static const struct machine *(*const machines[])(void) = {
    daemon_machine, queue_machine, fiber_machine, attempt_machine, conn_machine,
};

static void print_machines(void)
{
    struct buf out = BUF_INIT;
    for (size_t i = 0; i < sizeof machines / sizeof machines[0]; i++) {
        buf_addf(&out, "%s```mermaid\n", i > 0 ? "\n" : "");
        machine_print_mermaid(machines[i](), &out);
        buf_adds(&out, "```\n");
    }
    fputs(buf_str(&out), stdout);
    buf_clear(&out);
}

static void print_text(const struct doctor_report *rep)
{
    struct buf out = BUF_INIT;
    for (size_t i = 0; i < rep->count; i++) {
        const struct doctor_finding *f = &rep->findings[i];
        buf_addf(&out, "%s %s: ", doctor_level_name(f->level), f->check);
        text_add_clean(&out, f->text);
        buf_addc(&out, '\n');
        if (f->hint != NULL)
            buf_addf(&out, "hint: %s\n", f->hint);
    }
    fputs(buf_str(&out), stdout);
    buf_clear(&out);
}

static void print_json(const struct doctor_report *rep)
{
    struct buf out = BUF_INIT;
    struct json j;
    json_init(&j, &out);
    json_begin_object(&j);
    json_add_key(&j, "level");
    json_add_string(&j, doctor_level_name(rep->worst));
    json_add_key(&j, "checks");
    json_begin_array(&j);
    for (size_t i = 0; i < rep->count; i++) {
        const struct doctor_finding *f = &rep->findings[i];
        json_begin_object(&j);
        json_add_key(&j, "check");
        json_add_string(&j, f->check);
        json_add_key(&j, "level");
        json_add_string(&j, doctor_level_name(f->level));
        json_add_key(&j, "text");
        json_add_string(&j, f->text);
        json_add_key(&j, "hint");
        json_add_string(&j, f->hint);
        json_end_object(&j);
    }
    json_end_array(&j);
    json_end_object(&j);
    json_finish(&j);
    puts(buf_str(&out));
    buf_clear(&out);
}

static bool examine(const struct cli_common *common, bool json, struct err *e)
{
    struct doctor_report rep;
    PGconn *conn = db_connect_in(common->database, common->data_dir, e);
    if (conn == NULL)
        return false;
    doctor_examine(conn, &rep);
    json ? print_json(&rep) : print_text(&rep);
    bool ok = rep.worst < DOCTOR_FAIL;
    if (!ok)
        e->code = ERR_FAILED; // and why was printed
    doctor_report_clear(&rep);
    PQfinish(conn);
    return ok;
}

static bool run(int argc, char **argv, struct err *e);

const struct cli_command cmd_doctor = {
    .name = "doctor",
    .args = "[--json] [--machines]",
    .summary = "check the database, the schema and what runs in it",
    .help =
        "Each line is a check: ok, warn (should be looked at) or fail (is broken). The\n"
        "exit status is 1 when one of them fails. Nothing is changed.\n",
    .options = options,
    .run = run,
};

static bool run(int argc, char **argv, struct err *e)
{
    struct values v = {0};
    struct cli_common common;
    if (!cli_parse(&cmd_doctor, argc, argv, &v, &common, NULL, e))
        return false;
    bool ok = true;
    if (v.machines)
        print_machines();
    else
        ok = examine(&common, v.json, e);
    cli_common_clear(&common);
    return ok;
}
