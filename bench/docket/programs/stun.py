#!/usr/bin/python3
"""Clients of a STUN server: stun.py HOST PORT CLIENTS GAP_MS SECONDS. Each sends a binding request every GAP_MS and waits for its reply.
Prints the same figures as load.c."""
import os
import socket
import struct
import sys
import threading
import time

from figures import Figures, side_by_side

host, port, clients, gap, seconds = sys.argv[1], int(sys.argv[2]), int(sys.argv[3]), float(sys.argv[4]) / 1e3, float(sys.argv[5])
threading.stack_size(1 << 18)
figures = Figures(seconds)


def work(i):
    s = socket.socket(socket.AF_INET, socket.SOCK_DGRAM)
    s.connect((host, port))
    s.settimeout(2)
    time.sleep(gap * i / clients)
    while figures.goes_on():
        start, mark = time.monotonic(), os.urandom(12)
        try:
            s.send(struct.pack(">HHI", 1, 0, 0x2112A442) + mark)
            while s.recv(2048)[8:20] != mark:
                pass
            figures.answered(start)
        except OSError:
            figures.failed()
        time.sleep(gap)


side_by_side(work, range(clients))
figures.print()
