#!/usr/bin/python3
"""A load of HTTPS requests: https.py SECONDS CONNECTIONS FRESH. Prints the same figures as load.c."""
import http.client
import json
import ssl
import sys
import threading
import time

seconds, connections, fresh = float(sys.argv[1]), int(sys.argv[2]), sys.argv[3] == "1"
context = ssl._create_unverified_context()
results = [[] for _ in range(connections)]
until = time.monotonic() + seconds


def work(out):
    held = None
    while time.monotonic() < until:
        begun = time.monotonic()
        held = held or http.client.HTTPSConnection("127.0.0.1", 8443, context=context)
        held.request("GET", "/")
        held.getresponse().read()
        if fresh:
            held.close()
            held = None
        out.append((time.monotonic() - begun) * 1e3)


threads = [threading.Thread(target=work, args=(r,), daemon=True) for r in results]
for t in threads:
    t.start()
for t in threads:
    t.join()
ms = sorted(x for r in results for x in r)
print(json.dumps({"requests": len(ms), "errors": 0, "rate": len(ms) / seconds, "mean_ms": sum(ms) / len(ms), "p50_ms": ms[len(ms) // 2],
                  "p99_ms": ms[int(len(ms) * 0.99)]}))
