#!/usr/bin/python3
"""A web shop on asyncio whose visitors each read their basket from redis and get a page of it: basket.py HOST PORT VISITORS MS SECONDS.
To make the page takes the loop MS milliseconds of computing. Prints how long redis seems to take, in the figures of load.c."""
import asyncio
import json
import sys
import time

import redis.asyncio

host, port, visitors, work, seconds = sys.argv[1], int(sys.argv[2]), int(sys.argv[3]), float(sys.argv[4]), float(sys.argv[5])
ms = []


def render(basket):
    end = time.perf_counter() + work / 1e3
    while time.perf_counter() < end:
        json.loads(json.dumps({"articles": [basket] * 20}))


async def visitor(number, until):
    held = redis.asyncio.Redis(host=host, port=port, single_connection_client=True)
    await held.set(f"basket:{number}", "x" * 200)
    while time.monotonic() < until:
        at = time.monotonic()
        basket = await held.get(f"basket:{number}")
        ms.append((time.monotonic() - at) * 1e3)
        render(basket.decode())
        await asyncio.sleep(0.02)


async def main():
    until = time.monotonic() + seconds
    await asyncio.gather(*(visitor(n, until) for n in range(visitors)))
    ms.sort()
    print(json.dumps({"requests": len(ms), "errors": 0, "rate": round(len(ms) / seconds, 1), "mean_ms": round(sum(ms) / len(ms), 3),
                      "p50_ms": round(ms[len(ms) // 2], 3), "p99_ms": round(ms[int(len(ms) * 0.99)], 3)}), flush=True)


asyncio.run(main())
