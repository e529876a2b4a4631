#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""A program that runs tasks of pgkin: it adds up invoices.

    select worker.register_command('invoice_total', p_kind => 'exec',
      p_program => '/srv/app/exec_handler.py', p_arguments => '{/srv/app/closed}',
      p_timeout => '1 minute', p_max_attempts => 5);
    select worker.enqueue('invoice_total', '{"items": [{"price": 3.5, "quantity": 2}]}');

The payload is standard input, standard output is the result: {"total": 7.0}.
While the file that the argument names is there, tasks are put off.
"""

import json
import os
import sys

EX_DATAERR = 65  # this task will never work
EX_TEMPFAIL = 75  # not now; no failed attempt


def main():
    if len(sys.argv) > 1 and os.path.exists(sys.argv[1]):
        print(json.dumps({"retry_after": 60}))
        return EX_TEMPFAIL
    try:
        payload = json.load(sys.stdin)
        total = sum(item["price"] * item["quantity"] for item in payload["items"])
    except (ValueError, KeyError, TypeError) as e:
        print(f"not an invoice: {e!r}", file=sys.stderr)
        return EX_DATAERR
    # A handler with effects notes PGKIN_IDEMPOTENCY_KEY together with them: the
    # same task may come twice. Any other status but 0: try again.
    print(json.dumps({"total": total}))
    return 0


if __name__ == "__main__":
    sys.exit(main())
