#!/usr/bin/python3
"""Gearman's binary protocol: gearman.py worker PORT N starts N worker processes for the function "thumbnail", each of which asks the
picture service at 127.0.0.1:8000; gearman.py load PORT CLIENTS SECONDS submits foreground jobs and prints the same figures as load.c."""
import http.client
import os
import socket
import struct
import sys
import time

from figures import Figures, side_by_side

CAN_DO, PRE_SLEEP, NOOP, SUBMIT_JOB, GRAB_JOB, NO_JOB, JOB_ASSIGN, WORK_COMPLETE = 1, 4, 6, 7, 9, 10, 11, 13


class Link:
    def __init__(self, port):
        self.socket = socket.create_connection(("127.0.0.1", port))
        self.socket.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        self.file = self.socket.makefile("rb")

    def send(self, kind, *fields):
        data = b"\0".join(fields)
        self.socket.sendall(b"\0REQ" + struct.pack(">II", kind, len(data)) + data)

    def receive(self):
        _, kind, size = struct.unpack(">4sII", self.file.read(12))
        return kind, self.file.read(size)


def worker(port):
    link, pictures = Link(port), http.client.HTTPConnection("127.0.0.1", 8000)
    link.send(CAN_DO, b"thumbnail")
    while True:
        link.send(GRAB_JOB)
        kind, data = link.receive()
        while kind == NOOP:
            kind, data = link.receive()
        if kind == NO_JOB:
            link.send(PRE_SLEEP)
            while link.receive()[0] != NOOP:
                pass
        elif kind == JOB_ASSIGN:
            pictures.request("GET", "/picture")
            pictures.getresponse().read()
            link.send(WORK_COMPLETE, data.split(b"\0")[0], b"done")


port, count = int(sys.argv[2]), int(sys.argv[3])
if sys.argv[1] == "worker":
    for _ in range(count - 1):
        if not os.fork():
            break
    worker(port)
seconds = float(sys.argv[4])
figures = Figures(seconds)


def work(_):
    link, n = Link(port), 0
    while figures.goes_on():
        start = time.monotonic()
        n += 1
        link.send(SUBMIT_JOB, b"thumbnail", b"", b"picture %d" % n)
        while link.receive()[0] != WORK_COMPLETE:
            pass
        figures.answered(start)


side_by_side(work, range(count))
figures.print()
