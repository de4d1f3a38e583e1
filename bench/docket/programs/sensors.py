#!/usr/bin/python3
"""Sleepy MQTT clients: sensors.py HOST PORT COUNT SECONDS FILE. COUNT connections that subscribe to a topic of their own, to which
nobody publishes, and send a PINGREQ every SECONDS. Writes FILE when all are subscribed."""
import asyncio
import struct
import sys

host, port, count, every, ready = sys.argv[1], int(sys.argv[2]), int(sys.argv[3]), float(sys.argv[4]), sys.argv[5]


def text(value):
    return struct.pack(">H", len(value)) + value.encode()


async def sensor(number):
    reader, writer = await asyncio.open_connection(host, port)
    for kind, body in ((0x10, text("MQTT") + b"\4\2" + struct.pack(">H", int(every * 2) or 1) + text(f"sensor-{number}")),
                       (0x82, b"\0\1" + text(f"sensor/{number}/command") + b"\0")):
        writer.write(bytes([kind, len(body)]) + body)
        await reader.readexactly(4 if kind == 0x10 else 5)
    return reader, writer


async def keep(reader, writer, first):
    await asyncio.sleep(first)
    while True:
        writer.write(b"\xc0\0")
        await reader.readexactly(2)
        await asyncio.sleep(every)


async def main():
    held = [await sensor(n) for n in range(count)]
    open(ready, "w").close()
    await asyncio.gather(*(keep(r, w, every * n / count) for n, (r, w) in enumerate(held)))


asyncio.run(main())
