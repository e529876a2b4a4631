#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""A web service that runs tasks of pgkin: it adds up invoices.

    PGKIN_SIGNING_SECRET=whsec_c2VzYW1l examples/http_handler.py 8080

The worker has the same secret in the file `invoices` of its credentials
directory, and the database knows where to find the service:

    select worker.register_command('invoice_total', p_kind => 'http',
      p_url => 'http://127.0.0.1:8080/', p_allow_private => '{127.0.0.1/32}',
      p_signing_secret => 'secret:invoices', p_max_attempts => 5);
    select worker.enqueue('invoice_total', '{"items": [{"price": 3.5, "quantity": 2}]}');

The result of the task is {"total": 7.0}.
"""

import base64
import hashlib
import hmac
import json
import os
import sys
import time
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer

TOLERANCE_S = 300
BODY_MAX = 1 << 20


def signing_key():
    secret = os.environ["PGKIN_SIGNING_SECRET"]
    if secret.startswith("whsec_"):
        return base64.b64decode(secret.removeprefix("whsec_"), validate=True)
    return secret.encode()


def is_signed(headers, body):
    """True when the worker has sent this, and not long ago."""
    message_id = headers.get("webhook-id", "")
    timestamp = headers.get("webhook-timestamp", "")
    if not timestamp.isascii() or not timestamp.isdigit():
        return False
    if abs(time.time() - int(timestamp)) > TOLERANCE_S:
        return False
    signed = f"{message_id}.{timestamp}.".encode() + body
    expected = base64.b64encode(hmac.digest(KEY, signed, hashlib.sha256))
    # There may be several, with a blank between them, while a key is replaced.
    return any(
        hmac.compare_digest(b"v1," + expected, one.encode())
        for one in headers.get("webhook-signature", "").split()
    )


def invoice_total(payload):
    return {"total": sum(item["price"] * item["quantity"] for item in payload["items"])}


class Handler(BaseHTTPRequestHandler):
    protocol_version = "HTTP/1.1"  # keeps connections open for the next task

    def do_POST(self):
        try:
            length = int(self.headers.get("content-length", ""))
        except ValueError:
            length = -1
        if not 0 <= length <= BODY_MAX:
            self.close_connection = True
            return self.answer(413, {"error": "no body, or too large"})
        body = self.rfile.read(length)
        if not is_signed(self.headers, body):
            return self.answer(401, {"error": "not signed by us"})
        # Other 4xx: this task will never work. 5xx: try again. 429 or 503, with
        # Retry-After: not now.
        try:
            result = invoice_total(json.loads(body))
        except (ValueError, KeyError, TypeError) as e:
            return self.answer(422, {"error": f"not an invoice: {e!r}"})
        # A handler with effects notes idempotency-key together with them: the
        # same task may come twice.
        self.answer(200, result)

    def answer(self, status, value):
        body = json.dumps(value).encode()
        self.send_response(status)
        self.send_header("content-type", "application/json")
        self.send_header("content-length", str(len(body)))
        self.end_headers()
        self.wfile.write(body)


if __name__ == "__main__":
    KEY = signing_key()
    port = int(sys.argv[1]) if len(sys.argv) > 1 else 8080
    server = ThreadingHTTPServer(("127.0.0.1", port), Handler)
    print(f"listening on http://127.0.0.1:{server.server_port}/", flush=True)
    try:
        server.serve_forever()
    except KeyboardInterrupt:
        pass
