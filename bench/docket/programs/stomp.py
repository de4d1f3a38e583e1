#!/usr/bin/python3
"""Clients of a broker that speaks STOMP.

    stomp.py send PORT QUEUE PRODUCERS BYTES SECONDS [GAP_MS]   each waits for the receipt of each message; prints the times
    stomp.py fill PORT QUEUE MESSAGES BYTES FILE                sends messages and writes FILE when the broker has them, or takes no more
    stomp.py idle PORT QUEUE CONSUMERS HEARTBEAT_MS FILE        consumers of a queue that stays empty, with heartbeats both ways
    stomp.py flow PORT QUEUE SECONDS GAP_MS                     sends messages to a consumer; prints the time until delivery
"""
import select
import socket
import sys
import time

from figures import Figures, side_by_side

what, port, queue = sys.argv[1], int(sys.argv[2]), sys.argv[3]
more = sys.argv[4:]


class Client:
    def __init__(self, heartbeat_ms=0, timeout=2.5):
        self.socket = socket.create_connection(("127.0.0.1", port), timeout=timeout)
        self.socket.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        self.rest, self.receipts = b"", 0
        self.write("CONNECT", {"accept-version": "1.2", "host": "shop", "heart-beat": f"{heartbeat_ms},{heartbeat_ms}"})
        self.read()

    def write(self, command, headers, body=b""):
        head = command + "\n" + "".join(f"{k}:{v}\n" for k, v in headers.items()) + "\n"
        self.socket.sendall(head.encode() + body + b"\0")

    def read(self):
        while b"\0" not in self.rest:
            got = self.socket.recv(65536)
            if not got:
                raise OSError("closed")
            self.rest += got
        frame, _, self.rest = self.rest.partition(b"\0")
        return frame.lstrip(b"\n")

    def send(self, body):
        """Sends a message and waits until the broker has it."""
        self.receipts += 1
        self.write("SEND", {"destination": "/queue/" + queue, "receipt": self.receipts, "content-length": len(body)}, body)
        if not self.read().startswith(b"RECEIPT"):
            raise OSError("refused")

    def subscribe(self):
        self.write("SUBSCRIBE", {"destination": "/queue/" + queue, "id": "0", "ack": "auto"})


def send(producers, size, seconds, gap_ms):
    figures, body = Figures(seconds), b"x" * size

    def produce(_):
        client = None
        while figures.goes_on():
            start = time.monotonic()
            try:
                client = client or Client()
                client.send(body)
                figures.answered(start)
            except OSError:
                figures.failed()
                client = None
            time.sleep(gap_ms / 1e3)
    side_by_side(produce, range(producers))
    figures.print()


def fill(messages, size, ready):
    client = Client(timeout=1.5)
    try:
        for _ in range(messages):
            client.send(b"x" * size)
    except OSError:
        client.socket.close()
    open(ready, "w").close()
    time.sleep(1e6)


def idle(consumers, heartbeat_ms, ready):
    clients = [Client(heartbeat_ms) for _ in range(consumers)]
    for client in clients:
        client.subscribe()
    open(ready, "w").close()
    beat = time.monotonic()
    while True:
        readable, _, _ = select.select([c.socket for c in clients], [], [], 0.05)
        for one in readable:
            one.recv(65536)
        if time.monotonic() - beat > heartbeat_ms / 1.5e3:
            beat = time.monotonic()
            for client in clients:
                client.socket.sendall(b"\n")


def flow(seconds, gap_ms):
    consumer, producer, figures = Client(), Client(), Figures(seconds)
    consumer.subscribe()
    while figures.goes_on():
        start = time.monotonic()
        producer.send(b"an order")
        consumer.read()
        figures.answered(start)
        time.sleep(gap_ms / 1e3)
    figures.print()


if what == "send":
    send(int(more[0]), int(more[1]), float(more[2]), float((more[3:] or [0])[0]))
elif what == "fill":
    fill(int(more[0]), int(more[1]), more[2])
elif what == "idle":
    idle(int(more[0]), int(more[1]), more[2])
else:
    flow(float(more[0]), float(more[1]))
