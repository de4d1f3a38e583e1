#!/usr/bin/python3
"""Runs a command again and again, several at a time, and prints how long it took. A command that fails or takes longer than --limit
is an error. `timed.py --parallel 2 --for 3 --bytes 1000000 -- curl -s http://...`"""
import argparse
import json
import os
import signal
import subprocess
import threading
import time

p = argparse.ArgumentParser()
p.add_argument("--parallel", type=int, default=1)
p.add_argument("--for", dest="seconds", type=float, default=3)
p.add_argument("--limit", type=float, default=10, help="seconds after which a command is ended")
p.add_argument("--gap-ms", type=float, default=0)
p.add_argument("--bytes", type=int, default=0, help="bytes that one command transfers")
p.add_argument("command", nargs="+")
o = p.parse_args()
taken, errors, lock = [], [0], threading.Lock()
begun = time.monotonic()
stop = begun + o.seconds


def work():
    while time.monotonic() < stop:
        start = time.monotonic()
        child = subprocess.Popen(o.command, stdin=subprocess.DEVNULL, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL,
                                 start_new_session=True)
        try:
            good = child.wait(timeout=min(o.limit, max(0.1, stop + 1 - start))) == 0
        except subprocess.TimeoutExpired:
            os.killpg(child.pid, signal.SIGKILL)
            child.wait()
            good = False
        with lock:
            if good:
                taken.append((time.monotonic() - start) * 1e3)
            else:
                errors[0] += 1
        time.sleep(o.gap_ms / 1e3)


threads = [threading.Thread(target=work) for _ in range(o.parallel)]
for t in threads:
    t.start()
for t in threads:
    t.join()
spent = time.monotonic() - begun
taken.sort()
n = len(taken)
out = {"requests": n, "errors": errors[0], "rate": round(n / spent, 3), "mb_s": round(n * o.bytes / spent / 1e6, 3)}
if n:
    out.update(mean_ms=round(sum(taken) / n, 3), p50_ms=round(taken[n // 2], 3), p99_ms=round(taken[int(n * 0.99)], 3))
print(json.dumps(out))
