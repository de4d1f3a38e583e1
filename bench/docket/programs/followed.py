#!/usr/bin/python3
"""People who follow a log over ssh: followed.py LOG SECONDS COUNT SSH... Appends a line to LOG every 120 ms, and measures how long it takes
until each of COUNT runs of the command, which is to follow the file, prints it. Prints the figures of load.c."""
import json
import subprocess
import sys
import threading
import time

path, seconds, count, command = sys.argv[1], float(sys.argv[2]), int(sys.argv[3]), sys.argv[4:]
open(path, "a").close()
ms = []


def follow(child):
    for line in child.stdout:
        ms.append((time.monotonic() - float(line.split()[1])) * 1e3)


children = [subprocess.Popen(command, stdin=subprocess.DEVNULL, stdout=subprocess.PIPE, text=True) for _ in range(count)]
for child in children:
    threading.Thread(target=follow, args=(child,), daemon=True).start()
until = time.monotonic() + seconds
with open(path, "a", buffering=1) as log:
    while time.monotonic() < until:
        log.write(f"request {time.monotonic()} 200 /index.html\n")
        time.sleep(0.12)
time.sleep(0.2)
for child in children:
    child.kill()
ms.sort()
out = {"requests": len(ms), "errors": 0, "rate": len(ms) / seconds}
if ms:
    out |= {"mean_ms": sum(ms) / len(ms), "p50_ms": ms[len(ms) // 2], "p99_ms": ms[int(len(ms) * 0.99)]}
print(json.dumps({k: round(v, 3) for k, v in out.items()}), flush=True)
