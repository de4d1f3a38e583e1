#!/usr/bin/python3
"""A browser that sends several requests of one session at once, waits for all answers, and does so again:
session_page.py URL PARALLEL SECONDS"""
import http.client
import sys
import threading
import time
import urllib.parse

from figures import Figures, side_by_side

where = urllib.parse.urlsplit(sys.argv[1])
parallel = int(sys.argv[2])
first = http.client.HTTPConnection(where.hostname, where.port)
first.request("GET", where.path)
answer = first.getresponse()
answer.read()
cookie = (answer.headers["Set-Cookie"] or "").split(";")[0]
first.close()
figures, together = Figures(float(sys.argv[3])), threading.Barrier(parallel)


def work(_):
    held = http.client.HTTPConnection(where.hostname, where.port)
    while figures.goes_on():
        try:
            together.wait(5)
        except threading.BrokenBarrierError:
            return
        start = time.monotonic()
        held.request("GET", where.path, headers={"Cookie": cookie})
        if held.getresponse().read():
            figures.answered(start)
        time.sleep(0.02)
    together.abort()


side_by_side(work, range(parallel))
figures.print()
