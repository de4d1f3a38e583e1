#!/usr/bin/python3
"""SIP clients over UDP: sip_calls.py HOST PORT CLIENTS SECONDS [METHOD GAP_MS]. Each sends an INVITE (or METHOD), waits for the final
reply, acknowledges it, and calls again. Prints the same figures as load.c."""
import json
import socket
import sys
import threading
import time

host, port, clients, seconds = sys.argv[1], int(sys.argv[2]), int(sys.argv[3]), float(sys.argv[4])
method, gap = (sys.argv[5], float(sys.argv[6]) / 1e3) if len(sys.argv) > 6 else ("INVITE", 0)
taken, errors, lock = [], [0], threading.Lock()
begun = time.monotonic()
stop = begun + seconds


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
    while time.monotonic() < stop:
        n += 1
        start = time.monotonic()
        try:
            s.send(message(method, i, n, me))
            while True:
                reply = s.recv(4096)
                if f"Call-ID: {i}-{n}@".encode() in reply and not reply.startswith(b"SIP/2.0 1"):
                    break
            with lock:
                taken.append((time.monotonic() - start) * 1e3)
            if method == "INVITE":
                s.send(message("ACK", i, n, me))
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
