"""The peers: one class per relay, with its configuration, its command line and its limits.

A peer is started again for each trial. It is not pinned to CPUs, does not log and has its default settings, except for those in
its class. Two of the peers are limits without a relay: `direct` (one hop) and `forward` (the kernel routes through the relay's
namespace).
"""
import os
import shutil
import subprocess

import testbed

ROOT = os.path.normpath(os.path.join(os.path.dirname(os.path.abspath(__file__)), "..", ".."))
PARSHALL = os.path.abspath(os.environ.get("PARSHALL", os.path.join(ROOT, "target", "release", "parshall")))
NGINX_STREAM = "/usr/lib/nginx/modules/ngx_stream_module.so"
SOCKET_PROXY = "/lib/systemd/systemd-socket-proxyd"
CONNECTIONS = 9800  # with two descriptors each, below the limit of 20,000 descriptors


class Peer:
    name = ""
    note = ""  # printed in the tables
    udp = True
    loopback = True
    descriptors = 2  # per connection in one process, which limits the connections

    def missing(self):
        """The reason why it cannot be measured here, or None."""
        return None if shutil.which(self.program()) else f"{self.program()} is not installed"

    def program(self):
        return self.name

    def command(self, path, scratch, udp):
        """Writes the configuration to `scratch`, and returns the command line."""
        raise NotImplementedError

    def address(self, path):
        """The (address, port) to which the client connects."""
        return path.listen, testbed.RELAY_PORT

    def start(self, path, scratch, udp=False):
        """Starts the relay and waits until it listens. Returns None if there is no process."""
        child = testbed.Child(testbed.RELAY, self.command(path, scratch, udp), scratch, self.name)
        try:
            testbed.wait_bound(child, testbed.RELAY_PORT, udp)
        except BaseException:
            child.stop()
            raise
        return child


class Direct(Peer):
    name = "direct"
    note = "no relay: the limit"

    def missing(self):
        return None

    def address(self, path):
        return path.direct, testbed.TARGET_PORT

    def start(self, path, scratch, udp=False):
        return None


class Forward(Direct):
    name = "forward"
    note = "the kernel routes: the limit of a second hop"
    loopback = False

    def address(self, path):
        return path.target, testbed.TARGET_PORT


class Parshall(Peer):
    def __init__(self, engine=None, buffer=None, name=None, binary=PARSHALL):
        self.binary = binary
        self.options = (["--engine", engine] if engine else []) + (["--buffer", buffer] if buffer else [])
        self.name = name or "-".join(["parshall", *self.options[1::2]])
        self.note = " ".join(self.options) or "defaults: `--engine auto`"

    def missing(self):
        if not self.binary:
            return "OLD names no binary"
        if not shutil.which(self.binary):
            return f"{os.path.relpath(self.binary)} is not built"
        asked = subprocess.run([self.binary, "relay", "--help"], capture_output=True)
        return None if asked.returncode == 0 else f"{os.path.relpath(self.binary)} has no relay"

    def command(self, path, scratch, udp):
        ends = [f"{path.listen}:{testbed.RELAY_PORT}", f"{path.target}:{testbed.TARGET_PORT}"]
        return [self.binary, "relay", *ends, *self.options, *(["--udp"] if udp else [])]


class Haproxy(Peer):
    udp = False

    def __init__(self, name, note, splice, pipe_bytes=None):
        self.name, self.note, self.splice, self.pipe_bytes = name, note, splice, pipe_bytes

    def program(self):
        return "haproxy"

    def command(self, path, scratch, udp):
        # At its start haproxy reserves descriptors for two pipes per connection, unless maxpipes is set. The kernel allows an
        # unprivileged user 64 pipes of 1 MiB.
        config = f"""
global
    nbthread 2
    maxconn {CONNECTIONS - 200}
    {"maxpipes 64" if self.splice else ""}
    {f"tune.pipesize {self.pipe_bytes}" if self.pipe_bytes else ""}
defaults
    mode tcp
    timeout connect 5s
    timeout client 1h
    timeout server 1h
    {"option splice-request" if self.splice else ""}
    {"option splice-response" if self.splice else ""}
listen relay
    bind {path.listen}:{testbed.RELAY_PORT} backlog 4096
    server target {path.target}:{testbed.TARGET_PORT}
"""
        return ["haproxy", "-db", "-q", "-f", write(scratch, "haproxy.cfg", config)]


class Nginx(Peer):
    def __init__(self, buffer_kib):
        self.name = f"nginx-{buffer_kib}k"
        self.note = f"`proxy_buffer_size {buffer_kib}k`, 2 workers, `reuseport`, `proxy_half_close on`"
        self.buffer_kib = buffer_kib

    def program(self):
        return "nginx"

    def missing(self):
        if not os.path.exists(NGINX_STREAM):
            return f"{NGINX_STREAM} is not installed"
        return super().missing()

    def command(self, path, scratch, udp):
        config = f"""
load_module {NGINX_STREAM};
daemon off;
worker_processes 2;
pid {scratch}/nginx.pid;
error_log stderr error;
events {{ worker_connections {2 * CONNECTIONS}; }}
stream {{
    server {{
        listen {path.listen}:{testbed.RELAY_PORT} reuseport{" udp" if udp else " backlog=4096"};
        proxy_pass {path.target}:{testbed.TARGET_PORT};
        proxy_buffer_size {self.buffer_kib}k;
        {"" if udp else "proxy_half_close on;"}
        proxy_timeout 1h;
    }}
}}
"""
        return ["nginx", "-e", "stderr", "-p", scratch, "-c", write(scratch, "nginx.conf", config)]


class Socat(Peer):
    name = "socat"
    note = "`fork`, `-b 65536`: a process per connection"

    def command(self, path, scratch, udp):
        kind = "UDP" if udp else "TCP"
        backlog = "" if udp else ",backlog=4096"
        return [
            "socat", "-b", "65536",
            f"{kind}-LISTEN:{testbed.RELAY_PORT},bind={path.listen},fork,reuseaddr{backlog}",
            f"{kind}:{path.target}:{testbed.TARGET_PORT}",
        ]


class Rinetd(Peer):
    name = "rinetd"

    def command(self, path, scratch, udp):
        kind = "/udp" if udp else ""
        config = (
            f"{path.listen} {testbed.RELAY_PORT}{kind} {path.target} {testbed.TARGET_PORT}{kind}\n"
            f"pidlogfile {scratch}/rinetd.pid\n"
        )
        return ["rinetd", "-f", "-c", write(scratch, "rinetd.conf", config)]


class SocketProxy(Peer):
    """Gets its listening socket from systemd-socket-activate, which execs the proxy at the first connection."""

    name = "systemd-proxyd"
    note = "splices through two pipes of its own per connection"
    udp = False
    descriptors = 6

    def program(self):
        return SOCKET_PROXY

    def missing(self):
        return super().missing() or (
            None if shutil.which("systemd-socket-activate") else "systemd-socket-activate is not installed"
        )

    def command(self, path, scratch, udp):
        return [
            "systemd-socket-activate", f"--listen={path.listen}:{testbed.RELAY_PORT}",
            SOCKET_PROXY, f"--connections-max={CONNECTIONS}", f"{path.target}:{testbed.TARGET_PORT}",
        ]


def write(scratch, name, text):
    where = os.path.join(scratch, name)
    with open(where, "w", encoding="utf-8") as f:
        f.write(text)
    return where


LIMITS = [Direct(), Forward()]
COMPARED = [
    Parshall(),
    Haproxy("haproxy-splice", "`option splice-request`, `splice-response`, `tune.pipesize 1048576`", True, 1048576),
    Haproxy("haproxy-splice-64k", "the same with pipes of the kernel's default size", True),
    Haproxy("haproxy-copy", "no splice", False),
    Nginx(16),
    Nginx(64),
    Socat(),
    Rinetd(),
    SocketProxy(),
]
ON_REQUEST = [Parshall(engine) for engine in ("copy", "splice")]
ON_REQUEST.append(Parshall(name="before", binary=os.environ.get("OLD", "")))
ALL = {peer.name: peer for peer in LIMITS + COMPARED + ON_REQUEST}
DEFAULT = [peer.name for peer in LIMITS + COMPARED]
