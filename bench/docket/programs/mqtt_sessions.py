#!/usr/bin/python3
"""Clients of an MQTT broker that speak it themselves, without a library.

    mqtt_sessions.py hold HOST:PORT COUNT FILE            COUNT clients connect, ping every 20 s, and stay; then FILE is written
    mqtt_sessions.py load HOST:PORT COUNT STAY_MS SECONDS each connects, publishes, and leaves after a while, again and again; measured
                                                          is the time until the message is confirmed
"""
import itertools
import socket
import sys
import time

from figures import Figures, side_by_side

what, where, count = sys.argv[1], sys.argv[2], int(sys.argv[3])
host, _, port = where.partition(":")
numbers = itertools.count()


def text(s):
    return len(s).to_bytes(2, "big") + s


def exact(s, n):
    data = b""
    while len(data) < n:
        part = s.recv(n - len(data))
        if not part:
            raise OSError("closed")
        data += part
    return data


def connect():
    s = socket.create_connection((host, int(port)), timeout=2)
    try:
        s.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        body = text(b"MQTT") + b"\x04\x02\x00\x3c" + text(b"%s-%d" % (what.encode(), next(numbers)))
        s.sendall(b"\x10" + bytes([len(body)]) + body)
        if exact(s, 4) != b"\x20\x02\x00\x00":
            raise OSError("refused")
    except OSError:
        s.close()
        raise
    return s


if what == "hold":
    held = [connect() for _ in range(count)]
    open(sys.argv[4], "w").close()
    while True:
        time.sleep(20)
        for s in held:
            s.sendall(b"\xc0\x00")
            exact(s, 2)
stay, seconds = float(sys.argv[4]) / 1e3, float(sys.argv[5])
figures = Figures(seconds)


def work(number):
    time.sleep(stay * number / count)
    while figures.goes_on():
        start = time.monotonic()
        try:
            with connect() as s:
                body = text(b"meters/%d" % number) + b"\x00\x01" + b"21.5 kWh"
                s.sendall(b"\x32" + bytes([len(body)]) + body)
                exact(s, 4)
                figures.answered(start)
                time.sleep(stay)
                s.sendall(b"\xe0\x00")
        except OSError:
            figures.failed()
            time.sleep(0.1)


side_by_side(work, range(count))
figures.print()
