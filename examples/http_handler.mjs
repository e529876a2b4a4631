#!/usr/bin/env node
// SPDX-License-Identifier: Apache-2.0
//
// A web service that runs tasks of pgkin: it adds up invoices.
//
//     PGKIN_SIGNING_SECRET=whsec_c2VzYW1l examples/http_handler.mjs 8080
//
// The worker has the same secret in the file `invoices` of its credentials
// directory, and the database knows where to find the service:
//
//     select worker.register_command('invoice_total', p_kind => 'http',
//       p_url => 'http://127.0.0.1:8080/', p_allow_private => '{127.0.0.1/32}',
//       p_signing_secret => 'secret:invoices', p_max_attempts => 5);
//     select worker.enqueue('invoice_total', '{"items": [{"price": 3.5, "quantity": 2}]}');
//
// The result of the task is {"total": 7}.

import { createHmac, timingSafeEqual } from 'node:crypto'
import { createServer } from 'node:http'

const TOLERANCE_S = 300
const BODY_MAX = 1 << 20

const secret = process.env.PGKIN_SIGNING_SECRET
if (!secret) {
  console.error('PGKIN_SIGNING_SECRET is not set')
  process.exit(2)
}
const key = secret.startsWith('whsec_')
  ? Buffer.from(secret.slice('whsec_'.length), 'base64')
  : Buffer.from(secret)

// True when the worker has sent this, and not long ago.
function isSigned(headers, body) {
  const id = headers['webhook-id'] ?? ''
  const timestamp = headers['webhook-timestamp'] ?? ''
  if (!/^[0-9]+$/.test(timestamp)) return false
  if (Math.abs(Date.now() / 1000 - Number(timestamp)) > TOLERANCE_S) return false
  const hmac = createHmac('sha256', key).update(`${id}.${timestamp}.`).update(body)
  const expected = Buffer.from('v1,' + hmac.digest('base64'))
  // There may be several, with a blank between them, while a key is replaced.
  return (headers['webhook-signature'] ?? '').split(' ').some((text) => {
    const one = Buffer.from(text)
    return one.length === expected.length && timingSafeEqual(one, expected)
  })
}

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

async function readBody(request) {
  const chunks = []
  let size = 0
  for await (const chunk of request) {
    size += chunk.length
    if (size > BODY_MAX) return null
    chunks.push(chunk)
  }
  return Buffer.concat(chunks)
}

async function handle(request, response) {
  const answer = (status, value) => {
    response.writeHead(status, { 'content-type': 'application/json' })
    response.end(JSON.stringify(value))
  }
  if (request.method !== 'POST') return answer(405, { error: 'only POST' })
  const body = await readBody(request)
  if (body === null) return answer(413, { error: 'too large' })
  if (!isSigned(request.headers, body)) return answer(401, { error: 'not signed by us' })
  // Other 4xx: this task will never work. 5xx: try again. 429 or 503, with
  // Retry-After: not now.
  let result
  try {
    result = invoiceTotal(JSON.parse(body))
  } catch (e) {
    return answer(422, { error: `not an invoice: ${e.message}` })
  }
  // A handler with effects notes idempotency-key together with them: the same
  // task may come twice.
  answer(200, result)
}

const server = createServer((request, response) => {
  handle(request, response).catch((e) => {
    console.error(e)
    response.destroy()
  })
})
server.listen(Number(process.argv[2] ?? 8080), '127.0.0.1', () => {
  console.log(`listening on http://127.0.0.1:${server.address().port}/`)
})
