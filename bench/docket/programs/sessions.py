#!/usr/bin/python3
"""Clients of PostgreSQL that connect, ask, think, ask again and leave: sessions.py DATABASE SECONDS CLIENTS THINK_MS. The figures, the
same as of load.c, are of the time from connecting to the first answer."""
import json
import sys
import threading
import time

import psycopg2

database, seconds, clients, think = sys.argv[1], float(sys.argv[2]), int(sys.argv[3]), float(sys.argv[4]) / 1e3
taken, errors, lock = [], [0], threading.Lock()
begun = time.monotonic()
stop = begun + seconds


def work(i):
    n = i
    while time.monotonic() < stop:
        start = time.monotonic()
        n += clients
        try:
            connection = psycopg2.connect(database)
            connection.autocommit = True
            cursor = connection.cursor()
            cursor.execute("select balance from account where id = %s", (n % 20000 + 1,))
            cursor.fetchall()
            with lock:
                taken.append((time.monotonic() - start) * 1e3)
            time.sleep(think)
            cursor.execute("select balance from account where id = %s", (n % 20000 + 1,))
            cursor.fetchall()
            connection.close()
        except psycopg2.Error:
            errors[0] += 1
            time.sleep(0.02)


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
