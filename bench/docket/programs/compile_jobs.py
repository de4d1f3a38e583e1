#!/usr/bin/python3
"""Files that are compiled by distccd: compile_jobs.py PORT PARALLEL COMPILER SECONDS. Speaks distcc's protocol (version 1), each job on its
own connection, and prints what load.c prints."""
import socket
import sys
import time

from figures import Figures, side_by_side

port, parallel, compiler, figures = int(sys.argv[1]), int(sys.argv[2]), sys.argv[3], Figures(float(sys.argv[4]))


def token(name, value, data=b""):
    return b"%s%08x%s" % (name, value, data)


def job():
    words = [compiler.encode(), b"-c", b"part.c", b"-o", b"part.o"]
    source = b"int part(int x) { return x + 1; }\n" * 20
    out = token(b"DIST", 1) + token(b"ARGC", len(words))
    out += b"".join(token(b"ARGV", len(word), word) for word in words) + token(b"DOTI", len(source), source)
    with socket.create_connection(("127.0.0.1", port), timeout=10) as one:
        one.sendall(out)
        reply = b""
        while part := one.recv(65536):
            reply += part
    return b"STAT00000000" in reply


def work(_):
    while figures.goes_on():
        start = time.monotonic()
        try:
            good = job()
        except OSError:
            good = False
        if good:
            figures.answered(start)
        else:
            figures.failed()
        time.sleep(0.03)


side_by_side(work, range(parallel))
figures.print()
