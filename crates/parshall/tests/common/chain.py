"""Chains of processes for tests of `--follow`. The first process exits when its stdin is closed, the others when the first has.

chain.py HOP...          HOP is `tcp`, `unix` or `pipe`. The first process serves a TCP port (`ready PORT`). Before each reply it
                         sends a request to the next process over the first hop, and so on. The last one sleeps for 20 ms.
                         Each process prints a line `hop PID`, and all but the first `left PID` once they are connected with
                         nothing but the chain.
chain.py late            every second for a minute, the first process connects to another process.
chain.py serve HOST      serves at HOST and replies after 20 ms (`ready PORT`).
chain.py forks HOST      as `serve`, but starts a child for each request, which serves a port and runs a program, and replies when that
                         has ended.
chain.py ask HOST PORT   sends a request there before each of its own replies.
chain.py each HOST PORT  as `ask`, but opens a connection for each request.
chain.py pair            two processes that send requests to each other in turn.
"""
import os
import socket
import sys
import threading
import time


def main():
    # os.read() instead of sys.stdin, whose lock would be copied by a fork while this thread holds it.
    threading.Thread(target=lambda: (os.read(0, 1), os._exit(0)), daemon=True).start()
    hops = sys.argv[1:]
    if hops == ["pair"]:
        return pair()
    listener = socket.create_server((hops[1] if hops[:1] in (["serve"], ["forks"]) else "127.0.0.1", 0))
    say("hop", os.getpid())
    if hops == ["late"]:
        ask = open_more()
    elif hops[:1] == ["serve"]:
        ask = sleeps
    elif hops[:1] == ["forks"]:
        ask = forks
    elif hops[:1] == ["ask"]:
        ask = asks(socket.create_connection((hops[1], int(hops[2]))))
    elif hops[:1] == ["each"]:
        ask = lambda: asks(socket.create_connection((hops[1], int(hops[2]))))()
    else:
        ask = next_hop(hops)
    say("ready", listener.getsockname()[1])
    serve(listener, ask)


def say(*words):
    # A single write, so that lines of several processes do not mix.
    os.write(1, (" ".join(map(str, words)) + "\n").encode())


def end_with(first):
    def watch():
        while os.path.exists("/proc/%d" % first):
            time.sleep(0.2)
        os._exit(0)

    threading.Thread(target=watch, daemon=True).start()


def serve(listener, ask):
    while True:
        connection, _ = listener.accept()
        threading.Thread(target=answer, args=(connection, ask), daemon=True).start()


def answer(connection, ask):
    try:
        while connection.recv(16):
            ask()
            connection.sendall(b"y" * 16)
    except ConnectionError:
        pass  # A client may reset it.


def sleeps():
    time.sleep(0.02)


def forks():
    child = os.fork()
    if child == 0:
        listener = socket.create_server(("127.0.0.1", 0))
        with socket.create_connection(listener.getsockname()):
            listener.accept()
        os.execlp("true", "true")
    os.waitpid(child, 0)


def leave_starter():
    # The inherited pipes to the test would also connect the processes of the chain.
    for fd in range(3):
        os.dup2(os.open(os.devnull, os.O_RDWR), fd)


def spawn(prepare, *keep):
    """Calls `prepare`, and then what it returns, in a process that is not a child of this one and keeps only the descriptors
    `keep`. So it can only be found through these descriptors."""
    if os.fork() == 0:
        if os.fork() == 0:
            for fd in set(map(int, os.listdir("/proc/self/fd"))) - {0, 1, 2, *keep}:
                try:
                    os.close(fd)
                except OSError:
                    pass  # The descriptor of the directory listing.
            end_with(FIRST)
            say("hop", os.getpid())
            body = prepare()
            output = os.dup(1)
            leave_starter()
            os.write(output, b"left %d\n" % os.getpid())
            os.close(output)
            body()
            os._exit(0)
        os._exit(0)
    os.wait()


def next_hop(hops):
    """Starts the rest of the chain. Returns a function that sends it a request and waits for the reply."""
    if not hops:
        return sleeps
    kind, rest = hops[0], hops[1:]
    if kind == "pipe":
        return by_pipe(rest)
    if kind == "tcp":
        listener = socket.create_server(("127.0.0.1", 0))
    else:
        listener = socket.socket(socket.AF_UNIX)
        listener.bind("\0parshall-test-%d-%s" % (os.getpid(), len(hops)))
        listener.listen()
    address, family = listener.getsockname(), listener.family

    def prepare():
        ask = next_hop(rest)
        return lambda: serve(listener, ask)

    spawn(prepare, listener.fileno())
    listener.close()
    connection = socket.socket(family)
    connection.connect(address)
    return asks(connection)


def asks(connection):
    return lambda: (connection.sendall(b"x" * 16), connection.recv(16))


def by_pipe(rest):
    questions, to_next = os.pipe()
    answers, from_next = os.pipe()

    def prepare():
        ask = next_hop(rest)

        def body():
            while os.read(questions, 16):
                ask()
                os.write(from_next, b"y" * 16)

        return body

    spawn(prepare, questions, from_next)
    os.close(questions)
    os.close(from_next)
    return lambda: (os.write(to_next, b"x" * 16), os.read(answers, 16))


def open_more():
    addresses = []
    for _ in range(60):
        listener = socket.create_server(("127.0.0.1", 0))
        spawn(lambda: lambda: serve(listener, sleeps), listener.fileno())
        addresses.append(listener.getsockname())
        listener.close()

    def each_second():
        opened = []
        for address in addresses:
            opened.append(socket.create_connection(address))
            time.sleep(1)

    threading.Thread(target=each_second, daemon=True).start()
    return sleeps


def pair():
    listener = socket.create_server(("127.0.0.1", 0))
    other = socket.create_server(("127.0.0.1", 0))
    say("hop", os.getpid())

    def second():
        connection = socket.create_connection(listener.getsockname())
        listener.close()
        threading.Thread(target=serve, args=(other, sleeps), daemon=True).start()

        def body():
            while True:
                connection.sendall(b"x" * 16)
                connection.recv(16)

        return body

    spawn(second, listener.fileno(), other.fileno())
    address = other.getsockname()
    other.close()
    connection = socket.create_connection(address)
    say("ready", listener.getsockname()[1])
    serve(listener, asks(connection))


FIRST = os.getpid()
main()
