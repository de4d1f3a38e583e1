#!/usr/bin/python3
"""Clients of an XMPP server with anonymous logins: xmpp.py PORT DOMAIN CLIENTS BYTES GAP_MS SECONDS. Each sends itself a message of so
many bytes, again when it has come back; measured is how long that takes."""
import socket
import sys
import time

from figures import Figures, side_by_side

port, domain, clients, size, gap_ms, seconds = sys.argv[1:]


class Client:
    def __init__(self):
        self.socket = socket.create_connection(("127.0.0.1", int(port)), timeout=20)
        self.socket.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        self.rest = ""
        self.open()
        self.send("<auth xmlns='urn:ietf:params:xml:ns:xmpp-sasl' mechanism='ANONYMOUS'/>")
        self.until("<success")
        self.open()
        self.send("<iq type='set' id='b'><bind xmlns='urn:ietf:params:xml:ns:xmpp-bind'/></iq>")
        self.address = self.until("</jid>").split("<jid>")[1].split("</jid>")[0]
        self.send("<presence/>")
        self.until("<presence")

    def open(self):
        self.send(f"<stream:stream to='{domain}' version='1.0' xmlns='jabber:client' xmlns:stream='http://etherx.jabber.org/streams'>")
        self.until("</stream:features>")

    def send(self, text):
        self.socket.sendall(text.encode())

    def until(self, wanted):
        while wanted not in self.rest:
            got = self.socket.recv(65536)
            if not got:
                raise OSError("closed")
            self.rest += got.decode()
        end = self.rest.index(wanted) + len(wanted)
        found, self.rest = self.rest[:end], self.rest[end:]
        return found


def work(client):
    while figures.goes_on():
        start = time.monotonic()
        client.send(f"<message type='chat' to='{client.address}'><body>{'x' * int(size)}</body></message>")
        client.until("</message>")
        figures.answered(start)
        time.sleep(float(gap_ms) / 1e3)


ready = [Client() for _ in range(int(clients))]
figures = Figures(float(seconds))
side_by_side(work, ready)
figures.print()
