#!/usr/bin/python3
"""The pollers of a Zabbix server: some ask an agent for a slow item all the time, others for a quick one, which is what is measured.
zabbix.py PORT SLOW_POLLERS SLOW_KEY POLLERS KEY GAP_MS SECONDS"""
import socket
import struct
import sys
import time

from figures import Figures, side_by_side

port, slow, slow_key, quick, quick_key, gap_ms, seconds = sys.argv[1:]
figures = Figures(float(seconds))


def get(key):
    with socket.create_connection(("127.0.0.1", int(port)), timeout=8) as s:
        s.sendall(b"ZBXD\1" + struct.pack("<Q", len(key)) + key.encode())
        reply = b""
        while part := s.recv(4096):
            reply += part
        if not reply.startswith(b"ZBXD"):
            raise OSError("no reply")


def work(number):
    is_slow = number < int(slow)
    while figures.goes_on():
        start = time.monotonic()
        try:
            get(slow_key if is_slow else quick_key)
            if not is_slow:
                figures.answered(start)
        except OSError:
            if not is_slow:
                figures.failed()
            time.sleep(0.01)
        if not is_slow:
            time.sleep(float(gap_ms) / 1e3)


side_by_side(work, range(int(slow) + int(quick)))
figures.print()
