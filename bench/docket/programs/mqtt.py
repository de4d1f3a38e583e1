#!/usr/bin/python3
"""Clients of an MQTT broker. All set TCP_NODELAY.

    mqtt.py devices HOST:PORT COUNT FILE        COUNT devices: each answers a command with its state and, in a message of its own, "done"
    mqtt.py control HOST:PORT SECONDS COUNT [GAP_MS]
                                                sends each a command, the next 20 ms after the last is done; prints how long they take
"""
import json
import socket
import sys
import threading
import time

sys.path.pop(0)  # dns.py beside this file is not the package that paho looks for
import paho.mqtt.client as mqtt  # noqa: E402

what, where = sys.argv[1:3]
host, _, port = where.partition(":")


def client(name, topic, got):
    made = mqtt.Client(client_id=name)
    made.on_socket_open = lambda _client, _userdata, sock: sock.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
    made.on_message = got
    known = threading.Event()
    made.on_subscribe = lambda *_: known.set()
    made.connect(host, int(port), keepalive=30)
    made.loop_start()
    made.subscribe(topic, qos=0)
    known.wait(10)
    return made


def devices(count, ready):
    def device(number):
        def command(held, _userdata, message):
            held.publish(f"plant/{number}/state", b"valve open, 21.5 C", qos=0)
            held.publish(f"plant/{number}/done", message.payload, qos=0)
        return client(f"device-{number}", f"plant/{number}/command", command)
    held = [device(i) for i in range(int(count))]
    open(ready, "w").close()
    time.sleep(1e6 * len(held))


def control(seconds, count, gap=20):
    ms, errors = [], []
    until = time.monotonic() + float(seconds)

    def one(number):
        done = threading.Event()
        held = client(f"control-{number}", [(f"plant/{number}/state", 0), (f"plant/{number}/done", 0)],
                      lambda _c, _u, message: done.set() if message.topic.endswith("/done") else None)
        while time.monotonic() < until:
            done.clear()
            begun = time.monotonic()
            held.publish(f"plant/{number}/command", b"open", qos=0)
            (ms if done.wait(5) else errors).append((time.monotonic() - begun) * 1e3)
            time.sleep(float(gap) / 1e3)
        held.loop_stop()
    threads = [threading.Thread(target=one, args=(i,)) for i in range(int(count))]
    for t in threads:
        t.start()
    for t in threads:
        t.join()
    ms.sort()
    out = {"requests": len(ms), "errors": len(errors), "rate": len(ms) / float(seconds)}
    if ms:
        out |= {"mean_ms": sum(ms) / len(ms), "p50_ms": ms[len(ms) // 2], "p99_ms": ms[int(len(ms) * 0.99)]}
    print(json.dumps({k: round(v, 3) for k, v in out.items()}), flush=True)


{"devices": devices, "control": control}[what](*sys.argv[3:])
