#!/usr/bin/python3
"""A load of SQL statements over several connections, and a session that holds a row.

    sql.py load DATABASE SECONDS CONNECTIONS FRESH STATEMENT [GAP_MS]   prints what the clients saw, as load.c does
    sql.py hold DATABASE STATEMENT [FILE]                               runs it in a transaction and keeps that open

DATABASE is a connection string of libpq, or maria:PORT or maria:HOST:PORT.
"""
import json
import sys
import threading
import time


def connect(where):
    if where.startswith("maria:"):
        import pymysql
        host, _, port = where[6:].rpartition(":")
        return pymysql.connect(host=host or "127.0.0.1", port=int(port), user="docket", database="docket", autocommit=True)
    import psycopg2
    held = psycopg2.connect(where)
    held.autocommit = True
    return held


def hold(where, statement, ready):
    held = connect(where)
    if where.startswith("maria:"):
        held.autocommit(False)
    else:
        held.autocommit = False
    held.cursor().execute(statement)
    open(ready, "w").close()
    time.sleep(1e6)


def work(where, until, fresh, statement, gap, out):
    held = None
    while time.monotonic() < until:
        begun = time.monotonic()
        try:
            held = held if held and not fresh else connect(where)
            cursor = held.cursor()
            for one in statement.split(";;"):
                cursor.execute(one)
            if fresh:
                held.close()
            out.append((time.monotonic() - begun) * 1e3)
            if gap:
                time.sleep(gap)
        except Exception as e:  # the drivers' errors share no base class
            out.append(None)
            print(e, file=sys.stderr)
            held = None
            time.sleep(0.02)


def load(where, seconds, connections, fresh, statement, gap=0.0):
    results = [[] for _ in range(connections)]
    begun = time.monotonic()
    threads = [threading.Thread(target=work, args=(where, begun + seconds, fresh, statement, gap, r), daemon=True) for r in results]
    for t in threads:
        t.start()
    for t in threads:
        t.join(max(0.1, begun + seconds + 5 - time.monotonic()))
    took = time.monotonic() - begun
    ms = sorted(x for r in results for x in r if x is not None)
    errors = sum(x is None for r in results for x in r)
    out = {"requests": len(ms), "errors": errors, "rate": len(ms) / took}
    if ms:
        out |= {"mean_ms": sum(ms) / len(ms), "p50_ms": ms[len(ms) // 2], "p99_ms": ms[int(len(ms) * 0.99)]}
    print(json.dumps({k: round(v, 3) for k, v in out.items()}), flush=True)


if sys.argv[1] == "hold":
    hold(sys.argv[2], sys.argv[3], sys.argv[4])
else:
    load(sys.argv[2], float(sys.argv[3]), int(sys.argv[4]), sys.argv[5] == "1", sys.argv[6], float((sys.argv[7:] or [0])[0]) / 1e3)
