#!/usr/bin/env node
// SPDX-License-Identifier: Apache-2.0
//
// A program that runs tasks of pgkin: it adds up invoices.
//
//     select worker.register_command('invoice_total', p_kind => 'exec',
//       p_program => '/srv/app/exec_handler.mjs', p_arguments => '{/srv/app/closed}',
//       p_timeout => '1 minute', p_max_attempts => 5);
//     select worker.enqueue('invoice_total', '{"items": [{"price": 3.5, "quantity": 2}]}');
//
// The payload is standard input, standard output is the result: {"total": 7}.
// While the file that the argument names is there, tasks are put off.

import { existsSync, readFileSync } from 'node:fs'

const EX_DATAERR = 65 // this task will never work
const EX_TEMPFAIL = 75 // not now; no failed attempt

function invoiceTotal(payload) {
  if (!Array.isArray(payload?.items)) throw new TypeError('items is not a list')
  let total = 0
  for (const item of payload.items) {
    if (!Number.isFinite(item?.price) || !Number.isFinite(item?.quantity)) {
      throw new TypeError('an item has no price or quantity')
    }
    total += item.price * item.quantity
  }
  return { total }
}

function main() {
  if (process.argv[2] && existsSync(process.argv[2])) {
    console.log(JSON.stringify({ retry_after: 60 }))
    return EX_TEMPFAIL
  }
  try {
    // A handler with effects notes PGKIN_IDEMPOTENCY_KEY together with them: the
    // same task may come twice. Any other status but 0: try again.
    console.log(JSON.stringify(invoiceTotal(JSON.parse(readFileSync(0, 'utf8')))))
    return 0
  } catch (e) {
    console.error(`not an invoice: ${e.message}`)
    return EX_DATAERR
  }
}

process.exitCode = main()
