#!/usr/bin/python3
"""A web application with an SQLite database, and the import job that writes to the same file.

    gunicorn visits:application                 each request records a visit
    visits.py import FILE ROWS SECONDS          imports without end: ROWS rows in each transaction, and SECONDS until it has the next row
"""
import os
import sqlite3
import sys
import threading
import time

LOCAL = threading.local()


def database(file):
    held = sqlite3.connect(file, timeout=20, isolation_level=None)
    held.execute("pragma journal_mode=wal")
    held.execute("pragma synchronous=normal")
    held.execute("create table if not exists visit (at real, page text)")
    return held


def application(environ, start_response):
    if not hasattr(LOCAL, "database"):
        LOCAL.database = database(os.environ["DOCKET_FILE"])
    LOCAL.database.execute("insert into visit values (?, ?)", (time.time(), environ["PATH_INFO"]))
    start_response("200 OK", [("Content-Length", "3")])
    return [b"ok\n"]


def load(file, rows, seconds):
    held = database(file)
    while True:
        for i in range(int(rows)):
            time.sleep(float(seconds))  # until the other host has sent a row
            if i == 0:
                held.execute("begin immediate")
            held.execute("insert into visit values (?, ?)", (time.time(), f"import/{i}"))
        held.execute("commit")


if __name__ == "__main__":
    load(*sys.argv[2:])
