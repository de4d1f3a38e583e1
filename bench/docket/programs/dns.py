#!/usr/bin/python3
"""A DNS server on 127.0.0.1:53 that answers every A query with 127.0.0.1 after a delay."""
import heapq
import select
import socket
import sys
import time

delay = float(sys.argv[1]) / 1e3
s = socket.socket(socket.AF_INET, socket.SOCK_DGRAM)
s.bind(("127.0.0.1", 53))
due = []
while True:
    wait = max(0, due[0][0] - time.monotonic()) if due else None
    if select.select([s], [], [], wait)[0]:
        question, peer = s.recvfrom(2048)
        end = question.index(b"\0", 12) + 5
        asked_a = question[end - 4:end - 2] == b"\0\1"
        answer = question[:2] + b"\x81\x80\0\1" + (b"\0\1" if asked_a else b"\0\0") + b"\0\0\0\0" + question[12:end]
        if asked_a:
            answer += b"\xc0\x0c\0\1\0\1\0\0\0\0\0\4\x7f\0\0\1"
        heapq.heappush(due, (time.monotonic() + delay, id(question), answer, peer))
    while due and due[0][0] <= time.monotonic():
        _, _, answer, peer = heapq.heappop(due)
        s.sendto(answer, peer)
