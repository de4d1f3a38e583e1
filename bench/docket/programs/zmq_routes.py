#!/usr/bin/python3
"""A journey planner over ZeroMQ, and its clients. zmq_routes.py serve PORT HOW: a broker and three workers that take 5 ms for a journey, or
600 ms for a long one. HOW is "dealer" (the broker deals the questions out in turn) or "ready" (a worker asks for the next when it is
done). zmq_routes.py load PORT CLIENTS SECONDS: clients with a connection each; one more asks for long journeys all the time."""
import sys
import threading
import time

import zmq

from figures import Figures, side_by_side


def worker(context, how):
    s = context.socket(zmq.REP if how == "dealer" else zmq.REQ)
    s.connect("inproc://workers")
    if how == "ready":
        s.send(b"READY")
    while True:
        parts = s.recv_multipart()
        time.sleep(0.6 if parts[-1] == b"long" else 0.005)
        s.send_multipart(parts[:-1] + [b"journey"])


def serve(port, how):
    context = zmq.Context()
    front = context.socket(zmq.ROUTER)
    front.bind(f"tcp://127.0.0.1:{port}")
    back = context.socket(zmq.DEALER if how == "dealer" else zmq.ROUTER)
    back.bind("inproc://workers")
    for _ in range(3):
        threading.Thread(target=worker, args=(context, how), daemon=True).start()
    if how == "dealer":
        zmq.proxy(front, back)
    ready = []
    poller = zmq.Poller()
    poller.register(back, zmq.POLLIN)
    while True:
        if ready:
            poller.register(front, zmq.POLLIN)
        elif front in poller:
            poller.unregister(front)
        events = dict(poller.poll())
        if back in events:
            who, _, *parts = back.recv_multipart()
            ready.append(who)
            if parts != [b"READY"]:
                front.send_multipart(parts)
        if front in events and ready:
            back.send_multipart([ready.pop(0), b""] + front.recv_multipart())


def load(port, clients, seconds):
    figures = Figures(float(seconds))
    context = zmq.Context()

    def work(question):
        s = context.socket(zmq.REQ)
        s.connect(f"tcp://127.0.0.1:{port}")
        while figures.goes_on():
            start = time.monotonic()
            s.send(question)
            s.recv()
            if question == b"short":
                figures.answered(start)
                time.sleep(0.02)
        s.close(linger=0)

    side_by_side(work, [b"short"] * int(clients) + [b"long"])
    figures.print()


{"serve": serve, "load": load}[sys.argv[1]](*sys.argv[2:])
