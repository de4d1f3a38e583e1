#!/usr/bin/python3
"""Clients of an HTTP service that send bodies, each on a connection that it keeps: posts.py --port 8086 --parallel 4 --body 'a b=1'
/path. `#` in the path and the body is a number that differs each time. Prints the same figures as load.c."""
import argparse
import http.client
import itertools
import socket
import time

from figures import Figures, side_by_side

p = argparse.ArgumentParser()
p.add_argument("--host", default="127.0.0.1")
p.add_argument("--port", type=int, required=True)
p.add_argument("--method", default="POST")
p.add_argument("--header", action="append", default=[], help="'name: value'")
p.add_argument("--body", default="")
p.add_argument("--parallel", type=int, default=1)
p.add_argument("--for", dest="seconds", type=float, default=3)
p.add_argument("--gap-ms", type=float, default=0)
p.add_argument("path")
o = p.parse_args()
headers = dict(h.split(": ", 1) for h in o.header)
numbers = itertools.count(1)
figures = Figures(o.seconds)


def work(_):
    connection = None
    while figures.goes_on():
        start = time.monotonic()
        number = str(next(numbers))
        try:
            if connection is None:
                connection = http.client.HTTPConnection(o.host, o.port, timeout=10)
                connection.connect()
                connection.sock.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
            body = o.body.replace("#", number).encode() if o.body else None
            connection.request(o.method, o.path.replace("#", number), body, headers)
            reply = connection.getresponse()
            reply.read()
            good = reply.status < 300
        except (OSError, http.client.HTTPException):
            connection.close()
            connection, good = None, False
        if good:
            figures.answered(start)
        else:
            figures.failed()
        time.sleep(o.gap_ms / 1e3)


side_by_side(work, range(o.parallel))
figures.print()
