"""Echoes what it receives: python3 echo.py tcp|mptcp|splice|udp HOST PORT [SLEEP_MS [RCVBUF]]. PORT 0 chooses one.

Sleeps SLEEP_MS before each reply. Prints `ready PORT`, and exits when its stdin is closed, so that none outlives its test.
"""
import os, socket, sys, threading, time

kind, host, port = sys.argv[1], sys.argv[2], int(sys.argv[3])
sleep_s = float(sys.argv[4]) / 1e3 if len(sys.argv) > 4 else 0
rcvbuf = int(sys.argv[5]) if len(sys.argv) > 5 else 0


def until_stdin_ends():
    while os.read(0, 4096):
        pass
    os._exit(0)


def echo_spliced(connection):
    r, w = os.pipe()
    while n := os.splice(connection.fileno(), w, 4096):
        time.sleep(sleep_s)
        os.splice(r, connection.fileno(), n)


def echo(connection):
    while data := connection.recv(4096):
        time.sleep(sleep_s)
        connection.sendall(data)


threading.Thread(target=until_stdin_ends, daemon=True).start()
served = socket.socket(
    socket.AF_INET,
    socket.SOCK_DGRAM if kind == "udp" else socket.SOCK_STREAM,
    socket.IPPROTO_MPTCP if kind == "mptcp" else 0,
)
if rcvbuf:
    served.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, rcvbuf)
served.bind((host, port))
if kind != "udp":
    served.listen()
print("ready", served.getsockname()[1], flush=True)
while True:
    if kind != "udp":
        serve = echo_spliced if kind == "splice" else echo
        threading.Thread(target=serve, args=(served.accept()[0],), daemon=True).start()
        continue
    data, client = served.recvfrom(4096)
    if sleep_s:
        time.sleep(sleep_s)
    served.sendto(data, client)
