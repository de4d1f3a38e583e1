#!/usr/bin/python3
"""Hosts that log to a syslog server over UDP in bursts, for example all when their cron runs: syslogs.py HOST PORT LINES EVERY_MS FILE
SECONDS. Waits a second at the end, and prints as rate how many lines a second the server has written into FILE."""
import json
import socket
import sys
import time

host, port, lines = sys.argv[1], int(sys.argv[2]), int(sys.argv[3])
every, path, seconds = float(sys.argv[4]) / 1e3, sys.argv[5], float(sys.argv[6])
s = socket.socket(socket.AF_INET, socket.SOCK_DGRAM)
s.connect((host, port))


def written():
    try:
        with open(path, "rb") as f:
            return sum(part.count(b"\n") for part in iter(lambda: f.read(1 << 20), b""))
    except FileNotFoundError:
        return 0


before, sent, begun = written(), 0, time.monotonic()
due = begun
while time.monotonic() < begun + seconds:
    for n in range(lines):
        s.send(b"<78>Nov 26 04:00:01 web%03d CRON[%d]: (root) CMD (cd / && run-parts --report /etc/cron.hourly) %0100d" % (n % 200, n, n))
    sent += lines
    due = max(due + every, time.monotonic())
    time.sleep(due - time.monotonic() if due > time.monotonic() else 0)
time.sleep(1)
got = written() - before
print(json.dumps({"requests": got, "errors": sent - got, "sent": sent, "rate": round(got / seconds, 1)}), flush=True)
