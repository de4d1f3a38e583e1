#!/usr/bin/python3
"""A chat room over WebSockets, its members, and a member who reads slowly.

ticker.py serve PORT BROADCAST     the room: sends each message to all members, one after the other, or (1) without waiting for any;
                                   "echo": back to its sender only, and pings all members each second
ticker.py idle HOST PORT N         N members who say nothing
ticker.py slow HOST PORT           a member who reads 4 KB in 50 ms
ticker.py load HOST PORT N SECONDS N members who send a message and wait until it comes back; prints the same figures as load.c
"""
import asyncio
import json
import os
import socket
import sys
import time

import websockets

MEMBERS = set()


async def serve(port, broadcast):
    async def member(ws, _path=None):
        MEMBERS.add(ws)
        try:
            async for message in ws:
                if broadcast == "echo":
                    await ws.send(message)
                    continue
                if broadcast == "1":
                    websockets.broadcast(MEMBERS, message)
                    continue
                for one in list(MEMBERS):
                    await one.send(message)
        except websockets.ConnectionClosed:
            pass
        finally:
            MEMBERS.discard(ws)

    every = 1 if broadcast == "echo" else None
    async with websockets.serve(member, "0.0.0.0", port, compression=None, ping_interval=every):
        await asyncio.Future()


def slow(host, port):
    s = socket.create_connection((host, port))
    s.sendall(b"GET / HTTP/1.1\r\nHost: room\r\nUpgrade: websocket\r\nConnection: Upgrade\r\n"
              b"Sec-WebSocket-Key: dGhlIHNhbXBsZSBub25jZQ==\r\nSec-WebSocket-Version: 13\r\n\r\n")
    while s.recv(4096):
        time.sleep(0.05)


async def idle(host, port, members):
    await asyncio.gather(*(websockets.connect(f"ws://{host}:{port}", compression=None, ping_interval=None) for _ in range(members)))
    await asyncio.Event().wait()


async def load(host, port, members, seconds):
    ms = []
    until = time.monotonic() + seconds

    async def one(n):
        async with websockets.connect(f"ws://{host}:{port}", compression=None, ping_interval=None, max_queue=None) as ws:
            text = "x" * 16000
            while time.monotonic() < until:
                begun = time.monotonic()
                mine = f"{n} {begun} {text}"
                await ws.send(mine)
                while await ws.recv() != mine:
                    pass
                ms.append((time.monotonic() - begun) * 1e3)
                await asyncio.sleep(0.01)

    tasks = [asyncio.create_task(one(n)) for n in range(members)]
    await asyncio.wait(tasks, timeout=seconds + 0.5)
    ms.sort()
    out = {"requests": len(ms), "errors": 0, "rate": len(ms) / seconds}
    if ms:
        out.update(mean_ms=sum(ms) / len(ms), p50_ms=ms[len(ms) // 2], p99_ms=ms[int(len(ms) * 0.99)])
    print(json.dumps(out), flush=True)
    os._exit(0)


if sys.argv[1] == "serve":
    asyncio.run(serve(int(sys.argv[2]), sys.argv[3]))
elif sys.argv[1] == "slow":
    slow(sys.argv[2], int(sys.argv[3]))
elif sys.argv[1] == "idle":
    asyncio.run(idle(sys.argv[2], int(sys.argv[3]), int(sys.argv[4])))
else:
    asyncio.run(load(sys.argv[2], int(sys.argv[3]), int(sys.argv[4]), float(sys.argv[5])))
