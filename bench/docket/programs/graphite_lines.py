#!/usr/bin/python3
"""Relays that send metrics to Graphite as lines, each over one connection: graphite_lines.py PORT RELAYS RATE SECONDS. RATE is lines a second
of all relays, of 1000 metrics. Prints the lines a second that the server's host took."""
import json
import socket
import sys
import threading
import time

port, relays, rate, seconds = int(sys.argv[1]), int(sys.argv[2]), float(sys.argv[3]), float(sys.argv[4])
BATCH = 50
stop = time.monotonic() + seconds
sent = [0] * relays


def relay(number):
    to = socket.create_connection(("127.0.0.1", port))
    to.setsockopt(socket.SOL_SOCKET, socket.SO_SNDBUF, 16384)
    to.settimeout(0.5)
    n, due = number, time.monotonic()
    while time.monotonic() < stop:
        now = int(time.time())
        lines = "".join(f"shops.shop{(n + i) % 1000:04d}.sales.count {i}.000000000000000000000000000000 {now}\n" for i in range(BATCH)).encode()
        while lines and time.monotonic() < stop:
            try:
                lines = lines[to.send(lines):]
            except TimeoutError:
                pass
        if not lines:
            n += BATCH
            sent[number] += BATCH
        due = max(due + BATCH * relays / rate, time.monotonic() - 0.1)
        time.sleep(max(0, due - time.monotonic()))


threads = [threading.Thread(target=relay, args=(n,)) for n in range(relays)]
for t in threads:
    t.start()
for t in threads:
    t.join()
print(json.dumps({"requests": sum(sent), "errors": 0, "rate": round(sum(sent) / seconds, 1)}))
