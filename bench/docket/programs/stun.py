#!/usr/bin/python3
"""Clients of a STUN server: stun.py HOST PORT CLIENTS GAP_MS SECONDS. Each sends a binding request every GAP_MS and waits for its reply.
Prints the same figures as load.c."""
import json
import os
import socket
import struct
import sys
import threading
import time

host, port, clients, gap, seconds = sys.argv[1], int(sys.argv[2]), int(sys.argv[3]), float(sys.argv[4]) / 1e3, float(sys.argv[5])
taken, errors, lock = [], [0], threading.Lock()
threading.stack_size(1 << 18)
begun = time.monotonic()
stop = begun + seconds


def work(i):
    s = socket.socket(socket.AF_INET, socket.SOCK_DGRAM)
    s.connect((host, port))
    s.settimeout(2)
    time.sleep(gap * i / clients)
    while time.monotonic() < stop:
        start, mark = time.monotonic(), os.urandom(12)
        try:
            s.send(struct.pack(">HHI", 1, 0, 0x2112A442) + mark)
            while s.recv(2048)[8:20] != mark:
                pass
            with lock:
                taken.append((time.monotonic() - start) * 1e3)
        except OSError:
            errors[0] += 1
        time.sleep(gap)


threads = [threading.Thread(target=work, args=(i,)) for i in range(clients)]
for t in threads:
    t.start()
for t in threads:
    t.join()
spent = time.monotonic() - begun
taken.sort()
n = len(taken)
out = {"requests": n, "errors": errors[0], "rate": round(n / spent, 3)}
if n:
    out.update(mean_ms=round(sum(taken) / n, 3), p50_ms=round(taken[n // 2], 3), p99_ms=round(taken[int(n * 0.99)], 3))
print(json.dumps(out))
