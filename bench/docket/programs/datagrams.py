#!/usr/bin/python3
"""Clients of UDP services: datagrams.py KIND HOST PORT CLIENTS RATE SECONDS [NAME]. Each asks, waits for the reply, and asks again;
RATE is of all together (0: at once). KIND is radius (users NAME-0, NAME-1, ... whose password is wrong) or ntp. A question is sent
again after a second, at most twice. Prints the same figures as load.c."""
import hashlib
import json
import os
import socket
import struct
import sys
import threading
import time

kind, host, port, clients, rate, seconds = sys.argv[1], sys.argv[2], *map(int, sys.argv[3:5]), *map(float, sys.argv[5:7])
name = (sys.argv[7:] or ["device"])[0]
results, errors = [[] for _ in range(clients)], [0] * clients
begun = time.monotonic()


def radius(number):
    secret, authenticator, password = b"testing123", os.urandom(16), b"wrong".ljust(16, b"\0")
    hidden = bytes(a ^ b for a, b in zip(password, hashlib.md5(secret + authenticator).digest()))
    who = f"{name}-{number}".encode()
    attributes = bytes([1, len(who) + 2]) + who + bytes([2, 18]) + hidden + bytes([4, 6, 127, 0, 0, 1])
    return struct.pack(">BBH", 1, number % 256, 20 + len(attributes)) + authenticator + attributes


def ntp(number):
    return b"\x23" + b"\0" * 39 + struct.pack(">Q", number + 1)


def ask(s, question):
    for _ in range(3):
        s.send(question)
        try:
            while True:
                reply = s.recv(4096)
                if reply[24:32] == question[40:48] if kind == "ntp" else reply[1] == question[1]:
                    return True
        except (TimeoutError, ConnectionRefusedError):
            pass
    return False


def work(mine):
    s = socket.socket(socket.AF_INET, socket.SOCK_DGRAM)
    s.settimeout(1)
    s.connect((host, port))
    due, number = time.monotonic() + (mine / rate if rate else 0), mine
    while time.monotonic() < begun + seconds:
        if rate:
            time.sleep(max(0, due - time.monotonic()))
            due = max(due + clients / rate, time.monotonic())
        at = time.monotonic()
        if ask(s, {"radius": radius, "ntp": ntp}[kind](number)):
            results[mine].append((time.monotonic() - at) * 1e3)
        else:
            errors[mine] += 1
        number += clients


threads = [threading.Thread(target=work, args=(i,), daemon=True) for i in range(clients)]
for t in threads:
    t.start()
for t in threads:
    t.join(max(0.1, begun + seconds + 4 - time.monotonic()))
took = time.monotonic() - begun
ms = sorted(x for r in results for x in r)
out = {"requests": len(ms), "errors": sum(errors), "rate": len(ms) / took}
if ms:
    out |= {"mean_ms": sum(ms) / len(ms), "p50_ms": ms[len(ms) // 2], "p99_ms": ms[int(len(ms) * 0.99)]}
print(json.dumps({k: round(v, 3) for k, v in out.items()}), flush=True)
