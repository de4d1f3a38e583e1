#!/usr/bin/python3
"""Clients that ask a DNS server over TCP. dns_tcp.py hold PORT COUNT FILE: connections that ask once and stay; FILE is written when all
have an answer. dns_tcp.py load PORT CLIENTS NAME GAP_MS SECONDS: each question on a connection of its own."""
import socket
import struct
import sys
import time

from figures import Figures, side_by_side

what, port, count = sys.argv[1], int(sys.argv[2]), int(sys.argv[3])
name = sys.argv[4] if what == "load" else "www.docket.test"
question = struct.pack(">HHHHHH", 77, 0x100, 1, 0, 0, 0)
question += b"".join(bytes([len(part)]) + part.encode() for part in name.split(".")) + b"\0\0\1\0\1"


def ask(s):
    s.sendall(struct.pack(">H", len(question)) + question)
    reply = b""
    while len(reply) < 2 or len(reply) < 2 + struct.unpack(">H", reply[:2])[0]:
        part = s.recv(4096)
        if not part:
            raise OSError("closed")
        reply += part


def connect():
    s = socket.create_connection(("127.0.0.1", port), timeout=4)
    s.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
    return s


if what == "hold":
    held = []
    for _ in range(count):
        held.append(connect())
        ask(held[-1])
    open(sys.argv[4], "w").close()
    while True:  # as a resolver with a question now and then
        time.sleep(3)
        for s in held:
            ask(s)
gap_ms, seconds = float(sys.argv[5]), float(sys.argv[6])
figures = Figures(seconds)


def work(number):
    time.sleep(gap_ms * number / count / 1e3)
    while figures.goes_on():
        start = time.monotonic()
        try:
            with connect() as s:
                ask(s)
            figures.answered(start)
        except OSError:
            figures.failed()
        time.sleep(gap_ms / 1e3)


side_by_side(work, range(count))
figures.print()
