#!/usr/bin/python3
"""A client of NSQ: subscribes to a channel, publishes a message on another connection, and measures how long until it has it.
nsq.py PORT CLIENTS GAP_MS SECONDS"""
import json
import socket
import struct
import sys
import time

from figures import Figures, side_by_side

port, clients, gap_ms, seconds = int(sys.argv[1]), int(sys.argv[2]), float(sys.argv[3]), float(sys.argv[4])
figures = Figures(seconds)


class Connection:
    def __init__(self):
        self.socket = socket.create_connection(("127.0.0.1", port), timeout=5)
        self.socket.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        self.file = self.socket.makefile("rb")
        body = json.dumps({"client_id": "docket", "feature_negotiation": False}).encode()
        self.socket.sendall(b"  V2IDENTIFY\n" + struct.pack(">I", len(body)) + body)
        self.frame()

    def send(self, line, body=None):
        self.socket.sendall(line + b"\n" + (b"" if body is None else struct.pack(">I", len(body)) + body))

    def frame(self):
        """The next reply (kind 0) or message (kind 2); answers heartbeats."""
        while True:
            size, kind = struct.unpack(">II", self.file.read(8))
            data = self.file.read(size - 4)
            if data != b"_heartbeat_":
                return kind, data
            self.send(b"NOP")


def work(number):
    topic = b"orders-%d#ephemeral" % number
    reader, writer = Connection(), Connection()
    reader.send(b"SUB " + topic + b" invoices#ephemeral")
    reader.frame()
    reader.send(b"RDY 200")
    time.sleep(0.05 * number / clients)
    while figures.goes_on():
        start = time.monotonic()
        try:
            writer.send(b"PUB " + topic, b"order 4711: 3 chairs")
            writer.frame()
            _, message = reader.frame()
            figures.answered(start)
            reader.send(b"FIN " + message[10:26])
        except OSError:
            figures.failed()
        time.sleep(gap_ms / 1e3)


side_by_side(work, range(clients))
figures.print()
