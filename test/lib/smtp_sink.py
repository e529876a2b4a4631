#!/usr/bin/python3
# SPDX-License-Identifier: Apache-2.0
#
# A mail server for tests: takes everything, writes each message as a line of
# JSON to standard output, after one line with its port. What it does otherwise
# is said by the local part of a recipient:
#
#   reject   550 to RCPT         late    451 to RCPT
#   refuse   554 to the message  hang    no reply to the message
#   drop     the message is taken, and the connection closed before the reply
#
# While the file of --hold is there, no message gets its reply. Without --stay it
# ends with its standard input.
#
# smtp_sink.py [--tls CERT KEY] [--auth USER PASSWORD] [--hold FILE] [--stay]

import argparse
import asyncio
import json
import os
import ssl
import sys

from aiosmtpd.smtp import SMTP, AuthResult, LoginPassword

options = argparse.ArgumentParser()
options.add_argument('--tls', nargs=2)
options.add_argument('--auth', nargs=2)
options.add_argument('--hold')
options.add_argument('--stay', action='store_true')
options = options.parse_args()
connections = 0


def has(envelope, name):
    return any(r.startswith(name + '@') for r in envelope.rcpt_tos)


class Handler:
    async def handle_RCPT(self, server, session, envelope, address, rcpt_options):
        if address.startswith('reject@'):
            return '550 5.1.1 no such user'
        if address.startswith('late@'):
            return '451 4.7.1 greylisted'
        envelope.rcpt_tos.append(address)
        return '250 2.1.5 ok'

    async def handle_DATA(self, server, session, envelope):
        if has(envelope, 'refuse'):
            return '554 5.7.1 spam'
        print(json.dumps({
            'from': envelope.mail_from, 'to': envelope.rcpt_tos,
            'data': envelope.original_content.decode('latin-1'),
            'tls': session.ssl is not None, 'login': session.authenticated,
            'connection': session.number}), flush=True)
        while options.hold and os.path.exists(options.hold):
            await asyncio.sleep(0.02)
        if has(envelope, 'hang'):
            await asyncio.sleep(3600)
        if has(envelope, 'drop'):
            server.transport.abort()
            await asyncio.sleep(0)
        return '250 2.0.0 ok: queued as 4711'


class Server(SMTP):
    def connection_made(self, transport):
        global connections
        super().connection_made(transport)
        connections += 1
        self.session.number = connections


def authenticate(server, session, envelope, mechanism, data):
    good = (isinstance(data, LoginPassword)
            and [data.login.decode(), data.password.decode()] == options.auth)
    return AuthResult(success=good, handled=True, auth_data=good or None)


def make_server():
    more = {}
    if options.tls:
        more['tls_context'] = ssl.create_default_context(ssl.Purpose.CLIENT_AUTH)
        more['tls_context'].load_cert_chain(*options.tls)
    if options.auth:
        more.update(authenticator=authenticate, auth_required=True, auth_require_tls=False)
    return Server(Handler(), hostname='sink.example', loop=asyncio.get_running_loop(), **more)


async def main():
    listening = await asyncio.get_running_loop().create_server(make_server, '127.0.0.1', 0)
    print(listening.sockets[0].getsockname()[1], flush=True)
    if options.stay:
        await asyncio.sleep(86400)
    # Ends with whoever started it, who holds the other end of standard input.
    await asyncio.get_running_loop().run_in_executor(None, sys.stdin.read)
    listening.close()

asyncio.run(main())
