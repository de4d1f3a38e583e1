"""A server some of whose requests are never answered, for tests of what waits. It ends when its stdin is closed.

hang.py MODE    prints `ready PORT` and the ids of its processes as `pid PID`. A request of 16 bytes that begins with `p` is answered at
                once, one that begins with `s` is answered once and is a subscription from then on, any other is

    stop        answered, if nobody stops the process: a process for each of three workers, which accept from one listener
    lock        answered after a lock that another thread holds while it sleeps
    mutex       the same, with a mutex of the C library
    deadlock    answered after two mutexes, which two threads lock in opposite order
    asks        answered after another process has answered, which reads what it is asked and does nothing
    unread      the same, but the other process accepts and does not read
    file        answered after a lock of a file (flock) that another process holds
    disk        answered after a write to the file system of the working directory, which is frozen until stdin is closed
    poll        read by an event loop that lets it wait: a long poll
    relay       passed on by an event loop to another process, which is stopped
    unix        the same, over a UNIX socket
    queue       never accepted: the only thread sleeps
"""
import ctypes
import fcntl
import os
import selectors
import signal
import socket
import sys
import tempfile
import threading
import time

SIZE = 16


def main():
    mode = sys.argv[1]
    listener = socket.create_server(("127.0.0.1", 0), backlog=4)
    say("ready", listener.getsockname()[1])
    {"stop": stop, "poll": poll, "relay": relay, "unix": relay, "queue": queue}.get(mode, threads)(mode, listener)


def say(*words):
    os.write(1, (" ".join(map(str, words)) + "\n").encode())


def end_with_stdin():
    threading.Thread(target=lambda: (os.read(0, 1), os.killpg(0, 9)), daemon=True).start()


def serve(connection, hang):
    while True:
        data = connection.recv(SIZE)
        if not data:
            return
        if data[:1] not in b"ps":
            hang()
        connection.sendall(b"y" * SIZE)


def threads(mode, listener):
    hang = {"lock": lock, "mutex": mutex, "deadlock": deadlock, "asks": asks, "unread": asks, "file": file, "disk": disk}[mode](mode)
    end_with_stdin()
    say("pid", os.getpid())
    while True:
        connection, _ = listener.accept()
        threading.Thread(target=serve, args=(connection, hang), daemon=True).start()


def stop(mode, listener):
    for _ in range(3):
        pid = os.fork()
        if pid == 0:
            while True:
                connection, _ = listener.accept()
                serve(connection, lambda: None)
        say("pid", pid)
    end_with_stdin()
    signal.pause()


def lock(mode):
    taken = threading.Lock()

    def hold():
        with taken:
            time.sleep(1000)

    threading.Thread(target=hold, daemon=True).start()
    return taken.acquire


def mutexes(count):
    # CDLL releases the interpreter's lock while a function runs.
    libc = ctypes.CDLL(None)
    made = [ctypes.create_string_buffer(64) for _ in range(count)]
    return libc, made


def mutex(mode):
    libc, (taken,) = mutexes(1)
    held = threading.Event()

    def hold():
        libc.pthread_mutex_lock(taken)
        held.set()
        time.sleep(1000)

    threading.Thread(target=hold, daemon=True).start()
    held.wait()
    return lambda: libc.pthread_mutex_lock(taken)


def deadlock(mode):
    libc, (a, b) = mutexes(2)
    both = threading.Barrier(2)

    def take(first, second):
        libc.pthread_mutex_lock(first)
        both.wait()
        libc.pthread_mutex_lock(second)

    for pair in ((a, b), (b, a)):
        threading.Thread(target=take, args=pair, daemon=True).start()
    return lambda: libc.pthread_mutex_lock(a)


def other_process(body):
    """A process that holds only what it makes; returns what its first line says."""
    read, write = os.pipe()
    pid = os.fork()
    if pid == 0:
        os.close(read)
        body(lambda word: os.write(write, b"%d\n" % word))
        os._exit(0)
    os.close(write)
    say("pid", pid)
    return pid, int(os.read(read, 32).split()[0])


def sink(reads):
    def body(ready):
        listener = socket.create_server(("127.0.0.1", 0))
        ready(listener.getsockname()[1])
        taken = []
        events = selectors.DefaultSelector()
        events.register(listener, selectors.EVENT_READ)
        while True:
            for key, _ in events.select():
                if key.fileobj is listener:
                    taken.append(listener.accept()[0])
                    if reads:
                        events.register(taken[-1], selectors.EVENT_READ)
                elif not key.fileobj.recv(SIZE):
                    events.unregister(key.fileobj)

    return body


def asks(mode):
    _, port = other_process(sink(mode == "asks"))

    def ask():
        connection = socket.create_connection(("127.0.0.1", port))
        connection.sendall(b"x" * SIZE)
        connection.recv(SIZE)

    return ask


def file(mode):
    path = tempfile.mkstemp()[1]

    def body(ready):
        held = open(path)
        fcntl.flock(held, fcntl.LOCK_EX)
        ready(1)
        signal.pause()

    other_process(body)
    return lambda: fcntl.flock(open(path), fcntl.LOCK_EX)


# linux/fs.h
FIFREEZE, FITHAW = 0xC0045877, 0xC0045878


def disk(mode):
    directory = os.open(".", os.O_RDONLY)
    # A process that a frozen file system blocks cannot be killed, so one that it does not block thaws it.
    if os.fork() == 0:
        os.setsid()
        os.read(0, 1)
        fcntl.ioctl(directory, FITHAW, 0)
        os._exit(0)
    fcntl.ioctl(directory, FIFREEZE, 0)
    return lambda: open(f"written-{threading.get_ident()}", "w")


def events(listener, take):
    loop = selectors.DefaultSelector()
    loop.register(listener, selectors.EVENT_READ)
    while True:
        for key, _ in loop.select():
            if key.fileobj is listener:
                loop.register(listener.accept()[0], selectors.EVENT_READ)
                continue
            data = key.fileobj.recv(SIZE)
            if not data:
                loop.unregister(key.fileobj)
            elif data[:1] in b"ps":
                key.fileobj.sendall(b"y" * SIZE)
            else:
                take(loop, data)


def poll(mode, listener):
    say("pid", os.getpid())
    end_with_stdin()
    events(listener, lambda loop, data: None)


def relay(mode, listener):
    def body(ready):
        if mode == "unix":
            upstream = socket.socket(socket.AF_UNIX)
            upstream.bind(name)
            upstream.listen()
            ready(1)
        else:
            upstream = socket.create_server(("127.0.0.1", 0))
            ready(upstream.getsockname()[1])
        connection, _ = upstream.accept()
        os.kill(os.getpid(), signal.SIGSTOP)
        connection.recv(SIZE)

    name = "\0parshall-test-%d" % os.getpid()
    _, port = other_process(body)
    if mode == "unix":
        upstream = socket.socket(socket.AF_UNIX)
        upstream.connect(name)
    else:
        upstream = socket.create_connection(("127.0.0.1", port))
    say("pid", os.getpid())
    end_with_stdin()

    def pass_on(loop, data):
        upstream.sendall(data)
        try:
            loop.register(upstream, selectors.EVENT_READ)
        except KeyError:
            pass

    events(listener, pass_on)


def queue(mode, listener):
    say("pid", os.getpid())
    parent = os.getppid()
    # Its only thread sleeps, so it looks whether its starter is still there.
    while os.getppid() == parent:
        time.sleep(30)


main()
