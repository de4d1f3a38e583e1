"""The implementations of WireGuard that are compared, and how each is started."""
import glob
import os

ROOT = os.path.dirname(os.path.dirname(os.path.dirname(os.path.abspath(__file__))))
FETCHED = os.path.join(ROOT, "target", "peers")
PARSHALL = os.environ.get("PARSHALL", os.path.join(ROOT, "target", "release", "parshall"))


class Peer:
    """`command` starts a daemon in the foreground for the interface that is appended."""

    def __init__(self, name, program, *flags, note=""):
        self.name, self.note = name, note
        found = sorted(glob.glob(program))
        self.command = [found[-1], *flags] if found else None
        self.wanted = program

    def missing(self):
        return None if self.command else f"{self.wanted and os.path.relpath(self.wanted, ROOT)} is not there (scripts/peers/fetch --bench)"


class Veth(Peer):
    """No tunnel: the limit of the path."""

    def __init__(self):
        super().__init__("veth", "/bin/sh", note="no tunnel")


class Kernel(Peer):
    """WireGuard of the kernel, on hosts that have it."""

    def __init__(self):
        super().__init__("kernel", "/sys/module/wireguard", note="in the kernel")

    def missing(self):
        return None if self.command else "this kernel has no WireGuard"


ALL = {
    peer.name: peer
    for peer in (
        Peer("parshall", PARSHALL, "tunnel", "run", note="`parshall tunnel run`"),
        Peer("parshall-threads", PARSHALL, "tunnel", "run", "--threads", "2", note="`--threads 2`"),
        Peer("parshall-uring", PARSHALL, "tunnel", "run", "--engine", "uring", note="`--engine uring`"),
        Peer("before", os.environ.get("OLD", ""), "tunnel", "run", note="another binary of parshall, named by OLD"),
        Peer("wireguard-go", os.path.join(FETCHED, "wireguard-go-*", "wireguard"), "-f", note="a thread for each CPU"),
        Peer("boringtun", os.path.join(FETCHED, "boringtun-cli-*", "bin", "boringtun-cli"), "--foreground",
             "--disable-drop-privileges", note="its default of 4 threads"),
        Peer("gotatun", os.path.join(FETCHED, "gotatun-cli-*", "bin", "gotatun*"), "--foreground", "--disable-drop-privileges",
             note="its defaults"),
        Kernel(),
        Veth(),
    )
}
