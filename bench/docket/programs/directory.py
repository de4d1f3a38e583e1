#!/usr/bin/python3
"""Logins that look a person up by mail address: directory.py HOST:PORT SECONDS CONNECTIONS GAP_MS. Prints what load.c prints."""
import json
import random
import sys
import threading
import time

import ldap3

where, seconds, connections, gap = sys.argv[1], float(sys.argv[2]), int(sys.argv[3]), float(sys.argv[4]) / 1e3
host, _, port = where.partition(":")
until = time.monotonic() + seconds
ms, errors = [], []


def work():
    held = ldap3.Connection(ldap3.Server(host, int(port), get_info=ldap3.NONE), auto_bind=True)
    while time.monotonic() < until:
        begun = time.monotonic()
        found = held.search("ou=people,dc=example,dc=org", f"(mail=user{random.randint(1, 20000)}@example.org)", attributes=["uid", "cn"])
        (ms if found else errors).append((time.monotonic() - begun) * 1e3)
        time.sleep(gap)


threads = [threading.Thread(target=work) for _ in range(connections)]
for t in threads:
    t.start()
for t in threads:
    t.join()
ms.sort()
out = {"requests": len(ms), "errors": len(errors), "rate": len(ms) / seconds}
if ms:
    out |= {"mean_ms": sum(ms) / len(ms), "p50_ms": ms[len(ms) // 2], "p99_ms": ms[int(len(ms) * 0.99)]}
print(json.dumps({k: round(v, 3) for k, v in out.items()}), flush=True)
