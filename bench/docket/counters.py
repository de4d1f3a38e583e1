"""The baseline: a diagnosis by thresholds on counters. It names the cause whose counter is furthest above its threshold, or
`healthy` if none is above."""
import os
import re
import subprocess

TICK = os.sysconf("SC_CLK_TCK")
# (counter of the subject over the window, threshold, unit, the cause that it stands for)
THRESHOLDS = (
    ("TcpExt.ListenOverflows", 1.0, "per second", "accept-queue-overflow"),
    ("Tcp.RetransSegs", 5.0, "per second", "packet-loss"),
    ("TcpExt.TCPTimeouts", 2.0, "per second", "retransmission-timeout"),
    ("TcpExt.TCPSynRetrans", 1.0, "per second", "syn-loss"),
    ("TcpExt.DelayedACKs", 20.0, "per second", "nagle-delayed-ack"),
    ("TcpExt.PruneCalled", 1.0, "per second", "receive-queue-collapse"),
    ("TcpExt.TCPAbortOnData", 1.0, "per second", "resets"),
    ("Tcp.EstabResets", 1.0, "per second", "resets"),
    ("Tcp.PassiveOpens", 200.0, "per second", "connection-per-request"),
    ("Udp.RcvbufErrors", 1.0, "per second", "udp-rcvbuf-overflow"),
    ("throttled", 0.05, "of the time", "cpu-throttled"),
    ("user", 0.85, "of a CPU", "user-cpu-bound"),
    ("system", 0.60, "of a CPU", "kernel-cpu-bound"),
    ("runnable", 0.20, "of the time", "run-queue-latency"),
    ("disk", 0.20, "of samples in D state", "blocking-disk-io"),
    ("major_faults", 20.0, "per second", "memory-reclaim"),
    ("minor_faults", 20000.0, "per second", "page-fault-churn"),
    ("stopped", 0.20, "of samples", "process-stopped"),
    ("rwnd_limited", 0.25, "of busy time", "peer-window-limited"),
    ("sndbuf_limited", 0.25, "of busy time", "sndbuf-limited"),
    ("receive_queue", 65536.0, "bytes", "slow-reader"),
)


def _read(path):
    try:
        with open(path, encoding="ascii", errors="replace") as f:
            return f.read()
    except OSError:
        return ""


def _namespace(pid):
    """Counters of the network namespace of a process."""
    out = {}
    for path in ("snmp", "netstat"):
        lines = _read(f"/proc/{pid}/net/{path}").splitlines()
        for names, values in zip(lines[::2], lines[1::2]):
            head, *keys = names.split()
            out.update({head.rstrip(":") + "." + k: int(v) for k, v in zip(keys, values.split()[1:])})
    return out


def _tree(pids):
    """The processes and all their descendants."""
    children = {}
    for name in os.listdir("/proc"):
        if name.isdigit():
            parent = re.search(r"\) . (\d+)", _read(f"/proc/{name}/stat"))
            if parent:
                children.setdefault(int(parent.group(1)), []).append(int(name))
    todo, seen = list(pids), []
    while todo:
        pid = todo.pop()
        seen.append(pid)
        todo += children.get(pid, [])
    return seen


def _throttled():
    total = 0
    base = "/sys/fs/cgroup/cpu"
    for name in os.listdir(base) if os.path.isdir(base) else []:
        if name.startswith("docket-"):
            found = re.search(r"throttled_time (\d+)", _read(f"{base}/{name}/cpu.stat"))
            total += int(found.group(1)) / 1e9 if found else 0
    return total


class Counters:
    """The counters of a running case, summed over its processes. `sample` is called a few times within the window."""

    def __init__(self, stage):
        self.stage, self.samples, self.in_disk, self.in_stop, self.queue = stage, 0, 0, 0, 0
        self.begun, self.ended = self._all(), None

    def _all(self):
        out = {"throttled": _throttled()}
        for pid in self.stage.namespaces.values():
            for key, value in _namespace(pid).items():
                out[key] = out.get(key, 0) + value
        for pid in _tree(self.stage.pids.values()):
            stat = _read(f"/proc/{pid}/stat").rpartition(")")[2].split()
            if not stat:
                continue
            for key, at, scale in (("minor_faults", 7, 1), ("major_faults", 9, 1), ("user", 11, TICK), ("system", 12, TICK)):
                out[key] = out.get(key, 0) + int(stat[at]) / scale
            for thread in _tasks(pid):
                run = _read(f"/proc/{pid}/task/{thread}/schedstat").split()
                out["runnable"] = out.get("runnable", 0) + (int(run[1]) / 1e9 if run else 0)
        return out

    def sample(self):
        self.samples += 1
        states = set()
        for pid in _tree(self.stage.pids.values()):
            for thread in _tasks(pid):
                states.add(_read(f"/proc/{pid}/task/{thread}/stat").rpartition(")")[2][1:2])
        self.in_disk += "D" in states
        self.in_stop += bool({"T", "t"} & states)
        text = subprocess.run(self.stage.inside(["ss", "-tnH"]), capture_output=True, text=True, check=False).stdout
        self.queue = max([self.queue] + [int(line.split()[1]) for line in text.splitlines() if len(line.split()) > 1])

    def finish(self, seconds):
        """[(cause, multiple of the threshold)] of the counters above their thresholds, largest multiple first."""
        ended = self._all()
        value = {k: (ended.get(k, 0) - v) / seconds for k, v in self.begun.items()}
        value["disk"] = self.in_disk / max(1, self.samples)
        value["stopped"] = self.in_stop / max(1, self.samples)
        value["receive_queue"] = self.queue
        text = subprocess.run(self.stage.inside(["ss", "-tinH"]), capture_output=True, text=True, check=False).stdout
        for key in ("rwnd_limited", "sndbuf_limited"):
            value[key] = max([0.0] + [float(x) / 100 for x in re.findall(key + r":\d+ms\(([\d.]+)%\)", text)])
        above = [(value.get(k, 0) / limit, cause) for k, limit, _, cause in THRESHOLDS if value.get(k, 0) >= limit]
        return [(cause, round(times, 2)) for times, cause in sorted(above, reverse=True)]


def _tasks(pid):
    try:
        return os.listdir(f"/proc/{pid}/task")
    except OSError:
        return []
