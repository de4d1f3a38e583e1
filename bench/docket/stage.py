"""Sets up and ends one case: network namespaces, network path, disk, files, control groups, processes. Everything ends with the
runner, also if it is killed. All processes are in one control group, which a guard process kills when its pipe from the runner is
closed. Mounts and loop devices belong to the runner's private mount namespace. Network namespaces are kept alive by processes of
the control group."""
import ctypes
import os
import resource
import shutil
import signal
import subprocess
import tempfile
import time

from case import BUILT, HERE, fill, words
from children import dying_with_parent

LIBC = ctypes.CDLL(None, use_errno=True)
CLONE_NEWNS = 0x00020000
MS_REC_PRIVATE = 0x4000 | (1 << 18)
UNIFIED = next((p for p in ("/sys/fs/cgroup/unified", "/sys/fs/cgroup") if os.path.exists(p + "/cgroup.procs")), None)
BLKIO_IOPS = "/sys/fs/cgroup/blkio/blkio.throttle.write_iops_device"
READY_S = 30


class StageError(Exception):
    """The case could not be set up on this host."""


def enter_private_mounts():
    """Enters a private mount namespace. Later mounts are visible only to this process and its children, and end with them."""
    if LIBC.unshare(CLONE_NEWNS) or LIBC.mount(None, b"/", None, MS_REC_PRIVATE, None):
        raise StageError(f"cannot create a private mount namespace: {os.strerror(ctypes.get_errno())}")


def _write(path, text):
    with open(path, "w", encoding="ascii") as f:
        f.write(str(text))


class Group:
    """The control groups of one run of a case: one with all processes, and one for each limit."""

    def __init__(self, folder):
        if not UNIFIED:
            raise StageError("cgroup v2 is not mounted")
        self.folder = folder
        self.path = os.path.join(UNIFIED, f"docket-{os.getpid()}")
        self.limits = []
        os.makedirs(self.path, exist_ok=True)
        self.guard = self._start_guard()

    def limit(self, name, limits):
        """Creates groups of the v1 controllers with these limits, for a process to join. Fails on a host with v2 only."""
        joined = []
        for controller, key in (("cpu", "cpu"), ("memory", "memory_mb")):
            if key not in limits:
                continue
            base = f"/sys/fs/cgroup/{controller}"
            if not os.path.exists(base + "/cgroup.procs") or base == UNIFIED:
                raise StageError(f"a limit needs the cgroup v1 controller {controller}, which this host does not have")
            path = f"{base}/docket-{os.getpid()}-{name}"
            os.makedirs(path, exist_ok=True)
            value = float(limits[key])
            if controller == "cpu":
                _write(path + "/cpu.cfs_period_us", 100000)
                _write(path + "/cpu.cfs_quota_us", int(value * 100000) if value > 0 else -1)
            elif value > 0:
                _write(path + "/memory.limit_in_bytes", int(value * (1 << 20)))
            self.limits.append(path)
            joined.append(path)
        return joined

    def _start_guard(self):
        """Forks a process that waits until the runner has exited, and then ends everything that the runner started."""
        read, self.pipe = os.pipe()
        pid = os.fork()
        if pid:
            os.close(read)
            return pid
        os.setsid()
        os.close(self.pipe)
        for sig in (signal.SIGINT, signal.SIGTERM, signal.SIGHUP):
            signal.signal(sig, signal.SIG_IGN)
        throttled = b""
        while part := os.read(read, 64):
            throttled += part
        kill_group(self.path)
        for device in throttled.decode().split():
            _write(BLKIO_IOPS, f"{device} 0")
            subprocess.run(["umount", "--lazy", os.path.join(self.folder, "disk")], capture_output=True, check=False)
        shutil.rmtree(self.folder, ignore_errors=True)
        os._exit(0)

    def throttle(self, device, iops):
        os.write(self.pipe, f"{device}\n".encode())
        _write(BLKIO_IOPS, f"{device} {iops}")

    def close(self):
        kill_group(self.path)
        for path in self.limits:
            _remove(path)
        os.close(self.pipe)
        os.waitpid(self.guard, 0)


def _remove(path):
    for _ in range(50):
        try:
            os.rmdir(path)
            return
        except FileNotFoundError:
            return
        except OSError:
            time.sleep(0.05)


def kill_group(path):
    if not os.path.exists(path):
        return
    try:
        _write(path + "/cgroup.kill", 1)
    except OSError:
        pass
    _remove(path)


def sweep():
    """Removes the control groups of an earlier runner that was killed together with its guard process."""
    for base in (UNIFIED, "/sys/fs/cgroup/cpu", "/sys/fs/cgroup/memory"):
        if not base or not os.path.isdir(base):
            continue
        for name in os.listdir(base):
            parts = name.split("-")
            if parts[0] == "docket" and len(parts) > 1 and parts[1].isdigit() and not os.path.exists(f"/proc/{parts[1]}"):
                if base == UNIFIED:
                    kill_group(os.path.join(base, name))
                else:
                    _remove(os.path.join(base, name))


def _listens(pid, port, udp):
    want = f":{port:04X}"
    for name in ("udp", "udp6") if udp else ("tcp", "tcp6"):
        try:
            with open(f"/proc/{pid}/net/{name}", encoding="ascii") as f:
                for line in f.readlines()[1:]:
                    field = line.split()
                    if field[1].endswith(want) and (udp or field[3] == "0A"):
                        return True
        except OSError:
            pass
    return False


class Stage:
    """One run of a case, with or without its change."""

    def __init__(self, case, changed=False):
        self.case, self.changed = case, changed
        self.pids, self.namespaces, self.children, self.mounts = {}, {}, [], []
        self.group, self.iops = None, None
        self.dir = tempfile.mkdtemp(prefix="docket-")
        os.chmod(self.dir, 0o1777)
        self.values = {
            "programs": os.path.join(HERE, "programs"), "built": os.path.join(BUILT, "bin"), "dir": self.dir,
            "disk": os.path.join(self.dir, "disk"), "cache": os.path.join(BUILT, "databases"), **case.values(changed),
        }

    def fill(self, text):
        return fill(str(text), self.values, self.case.id)

    def start(self):
        self.group = Group(self.dir)
        for name in self.case.namespaces:
            self._namespace(name)
        self._links()
        for key, value in self.case.sysctl.items():
            for pid in self.namespaces.values():
                path = "/proc/sys/" + self.fill(key).replace(".", "/")
                self._run(["nsenter", "-t", str(pid), "-n", "sh", "-c", f"echo '{self.fill(value)}' > {path}"])
        if self.case.disk:
            self._slow_disk()
        for name, text in self.case.files.items():
            path = os.path.join(self.dir, name)
            with open(path, "w", encoding="utf-8") as f:
                f.write(self.fill(text))
            os.chmod(path, 0o755)
        if self.case.resolv:
            path = os.path.join(self.dir, "resolv.conf")
            with open(path, "w", encoding="ascii") as f:
                f.write(self.fill(self.case.resolv))
            self._mount("--bind", path, "/etc/resolv.conf")
        for process in self.case.processes:
            if process["name"] not in self.case.dropped(self.changed):
                self._process(process)

    def _run(self, command, **more):
        done = subprocess.run(command, capture_output=True, text=True, preexec_fn=self._join([]), timeout=60, **more)
        if done.returncode:
            raise StageError(f"{' '.join(command)}: {(done.stderr or done.stdout).strip()[-300:]}")
        return done.stdout.strip()

    def _namespace(self, name):
        child = subprocess.Popen(["unshare", "-n", "sleep", "infinity"], preexec_fn=self._join([]))
        self.children.append(child)
        own = os.readlink("/proc/self/ns/net")
        for _ in range(200):
            if os.readlink(f"/proc/{child.pid}/ns/net") != own:
                break
            time.sleep(0.01)
        else:
            raise StageError("a network namespace was not created in time")
        self.namespaces[name] = child.pid
        self.values[f"ns.{name}"] = child.pid
        enter = ["nsenter", "-t", str(child.pid), "-n"]
        self._run(enter + ["ip", "link", "set", "lo", "up"])
        # The host's default may be bbr, which hides the effect of loss. A namespace can only set an algorithm that the host allows.
        control = "/proc/sys/net/ipv4/tcp_congestion_control"
        self._run(enter + ["sh", "-c", f"echo cubic > {control} || echo reno > {control}"])

    def _links(self):
        """The first namespace is 10.9.0.1, the second 10.9.0.2."""
        if not (self.case.path or self.case.veth):
            return
        first, second = list(self.namespaces.values())[:2]
        if self.case.path:
            command = [self.fill("{built}/wire"), str(first), str(second)] + words(self.case.path, self.values, self.case.id)
            child = subprocess.Popen(command, stdout=subprocess.PIPE, text=True, preexec_fn=self._join([]))
            self.children.append(child)
            if child.stdout.readline().strip() != "ready":
                raise StageError("the path between the namespaces could not be set up")
            return
        self._run(["ip", "link", "add", "docket0", "netns", str(first), "type", "veth", "peer", "name", "docket0", "netns", str(second)])
        for pid, address in ((first, "10.9.0.1/24"), (second, "10.9.0.2/24")):
            enter = ["nsenter", "-t", str(pid), "-n", "ip"]
            self._run(enter + ["addr", "add", address, "dev", "docket0"])
            self._run(enter + ["link", "set", "docket0", "up"])

    def _mount(self, *arguments):
        self._run(["mount", *arguments])
        self.mounts.append(arguments[-1])

    def _slow_disk(self):
        """Mounts a file system on a loop device whose writes are limited. The limit is set for the root group, because a kernel
        thread writes the file system's journal. It applies only to this device."""
        if not os.path.exists(BLKIO_IOPS):
            raise StageError(f"a slow disk needs the cgroup v1 controller blkio: there is no {BLKIO_IOPS}")
        image, where = os.path.join(self.dir, "disk.img"), self.values["disk"]
        with open(image, "wb") as f:
            f.truncate(int(self.case.disk["mb"]) << 20)
        self._run(["mkfs.ext4", "-q", "-E", "lazy_itable_init=0", image])
        os.mkdir(where)
        self._mount("-o", "loop", image, where)
        os.chmod(where, 0o777)
        device = os.stat(where).st_dev
        self.iops = f"{os.major(device)}:{os.minor(device)}"

    def throttle_disk(self):
        """Sets the limit. Called when all processes are ready, so that their start is not slowed down."""
        limit = int(self.fill(self.case.disk["write_iops"]))
        if limit:
            self.group.throttle(self.iops, limit)

    def _join(self, limits, nofile=None, cpus=None):
        groups = [self.group.path] + limits
        die_with_parent = dying_with_parent()

        def enter():
            die_with_parent()
            for path in groups:
                with open(path + "/cgroup.procs", "w", encoding="ascii") as f:
                    f.write("0")
            if nofile:
                resource.setrlimit(resource.RLIMIT_NOFILE, (nofile, nofile))
            if cpus is not None:
                os.sched_setaffinity(0, cpus)
        return enter

    def _process(self, process):
        name = process["name"]
        namespace = self.namespaces[process.get("in", self.case.namespaces[0])]
        command = words(process["run"], self.values, self.case.id)
        if process.get("user"):
            command = ["setpriv", "--reuid", process["user"], "--regid", process["user"], "--clear-groups"] + command
        command = ["nsenter", "-t", str(namespace), "-n"] + command
        limits = {k: self.fill(v) for k, v in process.get("cgroup", {}).items()}
        joins = self.group.limit(process.get("group", name), limits) if limits else []
        nofile = int(self.fill(process["nofile"])) if "nofile" in process else None
        cpus = {int(c) for c in self.fill(process["cpus"]).split(",")} if "cpus" in process else None
        environment = {**os.environ, "PYTHONDONTWRITEBYTECODE": "1", "DOCKET_DIR": self.dir}
        environment.update({k: self.fill(v) for k, v in process.get("env", {}).items()})
        with open(os.path.join(self.dir, name + ".log"), "ab") as log:
            child = subprocess.Popen(
                command, stdin=subprocess.DEVNULL, stdout=log, stderr=log, cwd=self.dir, env=environment,
                preexec_fn=self._join(joins, nofile=nofile, cpus=cpus), start_new_session=True,
            )
        self.children.append(child)
        self.pids[name] = self.values[f"pid.{name}"] = child.pid
        self._wait_ready(name, child, self.fill(process.get("ready", "now")).split(None, 1))

    def _wait_ready(self, name, child, ready):
        kind, what = ready[0], ready[1] if len(ready) > 1 else ""
        if kind == "now":
            return
        if kind == "seconds":
            time.sleep(float(what))
            return
        until = time.monotonic() + READY_S
        while time.monotonic() < until:
            ended = child.poll()
            if kind == "exit" and ended == 0:
                return
            if ended is not None and (kind == "exit" or ended):
                raise StageError(f"{name} ended with {ended}: {self.log(name)[-300:]}")
            if kind == "file" and os.path.exists(what):
                return
            if kind in ("port", "udp") and _listens(child.pid, int(what), kind == "udp"):
                return
            time.sleep(0.02)
        raise StageError(f"{name} was not ready ({kind} {what}) after {READY_S} s: {self.log(name)[-300:]}")

    def log(self, name):
        with open(os.path.join(self.dir, name + ".log"), encoding="utf-8", errors="replace") as f:
            return f.read()

    def start_load(self, seconds):
        load = self.case.load
        namespace = self.namespaces[load.get("in", self.case.namespaces[-1])]
        command = words(load["run"], {**self.values, "seconds": seconds}, self.case.id)
        self.children.append(subprocess.Popen(
            ["nsenter", "-t", str(namespace), "-n"] + command, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True,
            cwd=self.dir, preexec_fn=self._join([]), start_new_session=True,
        ))
        return self.children[-1]

    def inside(self, command):
        """The command, as a user types it in the namespace of the subject."""
        return ["nsenter", "-t", str(self.namespaces[self.case.namespaces[0]]), "-n"] + command

    def close(self):
        """Ends everything; safe to call at any point."""
        if self.group:
            self.group.close()
        for child in self.children:
            try:
                child.wait(timeout=10)
            except subprocess.TimeoutExpired:
                pass
            for stream in (child.stdout, child.stderr):
                if stream:
                    stream.close()
        for where in reversed(self.mounts):
            for _ in range(20):
                if not subprocess.run(["umount", where], capture_output=True, check=False).returncode:
                    break
                time.sleep(0.1)
        shutil.rmtree(self.dir, ignore_errors=True)
