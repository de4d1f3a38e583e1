#!/usr/bin/python3
"""Producer and consumer of a Kafka topic: events.py HOST:PORT SECONDS RATE PRODUCER CONSUMER. The last two are options of librdkafka,
NAME=VALUE,NAME=VALUE. Prints the time from the event until the consumer has it, as load.c does."""
import json
import sys
import threading
import time

from confluent_kafka import Consumer, Producer
from confluent_kafka.admin import AdminClient, NewTopic

where, seconds, rate = sys.argv[1], float(sys.argv[2]), float(sys.argv[3])
to, of = (dict(pair.split("=") for pair in text.split(",") if pair) for text in sys.argv[4:6])
admin = AdminClient({"bootstrap.servers": where})
for made in admin.create_topics([NewTopic("events", 1, 1)]).values():
    made.result(20)
consumer = Consumer({"bootstrap.servers": where, "group.id": "billing", "auto.offset.reset": "latest", **of})
producer = Producer({"bootstrap.servers": where, **to})
joined = threading.Event()
consumer.subscribe(["events"], on_assign=lambda *_: joined.set())
while not joined.is_set():
    consumer.poll(0.1)
producer.produce("events", b"warm")  # the first event pays for the producer's connections, and is not counted
producer.flush(5)
until = time.monotonic() + 1
while time.monotonic() < until:
    consumer.poll(0.1)
ms, errors = [], []
until = time.monotonic() + seconds


def produce():
    while time.monotonic() < until:
        time.sleep(1 / rate)
        producer.produce("events", f"{time.monotonic():.6f}".encode())
        producer.poll(0)
    producer.flush(5)


thread = threading.Thread(target=produce)
thread.start()
while time.monotonic() < until + 0.6:
    message = consumer.poll(0.05)
    if message is not None:
        (errors if message.error() else ms).append(0 if message.error() else (time.monotonic() - float(message.value())) * 1e3)
thread.join()
ms.sort()
out = {"requests": len(ms), "errors": len(errors), "rate": len(ms) / seconds}
if ms:
    out |= {"mean_ms": sum(ms) / len(ms), "p50_ms": ms[len(ms) // 2], "p99_ms": ms[int(len(ms) * 0.99)]}
print(json.dumps({k: round(v, 3) for k, v in out.items()}), flush=True)
