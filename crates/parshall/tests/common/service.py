"""A simple service and its clients: python3 service.py ROLE [OPTIONS].

  serve                     replies with 100 B to every request of 176 B, after N ms of CPU time (--work-ms N); one thread per connection
  call --port P             sends requests until it is ended, each in two small writes (--nodelay: without Nagle's algorithm;
                            --pause-ms N: waits between requests; --rounds N: exits after N requests)
  churn --port P            opens and resets a connection for each request
  fork                      serves in a child process and calls from another; --rounds N; does not read its stdin
  prefork                   listens; one child serves, one calls, and every 300 ms a new child sends 25 requests
  short --pause-ms N        is asked a dozen times a second by itself, over a connection each time, and answers after N ms
  idle                      holds a connection to itself and sleeps

Each prints `ready PORT` once it has traffic. All but `fork` exit when their stdin is closed, so that none outlives its test.
"""
import argparse, os, socket, sys, threading, time

FIRST, SECOND, REPLY = 40, 136, 100


def until_stdin_ends():
    def wait():
        while os.read(0, 4096):
            pass
        os._exit(0)

    if not sys.stdin.isatty():
        threading.Thread(target=wait, daemon=True).start()


def ready(port):
    print("ready", port, flush=True)


def read_exactly(connection, size):
    got = 0
    while got < size:
        data = connection.recv(size - got)
        if not data:
            return False
        got += len(data)
    return True


def answer(connection, work_ms):
    with connection:
        try:
            while read_exactly(connection, FIRST + SECOND):
                until = time.thread_time() + work_ms / 1e3
                while time.thread_time() < until:
                    pass
                connection.sendall(b"r" * REPLY)
        except OSError:
            pass


def accept(listener, work_ms=0):
    while True:
        connection, _ = listener.accept()
        threading.Thread(target=answer, args=(connection, work_ms), daemon=True).start()


def call(options):
    with socket.create_connection((options.host, options.port)) as connection:
        if options.nodelay:
            connection.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        done = 0
        while options.rounds == 0 or done < options.rounds:
            connection.sendall(b"a" * FIRST)
            connection.sendall(b"b" * SECOND)
            if not read_exactly(connection, REPLY):
                return
            done += 1
            if done == 10:
                ready(options.port)
            time.sleep(options.pause_ms / 1000)


def churn(options):
    # Closes with a reset, so that no socket stays in TIME_WAIT and ports do not run out.
    linger = (1).to_bytes(4, sys.byteorder) + (0).to_bytes(4, sys.byteorder)
    for n in range(1, 1 << 62):
        with socket.create_connection((options.host, options.port)) as connection:
            connection.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, linger)
            connection.sendall(b"a" * (FIRST + SECOND))
            read_exactly(connection, REPLY)
        if n == 10:
            ready(options.port)


def short(options, listener):
    def answer_after_a_pause():
        while True:
            with listener.accept()[0] as connection:
                read_exactly(connection, FIRST + SECOND)
                time.sleep(options.pause_ms / 1e3)
                connection.sendall(b"r" * REPLY)

    threading.Thread(target=answer_after_a_pause, daemon=True).start()
    for n in range(1 << 62):
        with socket.create_connection(listener.getsockname()) as connection:
            connection.sendall(b"a" * (FIRST + SECOND))
            read_exactly(connection, REPLY)
        if n == 0:
            ready(listener.getsockname()[1])
        time.sleep(0.08)


def fork(options):
    listener = socket.create_server((options.host, 0), backlog=64)
    options.port = listener.getsockname()[1]
    server = os.fork()
    if server == 0:
        accept(listener)
    client = os.fork()
    if client == 0:
        call(options)
        os._exit(0)
    os.waitpid(client, 0)
    os.kill(server, 9)
    os.waitpid(server, 0)
    print("both children are done", flush=True)


def child(work):
    """Runs `work` in a child process, which exits when the shared stdin is closed."""
    pid = os.fork()
    if pid == 0:
        until_stdin_ends()
        try:
            work()
        finally:
            os._exit(0)
    return pid


def prefork(options):
    listener = socket.create_server((options.host, 0), backlog=64)
    options.port = listener.getsockname()[1]
    child(lambda: accept(listener))
    child(lambda: call(options))
    until_stdin_ends()
    # Each caller prints `ready`; the test reads only the first line.
    sys.stdout.flush()
    while True:
        time.sleep(0.3)
        options.rounds = 25
        child(lambda: call(options))
        try:
            while os.waitpid(-1, os.WNOHANG)[0]:
                pass
        except ChildProcessError:
            pass


def main():
    parser = argparse.ArgumentParser()
    parser.add_argument("role", choices=["serve", "call", "churn", "fork", "prefork", "short", "idle"])
    parser.add_argument("--host", default="127.0.0.1")
    parser.add_argument("--port", type=int, default=0)
    parser.add_argument("--nodelay", action="store_true")
    parser.add_argument("--dual", action="store_true", help="listen on an IPv6 socket that also accepts IPv4")
    parser.add_argument("--pause-ms", type=float, default=0)
    parser.add_argument("--work-ms", type=float, default=0)
    parser.add_argument("--rounds", type=int, default=0)
    options = parser.parse_args()
    if options.role == "fork":
        return fork(options)
    if options.role == "prefork":
        return prefork(options)
    until_stdin_ends()
    if options.role == "call":
        return call(options)
    if options.role == "churn":
        return churn(options)
    family, host = (socket.AF_INET6, "::") if options.dual else (socket.AF_INET, options.host)
    listener = socket.create_server((host, options.port), family=family, backlog=1024, dualstack_ipv6=options.dual)
    port = listener.getsockname()[1]
    if options.role == "idle":
        pair = (socket.create_connection((options.host, port)), listener.accept())
        ready(port)
        time.sleep(3600)
        return pair
    if options.role == "short":
        return short(options, listener)
    ready(port)
    accept(listener, options.work_ms)


try:
    main()
except (BrokenPipeError, ConnectionError, KeyboardInterrupt):
    pass
