"""The testbed of the socket measurements: a new network namespace, processes that hold sockets, and further namespaces."""
import os
import resource
import socket
import subprocess
import sys

HERE = os.path.dirname(os.path.abspath(__file__))
ROOT = os.path.join(HERE, "..", "..")
INSIDE = "INSIDE_NAMESPACE"


def hold(count, address):
    """Opens `count` sockets (both ends of count / 2 connections), prints `ready`, and holds them until stdin is closed."""
    with socket.create_server((address, 0), backlog=128) as listener:
        target, held = listener.getsockname(), []
        for _ in range(count // 2):
            held.append(socket.create_connection(target))
            held.append(listener.accept()[0])
    print("ready", flush=True)
    sys.stdin.read()


class Holders:
    """Processes that together hold `sockets` sockets, because RLIMIT_NOFILE limits a single process."""

    def __init__(self, sockets):
        soft, _ = resource.getrlimit(resource.RLIMIT_NOFILE)
        # There are about 28,000 ephemeral ports for connections from one address to one port.
        most = min(soft - 64, 20_000) // 2 * 2
        self.running, left = [], sockets
        while left > 0:
            count = min(left, most)
            command = [sys.executable, os.path.abspath(__file__), str(count), f"127.0.1.{len(self.running) + 1}"]
            self.running.append(subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True))
            left -= count

    def __enter__(self):
        for holder in self.running:
            if holder.stdout.readline() != "ready\n":
                raise SystemExit("the sockets could not be opened")
        return self

    def __exit__(self, *_):
        for holder in self.running:
            holder.stdin.close()
        for holder in self.running:
            holder.wait(timeout=60)


class Namespaces:
    """`count` further network namespaces without sockets of users. A sleeping process keeps each of them alive."""

    def __init__(self, count):
        ready = "echo ready; exec sleep infinity"
        command = ["unshare", "--net", "--kill-child", "sh", "-c", ready]
        self.running = []
        for _ in range(count):
            self.running.append(subprocess.Popen(command, stdout=subprocess.PIPE, text=True))

    def __enter__(self):
        for process in self.running:
            process.stdout.readline()
        return self

    def __exit__(self, *_):
        for process in self.running:
            process.kill()
        for process in self.running:
            process.wait()


def inside():
    """Runs the script again in a new network namespace, so that it has no other sockets. Returns True in the new process."""
    if os.environ.get(INSIDE):
        subprocess.run(["ip", "link", "set", "lo", "up"], check=True)
        return True
    # The kernel destroys the namespace after the last process in it has exited.
    again = ["unshare", "--net", sys.executable, *sys.argv]
    raise SystemExit(subprocess.run(again, env={**os.environ, INSIDE: "1"}, check=False).returncode)


def spent(command, **options):
    """Runs a command. Returns (user CPU s, system CPU s, peak resident MiB)."""
    process = subprocess.Popen(command, **options)
    _, status, usage = os.wait4(process.pid, 0)
    process.returncode = os.waitstatus_to_exitcode(status)
    if process.returncode != 0:
        raise SystemExit(f"{command[:3]} ended with {process.returncode}")
    return usage.ru_utime, usage.ru_stime, usage.ru_maxrss / 1024


if __name__ == "__main__":
    hold(int(sys.argv[1]), sys.argv[2])
