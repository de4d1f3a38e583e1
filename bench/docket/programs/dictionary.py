#!/usr/bin/python3
"""An HTTP service that looks words up in an LMDB file: dictionary.py PORT FILE. It makes the file, of 240 MB, if that does not exist, and
ends with `dictionary.py make FILE`. It reads the file once at its start. A request reads 40 words in random order."""
import os
import random
import socket
import sys
import threading

import lmdb

WORDS, FILE = 60_000, sys.argv[2]


def make():
    if not os.path.exists(FILE + ".made"):
        env = lmdb.open(FILE, subdir=False, map_size=1 << 29, sync=False)
        text = os.urandom(3900)
        with env.begin(write=True) as t:
            for n in range(WORDS):
                t.put(b"%08d" % n, b"%08d" % n + text, append=True)
        env.sync(True)
        env.close()
        open(FILE + ".made", "w").close()
    with open(FILE, "rb") as f:
        os.posix_fadvise(f.fileno(), 0, 0, os.POSIX_FADV_DONTNEED)  # so that the service's control group pays for the pages


def serve(peer, env):
    peer.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
    while peer.recv(65536):
        total = 0
        with env.begin(buffers=True) as t:
            for _ in range(40):
                total += t.get(b"%08d" % random.randrange(WORDS))[2000]
        body = b"%d\n" % total
        peer.sendall(b"HTTP/1.1 200 OK\r\nContent-Length: %d\r\n\r\n" % len(body) + body)


if sys.argv[1] == "make":
    make()
else:
    held = lmdb.open(FILE, subdir=False, readonly=True, lock=False, readahead=False, map_size=1 << 29)
    with open(FILE, "rb") as f:
        while f.read(1 << 20):
            pass
    s = socket.create_server(("", int(sys.argv[1])), backlog=256)
    while True:
        threading.Thread(target=serve, args=(s.accept()[0], held), daemon=True).start()
