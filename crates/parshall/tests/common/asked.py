"""A service and its clients in one process group, in which somebody waits, for tests of who is asked. It ends when its stdin is closed.

asked.py MODE   prints `ready PORT` when its clients ask. In each mode four clients ask again and again:

    expect      the rest of each request follows a second after its head, unless an interim answer comes, which the client polls for
    thinks      the same, but the client sleeps for that second
    close       the client reads its reply until the connection ends, which the service ends 0.8 s later
    keeps       the same service, but the client sleeps until then
    group       two of three listeners of the port have nobody who accepts; clients give up after 0.4 s
    names       each request asks a name server twice, which never answers, for 0.4 s each
    passes      each connection of one request is passed to a child that was there before, which sleeps for 20 ms and replies; prints the
                number of the child, too
    hands       the same, but the child replies at once
"""
import os
import select
import socket
import sys
import threading
import time

SIZE = 80
CLIENTS = 4
# The modes in which a child is passed the connections.
PASSED = ("passes", "hands")
# No name server listens there.
NAMES = ("127.9.9.9", 53)


def main():
    mode = sys.argv[1]
    group = mode == "group"
    listeners = [listener(0, group)]
    port = listeners[0].getsockname()[1]
    listeners += [listener(port, True) for _ in range(2 if group else 0)]
    if mode == "names":
        silent = socket.socket(socket.AF_INET, socket.SOCK_DGRAM)
        silent.bind(NAMES)
    service = os.getpid()
    passes = child_that_gets_connections(mode, listeners) if mode in PASSED else None
    if os.fork() == 0:
        for taken in listeners:
            taken.close()
        for _ in range(CLIENTS):
            threading.Thread(target=client, args=(mode, port), daemon=True).start()
        while os.getppid() == service:
            time.sleep(0.2)
        os._exit(0)
    threading.Thread(target=lambda: (os.read(0, 1), os.killpg(0, 9)), daemon=True).start()
    time.sleep(0.5)
    os.write(1, b"ready %d\n" % port)
    while True:
        connection, _ = listeners[0].accept()
        if passes:
            with connection:
                socket.send_fds(passes, [b"c"], [connection.fileno()])
            continue
        threading.Thread(target=serve, args=(mode, connection), daemon=True).start()


def child_that_gets_connections(mode, listeners):
    ours, theirs = socket.socketpair()
    child = os.fork()
    if child:
        theirs.close()
        os.write(1, b"child %d\n" % child)
        return ours
    ours.close()
    for taken in listeners:
        taken.close()
    while True:
        _, descriptors, _, _ = socket.recv_fds(theirs, 1, 1)
        if not descriptors:
            os._exit(0)
        with socket.socket(fileno=descriptors[0]) as connection:
            read(connection, SIZE)
            if mode == "passes":
                time.sleep(0.02)
            connection.sendall(b"y" * SIZE)


def listener(port, group):
    made = socket.socket()
    if group:
        made.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEPORT, 1)
    made.bind(("127.0.0.1", port))
    made.listen(512)
    return made


def read(connection, size):
    data = b""
    while len(data) < size:
        more = connection.recv(size - len(data))
        if not more:
            return None
        data += more
    return data


def serve(mode, connection):
    if mode in ("close", "keeps"):
        connection.settimeout(0.8)
    try:
        while read(connection, 2 * SIZE if mode in ("expect", "thinks") else SIZE):
            if mode == "names":
                ask_names()
            connection.sendall(b"y" * SIZE)
    except (TimeoutError, ConnectionError):
        pass
    connection.close()


def ask_names():
    asks = socket.socket(socket.AF_INET, socket.SOCK_DGRAM)
    asks.connect(NAMES)
    answer = select.poll()
    answer.register(asks, select.POLLIN)
    for _ in range(2):
        asks.send(b"q" * 30)
        answer.poll(400)
    asks.close()


def client(mode, port):
    while True:
        try:
            with socket.create_connection(("127.0.0.1", port)) as connection:
                ask(mode, connection)
        except (TimeoutError, ConnectionError):
            time.sleep(0.01)


def ask(mode, connection):
    if mode == "group":
        connection.settimeout(0.4)
    for _ in range(1 if mode in ("close", "keeps") + PASSED else 20):
        connection.sendall(b"x" * SIZE)
        if mode == "expect":
            select.select([connection], [], [], 1)
            connection.sendall(b"x" * SIZE)
        elif mode == "thinks":
            time.sleep(1)
            connection.sendall(b"x" * SIZE)
        read(connection, SIZE)
        if mode == "close":
            connection.recv(SIZE)
        elif mode == "keeps":
            time.sleep(0.9)
        elif mode in PASSED:
            time.sleep(0.2)
        elif mode == "group":
            time.sleep(0.02)


main()
