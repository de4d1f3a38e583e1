#!/usr/bin/python3
"""A load of DNS questions of type A: several under way at a time, each from its own socket. `#` in --names is a number that differs
each time. Only answers without an error count."""
import argparse
import selectors
import socket
import struct
import time

from figures import Figures

p = argparse.ArgumentParser()
p.add_argument("--host", default="127.0.0.1")
p.add_argument("--port", type=int, default=53)
p.add_argument("--parallel", type=int, default=4)
p.add_argument("--timeout-ms", type=float, default=1000)
p.add_argument("--gap-ms", type=float, default=0)
p.add_argument("--names", default="host-#.docket.test")
p.add_argument("--for", dest="seconds", type=float, default=3)
o = p.parse_args()
select = selectors.DefaultSelector()
number, figures = 0, Figures(o.seconds)


class Asker:
    def __init__(self, i):
        self.socket = socket.socket(socket.AF_INET, socket.SOCK_DGRAM)
        self.socket.setblocking(False)
        self.socket.connect((o.host, o.port))
        self.next, self.asked, self.id = figures.begun + i * o.gap_ms / 1e3 / o.parallel, None, 0
        select.register(self.socket, selectors.EVENT_READ, self)

    def ask(self, now):
        global number
        number += 1
        self.id, self.asked = number & 0xffff, now
        labels = o.names.replace("#", str(number)).split(".")
        name = b"".join(bytes([len(x)]) + x.encode() for x in labels) + b"\0"
        try:
            self.socket.send(struct.pack(">HHHHHH", self.id, 0x0100, 1, 0, 0, 0) + name + b"\0\1\0\1")
        except OSError:
            pass

    def answered(self, now):
        try:
            reply = self.socket.recv(2048)
        except OSError:
            return
        if self.asked is None or len(reply) < 12 or struct.unpack(">H", reply[:2])[0] != self.id:
            return
        if reply[3] & 15:
            figures.failed()
        else:
            figures.answered(self.asked, now)
        self.asked, self.next = None, now + o.gap_ms / 1e3

    def due(self, now):
        if self.asked is not None and now - self.asked > o.timeout_ms / 1e3:
            figures.failed()
            self.asked = None
        if self.asked is None and now >= self.next:
            self.ask(now)


askers = [Asker(i) for i in range(o.parallel)]
checked = 0
while (now := time.monotonic()) < figures.stop:
    if now - checked > 0.001:
        checked = now
        for asker in askers:
            asker.due(now)
    for key, _ in select.select(0.001 if o.gap_ms or o.parallel > 50 else 0.0002):
        key.data.answered(time.monotonic())
        if not o.gap_ms:
            key.data.due(time.monotonic())
figures.print()
