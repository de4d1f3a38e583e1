"""The resources of a trial: CPU time of the machine and of the relay, memory, descriptors. All are read from /proc."""
import contextlib
import os
import time

import testbed

TICKS_PER_S = os.sysconf("SC_CLK_TCK")
# Above this baseline, other processes get less CPU time while the load runs, so the baseline cannot be subtracted.
TRUSTED_BASELINE_CORES = 0.25
KERNEL_MEMORY = ("Slab", "KernelStack", "PageTables")  # kB of /proc/meminfo; sockets and their buffers are slab


def machine_busy_s():
    """The CPU seconds of the machine. Guest time is part of user; steal is not counted."""
    with open("/proc/stat") as f:
        user, nice, system, _, _, irq, softirq = map(int, f.readline().split()[1:8])
    return (user + nice + system + irq + softirq) / TICKS_PER_S


def tree_cpu_s(root):
    """The CPU seconds of a process tree, with those of children that were waited for."""
    ticks = 0
    for pid in testbed.tree(root):
        with contextlib.suppress(OSError, IndexError), open(f"/proc/{pid}/stat") as f:
            words = f.read().rpartition(")")[2].split()
            ticks += sum(map(int, words[11:15]))  # utime stime cutime cstime
    return ticks / TICKS_PER_S


def tree_memory_kb(root):
    """{"pss", "rss"} in kB, summed over a process tree."""
    total = {"Pss": 0, "Rss": 0}
    for pid in testbed.tree(root):
        with contextlib.suppress(OSError), open(f"/proc/{pid}/smaps_rollup") as f:
            for line in f:
                key, _, rest = line.partition(":")
                if key in total:
                    total[key] += int(rest.split()[0])
    return {key.lower(): kb for key, kb in total.items()}


def tree_descriptors(root):
    count = 0
    for pid in testbed.tree(root):
        with contextlib.suppress(OSError):
            count += len(os.listdir(f"/proc/{pid}/fd"))
    return count


def kernel_memory_kb():
    """Kernel memory of the whole machine, because the kernel does not account it to processes."""
    total = 0
    with open("/proc/meminfo") as f:
        for line in f:
            key, _, rest = line.partition(":")
            if key in KERNEL_MEMORY:
                total += int(rest.split()[0])
    return total


def idle_cores(seconds):
    """The number of cores that are busy without the trial: the baseline, which is subtracted."""
    busy_s, begun_s = machine_busy_s(), time.monotonic()
    time.sleep(seconds)
    return (machine_busy_s() - busy_s) / (time.monotonic() - begun_s)


class Meter:
    """CPU seconds from its creation to `read()`: those of the machine minus the baseline (None if the baseline is too large), and
    those of the relay."""

    def __init__(self, child, baseline_cores):
        self.child, self.baseline_cores = child, baseline_cores
        self.relay_s = tree_cpu_s(child.pid) if child else 0
        self.begun_s, self.busy_s = time.monotonic(), machine_busy_s()

    def read(self):
        wall_s = time.monotonic() - self.begun_s
        path_s = machine_busy_s() - self.busy_s - self.baseline_cores * wall_s
        if self.baseline_cores > TRUSTED_BASELINE_CORES:
            path_s = None
        relay_s = tree_cpu_s(self.child.pid) - self.relay_s if self.child else None
        return {"wall_s": wall_s, "path_cpu_s": path_s, "relay_cpu_s": relay_s}
