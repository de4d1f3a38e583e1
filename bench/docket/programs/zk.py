#!/usr/bin/python3
"""Clients of ZooKeeper: zk.py load HOSTS SECONDS CLIENTS sets nodes, each client its own, and prints the same figures as load.c; zk.py
read HOSTS SECONDS CLIENTS GAP_MS reads them; zk.py idle HOSTS SESSIONS FILE opens sessions that only ping, and then writes FILE."""
import logging
import sys
import time

from kazoo.client import KazooClient

from figures import Figures, side_by_side

logging.disable(logging.CRITICAL)
mode, hosts = sys.argv[1:3]


def session(timeout):
    client = KazooClient(hosts=hosts, timeout=timeout)
    client.start(timeout=20)
    return client


if mode == "idle":
    sessions = [session(3) for _ in range(int(sys.argv[3]))]
    for s in sessions:
        s.ensure_path("/app/members")
        s.get_children("/app/members", watch=lambda event: None)
    open(sys.argv[4], "w").close()
    time.sleep(1e6)
seconds, count = float(sys.argv[3]), int(sys.argv[4])
gap = float(sys.argv[5]) / 1e3 if len(sys.argv) > 5 else 0
clients = [session(10) for _ in range(count)]
for i, c in enumerate(clients):
    c.ensure_path(f"/app/offset{i}")
figures = Figures(seconds)


def work(i):
    while figures.goes_on():
        start = time.monotonic()
        try:
            if mode == "read":
                clients[i].get(f"/app/offset{i}")
            else:
                clients[i].set(f"/app/offset{i}", b"x" * 100)
            figures.answered(start)
        except Exception:
            figures.failed()
        time.sleep(gap)


side_by_side(work, range(count))
figures.print()
