"""Two network namespaces with a veth pair between them, and a tunnel through it.

    left                                             right
    10.9.0.1  tunnel ┐                             ┌ tunnel  10.9.0.2
              192.0.2.1  eth0 ---- veth ---- eth0  192.0.2.2

Processes die with this one, and the namespaces with their last process and their name, which the next run removes if this one
was killed.
"""
import glob
import json
import os
import subprocess
import sys
import time

from children import dying_with_parent

PREFIX = "parshall-bench-tunnel-"
OUTER, INNER = ("192.0.2.1", "192.0.2.2"), ("10.9.0.1", "10.9.0.2")
LISTEN = 51820
MTU = 1420
TICK = os.sysconf("SC_CLK_TCK")


def ip(*words, check=True):
    return subprocess.run(["ip", *words], check=check, capture_output=True, text=True)


def sweep():
    """Removes the namespaces of runs that were killed."""
    for path in glob.glob(f"/run/netns/{PREFIX}*"):
        name = os.path.basename(path)
        if not os.path.exists(f"/proc/{name.split('-')[-2]}"):
            ip("netns", "delete", name, check=False)


def with_children(pid):
    """The process and all its descendants."""
    found = [pid]
    for child in _children(pid):
        found += with_children(child)
    return found


def _children(pid):
    try:
        with open(f"/proc/{pid}/task/{pid}/children", encoding="ascii") as f:
            return [int(word) for word in f.read().split()]
    except OSError:
        return []


def cpu_s(pid):
    """CPU time of the process and its descendants."""
    total = 0
    for each in with_children(pid):
        try:
            with open(f"/proc/{each}/stat", encoding="utf-8", errors="replace") as f:
                fields = f.read().rsplit(")", 1)[1].split()
        except OSError:
            continue
        total += int(fields[11]) + int(fields[12])
    return total / TICK


def rss_mib(pid):
    total = 0
    for each in with_children(pid):
        with open(f"/proc/{each}/status", encoding="utf-8", errors="replace") as f:
            total += next((int(line.split()[1]) for line in f if line.startswith("VmRSS")), 0)
    return total / 1024


class Tunnel:
    """The testbed with one implementation at both ends. Use it as a context."""

    def __init__(self, peer, others=0, server_peers=()):
        """`others` more peers are configured at the left end; nobody has their keys. `server_peers` are public keys of more peers of
        the right end."""
        self.peer = peer
        others = [_random_key() for _ in range(others)]
        self.more = [others, list(server_peers)]
        self.names = [f"{PREFIX}{os.getpid()}-{side}" for side in ("left", "right")]
        self.interfaces = [f"pb{os.getpid()}{side}" for side in "lr"]
        self.daemons = []

    def __enter__(self):
        try:
            self._network()
            if self.peer.name == "veth":
                self.inner = OUTER
            else:
                self.inner = INNER
                self._start()
            return self
        except BaseException:
            self.close()
            raise

    def __exit__(self, *_):
        self.close()

    def close(self):
        for daemon in self.daemons:
            daemon.terminate()
        for daemon in self.daemons:
            try:
                daemon.wait(5)
            except subprocess.TimeoutExpired:
                daemon.kill()
                daemon.wait()
        self.daemons = []
        for name, interface in zip(self.names, self.interfaces):
            ip("netns", "delete", name, check=False)
            for path in (f"/run/wireguard/{interface}.sock", f"/run/parshall/tunnel/{interface}.lock"):
                if os.path.exists(path):
                    os.unlink(path)

    def _network(self):
        for name in self.names:
            ip("netns", "add", name)
        ip("link", "add", "eth0", "netns", self.names[0], "type", "veth", "peer", "name", "eth0", "netns", self.names[1])
        for side in (0, 1):
            self.ip(side, "address", "add", f"{OUTER[side]}/24", "dev", "eth0")
            for device in ("lo", "eth0"):
                self.ip(side, "link", "set", device, "up")

    def ip(self, side, *words):
        return ip("-n", self.names[side], *words)

    def inside(self, side, command):
        return ["ip", "netns", "exec", self.names[side], *command]

    def spawn(self, side, command, **options):
        return subprocess.Popen(
            self.inside(side, command), stdin=subprocess.DEVNULL, preexec_fn=dying_with_parent(), **options)

    def _start(self):
        keys = [_key_pair(), _key_pair()]
        self.public_keys = [public for _, public in keys]
        for side in (0, 1):
            interface = self.interfaces[side]
            if self.peer.name == "kernel":
                self.ip(side, "link", "add", interface, "type", "wireguard")
            else:
                daemon = self.spawn(side, [*self.peer.command, interface], stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL)
                self.daemons.append(daemon)
                _wait_for(f"/run/wireguard/{interface}.sock", daemon)
            text = (f"[Interface]\nPrivateKey = {keys[side][0]}\nListenPort = {LISTEN}\n[Peer]\nPublicKey = {keys[1 - side][1]}\n"
                    f"AllowedIPs = {INNER[1 - side]}/32\nEndpoint = {OUTER[1 - side]}:{LISTEN}\n")
            text += "".join(
                f"[Peer]\nPublicKey = {key}\nAllowedIPs = 10.{20 + n // 250}.{n % 250}.1/32\n"
                for n, key in enumerate(self.more[side])
            )
            subprocess.run(self.inside(side, ["wg", "setconf", interface, "/dev/stdin"]), input=text, text=True, check=True)
            self.ip(side, "address", "add", f"{INNER[side]}/24", "dev", interface)
            self.ip(side, "link", "set", interface, "mtu", str(MTU), "up")
        # The first handshake is no part of any figure.
        self._begin_session()

    def _begin_session(self):
        until = time.monotonic() + 10
        while time.monotonic() < until:
            # A datagram to anywhere begins it; nobody answers.
            code = f"import socket; socket.socket(type=socket.SOCK_DGRAM).sendto(b'x', ('{INNER[1]}', 9))"
            subprocess.run(self.inside(0, [sys.executable, "-c", code]), check=False)
            shown = subprocess.run(self.inside(0, ["wg", "show", self.interfaces[0], "latest-handshakes"]), capture_output=True,
                                   text=True, check=True).stdout
            if any(not line.endswith("\t0") for line in shown.splitlines()):
                return
            time.sleep(0.1)
        raise RuntimeError(f"{self.peer.name}: no handshake")

    def cpu_s(self):
        return sum(cpu_s(daemon.pid) for daemon in self.daemons)

    def rss_mib(self, side=0):
        return rss_mib(self.daemons[side].pid) if self.daemons else 0.0

    def load(self, program, kind, seconds, *flags):
        """Runs a load from left to right. Returns its result."""
        server = self.spawn(1, [program, "lab", "load", kind, "--serve", f"{self.inner[1]}:7000", "--for", f"{seconds + 10}s"],
                            stdout=subprocess.DEVNULL, stderr=subprocess.PIPE, text=True)
        try:
            if not server.stderr.readline().startswith("ready"):
                raise RuntimeError(f"the server of {kind} did not start")
            command = [program, "lab", "load", kind, "--connect", f"{self.inner[1]}:7000", *flags, "--warm-up", "300ms",
                       "--for", f"{seconds}s", "--format", "json"]
            done = subprocess.run(self.inside(0, command), capture_output=True, text=True, timeout=seconds + 30, check=False)
            if done.returncode:
                raise RuntimeError(f"{kind}: {done.stderr.strip()[-200:]}")
            return json.loads(done.stdout)
        finally:
            server.terminate()
            server.wait(10)


def _key_pair():
    private = subprocess.run(["wg", "genkey"], capture_output=True, text=True, check=True).stdout.strip()
    public = subprocess.run(["wg", "pubkey"], input=private, capture_output=True, text=True, check=True).stdout.strip()
    return private, public


def _random_key():
    return subprocess.run(["wg", "genpsk"], capture_output=True, text=True, check=True).stdout.strip()


def _wait_for(path, daemon):
    for _ in range(500):
        if os.path.exists(path):
            return
        if daemon.poll() is not None:
            raise RuntimeError(f"{daemon.args[4]} ended with {daemon.returncode}")
        time.sleep(0.01)
    raise RuntimeError(f"{path} did not appear")
