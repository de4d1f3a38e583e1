#!/usr/bin/python3
"""Clients of RabbitMQ.

    amqp.py fill HOST QUEUE RATE FILE        publishes 2000 messages, writes FILE, then publishes RATE messages a second
    amqp.py consume HOST QUEUE SECONDS PREFETCH   acknowledges each message; prints the rate
    amqp.py idle HOST COUNT FILE             COUNT consumers of queues that stay empty
    amqp.py flow HOST QUEUE SECONDS RATE     publishes and consumes RATE messages a second; prints the time until delivery
"""
import json
import sys
import threading
import time

import pika

what, host = sys.argv[1:3]


def channel():
    return pika.BlockingConnection(pika.ConnectionParameters(host=host, heartbeat=20)).channel()


def report(count, seconds, ms=()):
    out = {"requests": count, "errors": 0, "rate": count / seconds}
    if ms:
        ms = sorted(ms)
        out |= {"mean_ms": sum(ms) / len(ms), "p50_ms": ms[len(ms) // 2], "p99_ms": ms[int(len(ms) * 0.99)]}
    print(json.dumps({k: round(v, 3) for k, v in out.items()}), flush=True)


def fill(queue, rate, ready):
    on = channel()
    on.queue_declare(queue)
    for _ in range(2000):
        on.basic_publish("", queue, b"x" * 200)
    open(ready, "w").close()
    while True:
        on.connection.sleep(0.02)
        for _ in range(round(float(rate) * 0.02)):
            on.basic_publish("", queue, b"x" * 200)


def consume(queue, seconds, prefetch):
    on, got = channel(), 0
    on.basic_qos(prefetch_count=int(prefetch))
    begun = time.monotonic()

    def one(_channel, method, _properties, _body):
        nonlocal got
        got += 1
        on.basic_ack(method.delivery_tag)
    on.basic_consume(queue, one)
    while time.monotonic() < begun + float(seconds):
        on.connection.process_data_events(time_limit=0.1)
    report(got, time.monotonic() - begun)


def idle(count, ready):
    held = []
    for i in range(int(count)):
        on = channel()
        on.queue_declare(f"idle-{i}")
        on.basic_consume(f"idle-{i}", lambda *_: None)
        held.append(on)
    open(ready, "w").close()
    while True:
        for on in held:
            on.connection.process_data_events(time_limit=0)
        time.sleep(1)


def flow(queue, seconds, rate):
    ms, until = [], time.monotonic() + float(seconds)
    reader = channel()
    reader.queue_declare(queue)
    reader.basic_consume(queue, lambda _c, _m, _p, body: ms.append((time.monotonic() - float(body)) * 1e3), auto_ack=True)

    def publish():
        on = channel()
        while time.monotonic() < until:
            on.connection.sleep(1 / float(rate))
            on.basic_publish("", queue, f"{time.monotonic():.6f}".encode())
    thread = threading.Thread(target=publish)
    thread.start()
    while time.monotonic() < until + 0.2:
        reader.connection.process_data_events(time_limit=0.05)
    thread.join()
    report(len(ms), float(seconds), ms)


{"fill": fill, "consume": consume, "idle": idle, "flow": flow}[what](*sys.argv[3:])
