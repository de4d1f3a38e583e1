#!/usr/bin/python3
"""SIP clients over UDP: sip_calls.py HOST PORT CLIENTS SECONDS [METHOD GAP_MS]. Each sends an INVITE (or METHOD), waits for the final
reply, acknowledges it, and calls again. Prints the same figures as load.c."""
import socket
import sys
import time

from figures import Figures, side_by_side

host, port, clients, seconds = sys.argv[1], int(sys.argv[2]), int(sys.argv[3]), float(sys.argv[4])
method, gap = (sys.argv[5], float(sys.argv[6]) / 1e3) if len(sys.argv) > 6 else ("INVITE", 0)
figures = Figures(seconds)


def message(kind, i, n, me):
    return (f"{kind} sip:bob@{host} SIP/2.0\r\nVia: SIP/2.0/UDP {me};branch=z9hG4bK{i}-{n}\r\nMax-Forwards: 70\r\n"
            f"From: <sip:phone{i}@{host}>;tag={i}{n}\r\nTo: <sip:bob@{host}>\r\nCall-ID: {i}-{n}@{me}\r\nCSeq: {n} {kind}\r\n"
            f"Contact: <sip:phone{i}@{me}>\r\nContent-Length: 0\r\n\r\n").encode()


def work(i):
    s = socket.socket(socket.AF_INET, socket.SOCK_DGRAM)
    s.connect((host, port))
    s.settimeout(5)
    me = "%s:%d" % s.getsockname()
    n = 0
    time.sleep(gap * i / clients)
    while figures.goes_on():
        n += 1
        start = time.monotonic()
        try:
            s.send(message(method, i, n, me))
            while True:
                reply = s.recv(4096)
                if f"Call-ID: {i}-{n}@".encode() in reply and not reply.startswith(b"SIP/2.0 1"):
                    break
            figures.answered(start)
            if method == "INVITE":
                s.send(message("ACK", i, n, me))
        except OSError:
            figures.failed()
        time.sleep(gap)


side_by_side(work, range(clients))
figures.print()
