#!/usr/bin/python3
"""Clients of Tarantool that call a function without arguments: iproto.py HOST PORT FUNCTION CLIENTS SECONDS [GAP_MS [CALLS]].
Each has a connection of its own, sends CALLS at once (1), and again when it has all replies. Prints the same figures as load.c."""
import socket
import struct
import sys
import time

from figures import Figures, side_by_side

host, port, function, clients, seconds = sys.argv[1], int(sys.argv[2]), sys.argv[3].encode(), int(sys.argv[4]), float(sys.argv[5])
gap_s, calls = float((sys.argv[6:] or ["0"])[0]) / 1e3, int((sys.argv[7:] or ["1"])[0])
figures = Figures(seconds)


def receive(replying, n):
    data = replying.read(n)
    if len(data) < n:
        raise OSError("closed")
    return data


def work(_):
    s = replying = None
    # A map of the code (0: 10, a call) and of the number of the request, and one of the function's name and its arguments.
    text = b"\x82\x00\x0a\x01\x01" + b"\x82\x22" + bytes([0xA0 + len(function)]) + function + b"\x21\x90"
    request = b"\xce" + struct.pack(">I", len(text)) + text
    while figures.goes_on():
        start = time.monotonic()
        try:
            if s is None:
                s = socket.create_connection((host, port), timeout=10)
                s.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
                replying = s.makefile("rb")
                receive(replying, 128)
                start = time.monotonic()
            s.sendall(request * calls)
            replies = [receive(replying, struct.unpack(">I", receive(replying, 5)[1:])[0]) for _ in range(calls)]
            # The reply's code (key 0) is not 0 for an error.
            if all(reply[1:6] == b"\x00\xce\x00\x00\x00" for reply in replies):
                figures.answered(start)
            else:
                figures.failed()
        except OSError:
            figures.failed()
            s = None
            time.sleep(0.01)
        time.sleep(gap_s)


side_by_side(work, range(clients))
figures.print()
