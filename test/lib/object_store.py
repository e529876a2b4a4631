#!/usr/bin/python3
# SPDX-License-Identifier: Apache-2.0
#
# A files service and the store behind it, for tests. Writes its port, then a line
# for each request. POST /sign answers with a signed URL; DELETE of that URL
# deletes, or does what the key begins with:
#
#   bad   403        drop   deletes, and closes the connection without an answer
#   hang  nothing, for a long time

import http.server
import json
import sys
import time

gone = set()


class Handler(http.server.BaseHTTPRequestHandler):
    protocol_version = 'HTTP/1.1'

    def answer(self, status, body=b''):
        self.send_response(status)
        self.send_header('content-length', str(len(body)))
        self.end_headers()
        self.wfile.write(body)

    def do_POST(self):
        asked = json.loads(self.rfile.read(int(self.headers['content-length'])))
        print('sign', asked['object_key'], self.headers['idempotency-key'], flush=True)
        self.answer(200, json.dumps({'url': 'http://127.0.0.1:%d/store/%s?signature=x' % (
            self.server.server_port, asked['object_key'])}).encode())

    def do_DELETE(self):
        key = self.path.removeprefix('/store/').removesuffix('?signature=x')
        print('delete', key, flush=True)
        name = key.split('/')[-1]
        if name.startswith('bad'):
            self.answer(403)
        elif name.startswith('hang'):
            time.sleep(3600)
        elif name.startswith('drop') and key not in gone:
            gone.add(key)
            self.close_connection = True
        elif key in gone:
            self.answer(404)
        else:
            gone.add(key)
            self.answer(204)

    def log_message(self, *args):
        pass


server = http.server.ThreadingHTTPServer(('127.0.0.1', 0), Handler)
server.daemon_threads = True
print(server.server_port, flush=True)
sys.stdout.flush()
server.serve_forever()
