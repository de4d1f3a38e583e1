#!/usr/bin/python3
"""Clients of PostgreSQL that connect, ask, think, ask again and leave: sessions.py DATABASE SECONDS CLIENTS THINK_MS. The figures, the
same as of load.c, are of the time from connecting to the first answer."""
import sys
import time

import psycopg2

from figures import Figures, side_by_side

database, seconds, clients, think = sys.argv[1], float(sys.argv[2]), int(sys.argv[3]), float(sys.argv[4]) / 1e3
figures = Figures(seconds)


def work(i):
    n = i
    while figures.goes_on():
        start = time.monotonic()
        n += clients
        try:
            connection = psycopg2.connect(database)
            connection.autocommit = True
            cursor = connection.cursor()
            cursor.execute("select balance from account where id = %s", (n % 20000 + 1,))
            cursor.fetchall()
            figures.answered(start)
            time.sleep(think)
            cursor.execute("select balance from account where id = %s", (n % 20000 + 1,))
            cursor.fetchall()
            connection.close()
        except psycopg2.Error:
            figures.failed()
            time.sleep(0.02)


side_by_side(work, range(clients))
figures.print()
