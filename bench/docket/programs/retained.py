#!/usr/bin/python3
"""Devices that keep their state at an MQTT broker as retained messages of 1 KB: retained.py HOST PORT COUNT RATE FILE. Writes FILE when
each has published once, then publishes RATE states a second."""
import itertools
import os
import sys
import time

sys.path.pop(0)  # dns.py beside this file is not the package that paho looks for
import paho.mqtt.client as mqtt  # noqa: E402

host, port, count, rate, ready = sys.argv[1], int(sys.argv[2]), int(sys.argv[3]), float(sys.argv[4]), sys.argv[5]
client = mqtt.Client(client_id="bridge")
client.max_inflight_messages_set(200)
client.connect(host, port, keepalive=60)
client.loop_start()
text = os.urandom(500).hex()
for number in range(count):
    last = client.publish(f"home/{number}/state", text, qos=1, retain=True)
last.wait_for_publish()
open(ready, "w").close()
for number in itertools.count():
    client.publish(f"home/{number % count}/state", f"{number}{text}", qos=1, retain=True)
    time.sleep(1 / rate)
