"""The network path on which the relays are measured, and the processes on it.

    client namespace              relay namespace              server namespace
    10.0.1.2 ------- veth ------- 10.0.1.1  10.0.0.1 -- veth -- 10.0.0.2
        \\-------------------------- veth 10.0.2.0/24 -----------------/     (for "direct": no relay, one hop)

The relay namespace forwards packets, so that the client can reach 10.0.0.2 without a relay ("forward"). Over loopback, client,
relay and server are all in the relay namespace. Everything is removed at the end. What a killed run has left is removed at the
beginning of the next one.
"""
import contextlib
import ctypes
import fcntl
import os
import shutil
import signal
import subprocess
import sys
import tempfile
import time

from children import dying_with_parent

CLIENT, RELAY, SERVER = "parshall-bench-client", "parshall-bench-relay", "parshall-bench-server"
NAMESPACES = (CLIENT, RELAY, SERVER)
LINKS = (  # (namespace, interface, address/prefix) of both ends
    ((CLIENT, "to-relay", "10.0.1.2/24"), (RELAY, "to-client", "10.0.1.1/24")),
    ((RELAY, "to-server", "10.0.0.1/24"), (SERVER, "to-relay", "10.0.0.2/24")),
    ((CLIENT, "direct", "10.0.2.1/24"), (SERVER, "direct", "10.0.2.2/24")),
)
# The host's default may be bbr, whose pacing depends on bandwidth estimates that vary from trial to trial.
CONGESTION = "cubic"
ALLOWED = "/proc/sys/net/ipv4/tcp_allowed_congestion_control"
SETTINGS = {
    "net.ipv4.tcp_congestion_control": CONGESTION,
    # Servers listen below the ephemeral ports. Sockets in TIME_WAIT of one trial must not slow down the search for a free port in
    # the next trial.
    "net.ipv4.ip_local_port_range": "10240 65535",
    "net.ipv4.tcp_tw_reuse": "1",
    "net.ipv4.tcp_max_tw_buckets": "4096",
    "net.core.somaxconn": "4096",
}
RELAY_PORT, TARGET_PORT = 9000, 9001
LOCK = "/run/lock/parshall-bench-relay"
SCRATCH_PREFIX = "parshall-bench-"
libc = ctypes.CDLL(None, use_errno=True)


def say(text):
    print(text, file=sys.stderr, flush=True)


def ip(*words):
    subprocess.run(["ip", *words], check=True)


@contextlib.contextmanager
def congestion_allowed():
    """Allows the congestion control on the host while namespaces set it, because the kernel checks that when it is set."""
    with open(ALLOWED) as f:
        before = f.read().strip()
    if CONGESTION in before.split():
        yield
        return
    try:
        with open(ALLOWED, "w") as f:
            f.write(f"{before} {CONGESTION}")
        yield
    finally:
        with open(ALLOWED, "w") as f:
            f.write(before)


def inside(namespace, *command):
    """The command line that runs a command in a namespace. nsenter execs it, so the pid stays the same."""
    return ["nsenter", f"--net=/run/netns/{namespace}", *command]


@contextlib.contextmanager
def within(namespace):
    """Enters the namespace. Sockets that are created in this block belong to it."""
    with open("/proc/thread-self/ns/net") as home, open(f"/run/netns/{namespace}") as target:
        if libc.setns(target.fileno(), 0):
            raise OSError(ctypes.get_errno(), f"cannot enter {namespace}")
        try:
            yield
        finally:
            libc.setns(home.fileno(), 0)


def parents():
    """{pid: parent's pid} of all processes. Not every kernel has /proc/PID/task/TID/children."""
    found = {}
    for name in os.listdir("/proc"):
        if name.isdigit():
            with contextlib.suppress(OSError, IndexError):
                with open(f"/proc/{name}/stat") as f:
                    found[int(name)] = int(f.read().rpartition(")")[2].split()[1])
    return found


def tree(root):
    """The pids of a process and its descendants."""
    children = {}
    for pid, parent in parents().items():
        children.setdefault(parent, []).append(pid)
    found, todo = [], [root]
    while todo:
        pid = todo.pop()
        found.append(pid)
        todo += children.get(pid, [])
    return found


def send(pids, number):
    for pid in pids:
        with contextlib.suppress(ProcessLookupError):
            os.kill(pid, number)


def pids_in(namespace):
    listed = subprocess.run(["ip", "netns", "pids", namespace], capture_output=True, text=True)
    return [int(pid) for pid in listed.stdout.split()]


def empty(namespace):
    """Ends all processes in a namespace of this testbed."""
    for number in (signal.SIGTERM, signal.SIGKILL):
        send(pids_in(namespace), number)
        for _ in range(20):
            if not pids_in(namespace):
                return
            time.sleep(0.05)


def remove_namespaces():
    for namespace in NAMESPACES:
        if os.path.exists(f"/run/netns/{namespace}"):
            empty(namespace)
            ip("netns", "del", namespace)


class Child:
    """A process in a namespace. `stop` also ends its descendants."""

    def __init__(self, namespace, command, scratch, name, **options):
        self.namespace, self.log = namespace, os.path.join(scratch, f"{name}.log")
        with open(self.log, "wb") as log:
            options.setdefault("stdout", log)
            self.process = subprocess.Popen(
                inside(namespace, *command), stdin=options.pop("stdin", subprocess.DEVNULL), stderr=log,
                preexec_fn=dying_with_parent(), **options,
            )
        self.pid = self.process.pid

    def log_end(self):
        with open(self.log, errors="replace") as f:
            return f.read().strip()[-300:]

    def stop(self):
        pids = tree(self.pid)
        send([self.pid], signal.SIGTERM)
        with contextlib.suppress(subprocess.TimeoutExpired):
            self.process.wait(1)
        # A relay that forks leaves its children, and one that drains its connections does not exit soon.
        send([pid for pid in pids if pid != self.pid or self.process.poll() is None], signal.SIGKILL)
        self.process.wait(10)
        wait_until(lambda: not any(os.path.exists(f"/proc/{pid}") for pid in pids), f"exit of pid {self.pid}")


def wait_until(condition, what, seconds=10):
    end = time.monotonic() + seconds
    while not condition():
        if time.monotonic() > end:
            raise TimeoutError(f"timeout after {seconds} s: {what}")
        time.sleep(0.01)


def bound(namespace, port, udp):
    """Whether a socket of the namespace is bound to the port. Reads /proc, because a test connection would reach the relay."""
    wanted_state = "07" if udp else "0A"
    with within(namespace):
        for family in ("", "6"):
            with contextlib.suppress(FileNotFoundError):
                with open(f"/proc/thread-self/net/{'udp' if udp else 'tcp'}{family}") as f:
                    lines = f.readlines()[1:]
                if any(w[1].endswith(f":{port:04X}") and w[3] == wanted_state for w in map(str.split, lines)):
                    return True
    return False


def wait_bound(child, port, udp=False):
    def settled():
        if child.process.poll() is not None:
            raise RuntimeError(f"exited at once: {child.log_end()}")
        return bound(child.namespace, port, udp)

    wait_until(settled, f"binding port {port}")


class Path:
    """The namespaces and addresses of the load, the relay and the server of a trial."""

    def __init__(self, loopback):
        self.loopback = loopback
        self.client = RELAY if loopback else CLIENT
        self.server = RELAY if loopback else SERVER
        self.listen = "127.0.0.1" if loopback else "10.0.1.1"
        self.target = "127.0.0.1" if loopback else "10.0.0.2"
        self.direct = "127.0.0.1" if loopback else "10.0.2.2"


class Testbed:
    """Creates the namespaces and a scratch directory, and removes them at the end of the context."""

    def __enter__(self):
        if os.geteuid() != 0:
            raise SystemExit("error: network namespaces need root\nhint: run it with sudo")
        self.lock = open(LOCK, "a+")
        try:
            fcntl.flock(self.lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            raise SystemExit("error: another relay measurement runs on this host\nhint: wait until it has ended") from None
        for number in (signal.SIGTERM, signal.SIGHUP):
            signal.signal(number, lambda *_: sys.exit(1))
        remove_namespaces()
        self.lock.seek(0)
        self.remove_scratch(self.lock.read())
        self.scratch = tempfile.mkdtemp(prefix=SCRATCH_PREFIX)
        self.lock.truncate(0)
        self.lock.write(self.scratch)
        self.lock.flush()
        try:
            self.build()
        except BaseException:
            self.__exit__()
            raise
        return self

    def build(self):
        os.chmod(self.scratch, 0o755)  # a relay that drops its privileges reads its configuration here
        for namespace in NAMESPACES:
            ip("netns", "add", namespace)
            ip("-n", namespace, "link", "set", "lo", "up")
            with congestion_allowed():
                for key, value in SETTINGS.items():
                    subprocess.run(inside(namespace, "sysctl", "-qw", f"{key}={value}"), check=True)
        for (left, left_name, left_address), (right, right_name, right_address) in LINKS:
            ip("-n", left, "link", "add", left_name, "type", "veth", "peer", "name", right_name, "netns", right)
            for namespace, name, address in ((left, left_name, left_address), (right, right_name, right_address)):
                ip("-n", namespace, "addr", "add", address, "dev", name)
                ip("-n", namespace, "link", "set", name, "up")
        subprocess.run(inside(RELAY, "sysctl", "-qw", "net.ipv4.ip_forward=1"), check=True)
        ip("-n", CLIENT, "route", "add", "10.0.0.0/24", "via", "10.0.1.1")
        ip("-n", SERVER, "route", "add", "10.0.1.0/24", "via", "10.0.0.1")
        self.load = os.path.join(self.scratch, "load")
        source = os.path.join(os.path.dirname(os.path.abspath(__file__)), "load.c")
        subprocess.run(["gcc", "-std=gnu11", "-O2", "-Wall", "-Wextra", "-o", self.load, source], check=True)

    @staticmethod
    def remove_scratch(folder):
        """Removes the scratch directory of the last run, which may have been killed. The lock file has its name."""
        if os.path.basename(folder).startswith(SCRATCH_PREFIX):
            shutil.rmtree(folder, ignore_errors=True)

    def __exit__(self, *_):
        remove_namespaces()
        self.remove_scratch(self.scratch)
        self.lock.close()
