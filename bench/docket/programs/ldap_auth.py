#!/usr/bin/python3
"""A daemon for nginx's auth_request that looks a user up in LDAP and binds with the password, on connections of its own for each
request: ldap_auth.py PORT LDAP-HOST LDAP-PORT one|threads. With `one` it answers one request at a time."""
import base64
import http.server
import sys

import ldap3

port, ldap_host, ldap_port, style = sys.argv[1:5]
BASE = "ou=people,dc=example,dc=org"


class Auth(http.server.BaseHTTPRequestHandler):
    def do_GET(self):
        name, _, password = base64.b64decode(self.headers.get("Authorization", "Basic Og==").split()[1]).decode().partition(":")
        self.send_response(200 if self.knows(name, password) else 401)
        self.send_header("Content-Length", "0")
        self.end_headers()

    @staticmethod
    def knows(name, password):
        server = ldap3.Server(ldap_host, int(ldap_port), get_info=ldap3.NONE)
        with ldap3.Connection(server, auto_bind=True) as held:
            if not held.search(BASE, f"(uid={ldap3.utils.conv.escape_filter_chars(name)})", attributes=["cn"]):
                return False
            return held.rebind(held.entries[0].entry_dn, password)

    def log_message(self, *_):
        pass


kind = http.server.HTTPServer if style == "one" else http.server.ThreadingHTTPServer
kind(("127.0.0.1", int(port)), Auth).serve_forever()
