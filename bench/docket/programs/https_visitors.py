#!/usr/bin/python3
"""Visitors of an HTTPS server on this host who keep their connections and pause: https_visitors.py PORT VISITORS GAP_MS SECONDS. Prints the
same figures as load.c."""
import http.client
import ssl
import sys
import time

from figures import Figures, side_by_side

port, visitors, gap_ms, seconds = int(sys.argv[1]), int(sys.argv[2]), float(sys.argv[3]), float(sys.argv[4])
context = ssl._create_unverified_context()
figures = Figures(seconds)


def visit(_):
    held = http.client.HTTPSConnection("127.0.0.1", port, context=context)
    held.connect()
    while figures.goes_on():
        start = time.monotonic()
        held.request("GET", "/")
        if held.getresponse().read():
            figures.answered(start)
        time.sleep(gap_ms / 1e3)


side_by_side(visit, range(visitors))
figures.print()
