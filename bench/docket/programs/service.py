#!/usr/bin/python3
"""A small HTTP service on threads or asyncio, with one fault per flag."""
import argparse
import asyncio
import hashlib
import os
import queue
import select
import socket
import sys
import threading
import time

p = argparse.ArgumentParser()
p.add_argument("--port", type=int, default=8080)
p.add_argument("--style", default="threads", choices=("threads", "asyncio", "pool", "push", "longpoll", "listen-only"))
p.add_argument("--workers", type=int, default=2)
p.add_argument("--backlog", type=int, default=1024)
p.add_argument("--sleep-ms", type=float, default=0)
p.add_argument("--block-ms", type=float, default=0, help="a sleep that blocks the asyncio loop")
p.add_argument("--lock-ms", type=float, default=0)
p.add_argument("--cpu-us", type=float, default=0)
p.add_argument("--fsync", default="")
p.add_argument("--dns", default="")
p.add_argument("--ask", default="", help="HOST:PORT of an HTTP service to call in each request")
p.add_argument("--ask-times", type=int, default=1)
p.add_argument("--ask-fresh", type=int, default=0, help="1: a new connection for each call")
p.add_argument("--ask-pool", type=int, default=0, help="so many connections for all threads, from a queue; 0: one for each thread")
p.add_argument("--log-bytes", type=int, default=0, help="bytes written to stdout in each request")
p.add_argument("--poll-ms", type=float, default=0, help="a background thread answers, and polls for work at this interval")
p.add_argument("--reply", type=int, default=200)
o = p.parse_args()
BODY = b"x" * o.reply
HEAD = b"HTTP/1.1 200 OK\r\nContent-Length: %d\r\n\r\n" % len(BODY)
LOCK = threading.Lock()
LOCAL = threading.local()
POOL = queue.Queue()
JOBS = queue.Queue()


def compute(us):
    end = time.perf_counter() + us / 1e6
    digest = b"x"
    while time.perf_counter() < end:
        digest = hashlib.md5(digest).digest()


def connect():
    host, _, port = o.ask.partition(":")
    s = socket.create_connection((host, int(port)))
    s.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
    return s


def ask():
    for _ in range(o.ask_times):
        s = POOL.get() if o.ask_pool else None if o.ask_fresh else getattr(LOCAL, "peer", None)
        if s is None:
            s = LOCAL.peer = connect()
        s.sendall(b"GET / HTTP/1.1\r\nHost: docket\r\n\r\n")
        read_reply(s)
        if o.ask_pool:
            POOL.put(s)
        elif o.ask_fresh:
            s.close()


def read_reply(s):
    data = b""
    while b"\r\n\r\n" not in data:
        data += s.recv(65536) or sys.exit("the peer is gone")
    head, _, body = data.partition(b"\r\n\r\n")
    length = next(int(x.split(b":")[1]) for x in head.split(b"\r\n") if x.lower().startswith(b"content-length"))
    while len(body) < length:
        body += s.recv(65536)


def handle():
    """The work of a request, in the thread that serves it."""
    if o.poll_ms:
        done = threading.Event()
        JOBS.put(done)
        done.wait()
    if o.sleep_ms:
        time.sleep(o.sleep_ms / 1e3)
    if o.lock_ms:
        with LOCK:
            time.sleep(o.lock_ms / 1e3)
    handle_here()


def handle_here():
    if o.block_ms:
        time.sleep(o.block_ms / 1e3)
    if o.cpu_us:
        compute(o.cpu_us)
    if o.fsync.startswith("/"):
        if not hasattr(LOCAL, "file"):
            LOCAL.file = os.open(f"{o.fsync}.{threading.get_ident()}", os.O_CREAT | os.O_WRONLY)
        os.write(LOCAL.file, b"record\n" * 500)
        os.fsync(LOCAL.file)
    if o.dns:
        try:
            socket.getaddrinfo(o.dns, 80)
        except OSError:
            pass
    if o.ask:
        ask()
    if o.log_bytes:
        os.write(1, b"l" * o.log_bytes)


def serve(s):
    s.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
    data = b""
    try:
        while True:
            while b"\r\n\r\n" not in data:
                more = s.recv(65536)
                if not more:
                    return
                data += more
            head, _, data = data.partition(b"\r\n\r\n")
            handle()
            s.sendall(HEAD + BODY)
            if b"connection: close" in head.lower():
                return
    except OSError:
        pass
    finally:
        s.close()


def poll_jobs():
    while True:
        time.sleep(o.poll_ms / 1e3)
        while not JOBS.empty():
            JOBS.get().set()


def listener():
    s = socket.socket()
    s.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
    s.bind(("", o.port))
    s.listen(o.backlog)
    return s


def accept_forever(s):
    while True:
        serve(s.accept()[0])


def threads():
    s = listener()
    if o.style == "pool":
        for _ in range(o.workers):
            threading.Thread(target=accept_forever, args=(s,)).start()
        return
    while True:
        threading.Thread(target=serve, args=(s.accept()[0],), daemon=True).start()


async def converse(reader, writer):
    try:
        while True:
            await reader.readuntil(b"\r\n\r\n")
            if o.sleep_ms:
                await asyncio.sleep(o.sleep_ms / 1e3)
            if o.lock_ms:
                async with converse.lock:
                    await asyncio.sleep(o.lock_ms / 1e3)
            handle_here()
            writer.write(HEAD + BODY)
            await writer.drain()
    except (asyncio.IncompleteReadError, ConnectionError):
        writer.close()


async def loop():
    converse.lock = asyncio.Lock()
    server = await asyncio.start_server(converse, "", o.port, backlog=o.backlog)
    await server.serve_forever()


def push():
    """Sends each subscriber an event a few times a second, and reads its acknowledgement. No one waits for a reply."""
    s = listener()
    subscribers, due = [s], 0
    while True:
        for ready in select.select(subscribers, [], [], max(0, due - time.monotonic()))[0]:
            if ready is s:
                subscribers.append(s.accept()[0])
                continue
            try:
                gone = not ready.recv(4096)
            except OSError:
                gone = True
            if gone:
                subscribers.remove(ready)
        if time.monotonic() < due:
            continue
        due = time.monotonic() + 0.15
        for one in subscribers[1:]:
            try:
                one.sendall(b"event: tick\r\n")
            except OSError:
                subscribers.remove(one)


for _ in range(o.ask_pool):
    POOL.put(connect())
if o.poll_ms:
    threading.Thread(target=poll_jobs, daemon=True).start()
if o.style == "asyncio":
    asyncio.run(loop())
elif o.style == "push":
    push()
else:
    threads()
