#!/usr/bin/python3
"""Browsers of HTTP/2, by h2load: h2load.py --clients 2 --streams 10 --for 3 URL. Prints the same figures as load.c, of all requests."""
import argparse
import json
import os
import subprocess
import tempfile

p = argparse.ArgumentParser()
p.add_argument("--clients", type=int, default=1)
p.add_argument("--streams", type=int, default=10, help="requests at a time of each client")
p.add_argument("--for", dest="seconds", type=float, default=3)
p.add_argument("url")
o = p.parse_args()
with tempfile.TemporaryDirectory() as folder:
    log = os.path.join(folder, "log")
    subprocess.run(["h2load", "--clients", str(o.clients), "--threads", "1", "--max-concurrent-streams", str(o.streams), "--duration",
                    str(max(1, round(o.seconds))), "--log-file", log, o.url], stdout=subprocess.DEVNULL, check=True)
    with open(log, encoding="ascii") as f:  # each line has the time of a request, its status, and its microseconds
        requests = [line.split() for line in f]
ms = sorted(int(r[2]) / 1e3 for r in requests if r[1] == "200")
n = len(ms)
out = {"requests": n, "errors": len(requests) - n, "rate": round(n / o.seconds, 1)}
if n:
    out.update(mean_ms=round(sum(ms) / n, 3), p50_ms=round(ms[n // 2], 3), p99_ms=round(ms[int(n * 0.99)], 3))
print(json.dumps(out))
