"""Whether the host gave this machine its CPUs: a hypervisor that takes them away moves any figure."""
import os
import time

# Of the time of all CPUs: what is taken more often than that disturbs a comparison.
STEAL_MAX = 0.01


class Steal:
    """How much of the CPUs' time was stolen since it was made."""

    def __init__(self):
        self.begun = self._read()

    @staticmethod
    def _read():
        with open("/proc/stat", encoding="ascii") as f:
            return int(f.readline().split()[8]) / os.sysconf("SC_CLK_TCK"), time.monotonic()

    def share(self):
        stolen, now = self._read()
        return (stolen - self.begun[0]) / ((now - self.begun[1]) * os.cpu_count())

    def is_quiet(self):
        return self.share() <= STEAL_MAX
