#!/usr/bin/python3
"""A dashboard that counts the visitors of pages, each of which is a bitmap in redis: visitors.py HOST PORT CLIENTS SECONDS. Prints the
same figures as load.c."""
import json
import random
import sys
import threading
import time

import redis

host, port, clients, seconds = sys.argv[1], int(sys.argv[2]), int(sys.argv[3]), float(sys.argv[4])
PAGES = [f"visitors:{n}" for n in range(20)]
first = redis.Redis(host=host, port=port)
for page in PAGES:
    first.setbit(page, 64_000_000, 1)
results, begun = [[] for _ in range(clients)], time.monotonic()


def work(out):
    held = redis.Redis(host=host, port=port)
    while time.monotonic() < begun + seconds:
        at = time.monotonic()
        held.bitcount(random.choice(PAGES))
        out.append((time.monotonic() - at) * 1e3)
        time.sleep(0.03)


threads = [threading.Thread(target=work, args=(r,)) for r in results]
for t in threads:
    t.start()
for t in threads:
    t.join()
took = time.monotonic() - begun
ms = sorted(x for r in results for x in r)
out = {"requests": len(ms), "errors": 0, "rate": len(ms) / took, "mean_ms": sum(ms) / len(ms), "p50_ms": ms[len(ms) // 2],
       "p99_ms": ms[int(len(ms) * 0.99)]}
print(json.dumps({k: round(v, 3) for k, v in out.items()}), flush=True)
