#!/usr/bin/python3
"""A partner's server that accepts and never reads: listener.py HOST PORT silent|answer. With `answer` it answers each HTTP request."""
import socket
import sys
import threading

s = socket.create_server((sys.argv[1], int(sys.argv[2])), backlog=512)
held = []


def answer(peer):
    peer.recv(65536)
    peer.sendall(b"HTTP/1.1 200 OK\r\nContent-Length: 3\r\nConnection: close\r\n\r\nok\n")
    peer.close()


while True:
    peer, _ = s.accept()
    if sys.argv[3] == "answer":
        threading.Thread(target=answer, args=(peer,), daemon=True).start()
    else:
        held.append(peer)
