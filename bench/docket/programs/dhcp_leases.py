#!/usr/bin/python3
"""A DHCP relay for new devices: dhcp_leases.py RELAY SERVER DEVICES SECONDS. As many devices at a time ask the server for an address
(DISCOVER, OFFER, REQUEST, ACK) by way of the relay, whose own address is RELAY. A device is timed until it has its address. A
message that is not answered is sent again after two seconds, at most twice. Prints the same figures as load.c."""
import os
import queue
import socket
import struct
import sys
import threading
import time

from figures import Figures, side_by_side

relay, server, devices, seconds = sys.argv[1], sys.argv[2], int(sys.argv[3]), float(sys.argv[4])
s = socket.socket(socket.AF_INET, socket.SOCK_DGRAM)
s.bind((relay, 67))
waiting = {}
figures = Figures(seconds)


def message(number, mac, options):
    head = struct.pack(">BBBBIHH4s4s4s4s", 1, 1, 6, 1, number, 0, 0, b"\0" * 4, b"\0" * 4, b"\0" * 4, socket.inet_aton(relay))
    return head + mac.ljust(16, b"\0") + b"\0" * 192 + b"\x63\x82\x53\x63" + options + b"\xff" + b"\0" * 20


def receive():
    while True:
        data = s.recv(2048)
        number = struct.unpack(">I", data[4:8])[0]
        if number in waiting:
            waiting[number].put(data)


def ask(number, mac, options, kind):
    for _ in range(3):
        s.sendto(message(number, mac, options), (server, 67))
        try:
            while True:
                data = waiting[number].get(timeout=2)
                if data[242] == kind:  # the first option is the kind of the message
                    return data
        except queue.Empty:
            pass
    raise OSError("no answer")


def work(_):
    while figures.goes_on():
        start, number, mac = time.monotonic(), struct.unpack(">I", os.urandom(4))[0], b"\x02" + os.urandom(5)
        waiting[number] = queue.Queue()
        try:
            offer = ask(number, mac, b"\x35\x01\x01", 2)
            ask(number, mac, b"\x35\x01\x03\x32\x04" + offer[16:20] + b"\x36\x04" + socket.inet_aton(server), 5)
            figures.answered(start)
        except OSError:
            figures.failed()
        del waiting[number]


threading.Thread(target=receive, daemon=True).start()
side_by_side(work, range(devices))
figures.print()
