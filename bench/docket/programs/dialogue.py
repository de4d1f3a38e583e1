#!/usr/bin/python3
"""A client of a line protocol (SMTP, IMAP, IRC), or many. A step `>text` sends a line, `<text` reads until a line contains the text.
`#` in a text is a number that differs each time. Each run of the steps is timed, on a new connection unless --once gives steps that
are done once for each connection. --hold does the steps once and keeps the connections open.

    dialogue.py --port 25 --parallel 4 --for 3 '<220 ' '>EHLO a.test' '<250 ' '>QUIT' '<221 '
"""
import argparse
import itertools
import socket
import threading
import time

from figures import Figures, side_by_side

p = argparse.ArgumentParser()
p.add_argument("--host", default="127.0.0.1")
p.add_argument("--port", type=int, required=True)
p.add_argument("--parallel", type=int, default=1)
p.add_argument("--for", dest="seconds", type=float, default=3)
p.add_argument("--timeout-ms", type=float, default=10000)
p.add_argument("--gap-ms", type=float, default=0)
p.add_argument("--once", default="", help="steps separated by |")
p.add_argument("--hold", metavar="FILE", help="write this file when all connections have done their steps, and keep them")
p.add_argument("steps", nargs="*")
o = p.parse_args()
numbers, figures = itertools.count(1), Figures(o.seconds)


class Connection:
    def __init__(self):
        self.socket = socket.create_connection((o.host, o.port), timeout=o.timeout_ms / 1e3)
        self.socket.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        self.rest = b""

    def run(self, steps):
        number = str(next(numbers)).encode()
        for step in steps:
            text = step[1:].encode().replace(b"#", number)
            if step[0] == ">":
                self.socket.sendall(text + b"\r\n")
            else:
                self.read(text)

    def read(self, wanted):
        while True:
            line, end, rest = self.rest.partition(b"\n")
            if end:
                self.rest = rest
                if line.startswith(b"PING"):
                    self.socket.sendall(b"PONG" + line[4:].rstrip() + b"\r\n")
                if wanted in line:
                    return
                continue
            got = self.socket.recv(65536)
            if not got:
                raise OSError("closed")
            self.rest += got


def work(_):
    connection = None
    while figures.goes_on():
        start = time.monotonic()
        try:
            if connection is None:
                connection = Connection()
                if o.once:
                    connection.run(o.once.split("|"))
                    start = time.monotonic()
            connection.run(o.steps)
            figures.answered(start)
        except OSError:
            figures.failed()
            if connection:
                connection.socket.close()
            connection = None
            time.sleep(0.01)
        if connection and not o.once:
            connection.socket.close()
            connection = None
        time.sleep(o.gap_ms / 1e3)


threading.stack_size(1 << 18)
if o.hold:
    held = []
    for _ in range(o.parallel):
        held.append(Connection())
        held[-1].run(o.steps)
        held[-1].socket.settimeout(None)
    open(o.hold, "w").close()

    def answer(connection):
        try:
            connection.read(b"\0")
        except OSError:
            pass
    side_by_side(answer, held)
    time.sleep(1e6)
side_by_side(work, range(o.parallel))
figures.print()
